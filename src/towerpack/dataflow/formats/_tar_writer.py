"""Writing tar archives of samples."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from towerpack._core.errors import ConfigError
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._user_files import PathLike, path_of
from towerpack.dataflow.arguments import given, integer_of
from towerpack.dataflow.datapoints import describe_datapoint
from towerpack.dataflow.formats._tar import KEY, NAME, TarData, encode_file
from towerpack.dataflow.formats._writing import check_finite, is_utf8, whole_file
from towerpack.dataflow.stages._shuffle import ShuffleData


class TarWriter:
    """Write one archive of samples, which appears under its name when it is whole.

        with TarWriter("train.tar") as writer:
            writer.write({"__key__": "cat/7", "jpg": jpeg_bytes, "cls": 3})

    A block that raises leaves nothing behind. Equal datapoints give an equal archive.

    Args:
        path: Overwritten if it exists.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = path_of(path)
        self._open = contextlib.ExitStack()
        self._tar: tarfile.TarFile | None = None
        self._last_key: str | None = None
        self.written = 0

    def __enter__(self) -> TarWriter:
        temporary = self._open.enter_context(whole_file(self.path))
        self._tar = self._open.enter_context(tarfile.open(temporary, "w"))
        return self

    def write(self, datapoint: Mapping[str, Any]) -> None:
        """Append one datapoint: a dict from extensions to contents.

        Bytes are written as they are; otherwise the extension says how: `txt` (`str`), `cls`,
        `index`, `id` (`int`), `npy` (arrays), `json`. `"__key__"` names the files; by default their
        number does.

        Raises:
            ConfigError: The key or an extension would not be read back as it is, or the extension
                does not say how to write the value.
        """
        if self._tar is None:
            raise ConfigError("The archive is not open.", fix="with TarWriter(path) as writer: ...")
        for name, content in self._files(datapoint).items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.mode = 0o644
            self._tar.addfile(info, io.BytesIO(content))
        self.written += 1

    def __exit__(self, *exc: Any) -> None:
        self._tar = None
        self._open.__exit__(*exc)

    def _files(self, datapoint: Mapping[str, Any]) -> dict[str, bytes]:
        if not isinstance(cast("object", datapoint), Mapping):
            raise ConfigError(
                "A tar archive holds dicts from extensions to contents.",
                got=describe_datapoint(datapoint),
                fix='MapData(ds, lambda dp: {"npy": dp[0], "cls": dp[1]})',
            )
        key = datapoint.get(KEY, f"{self.written:08d}")
        extensions = [name for name in datapoint if name != KEY]
        if not extensions:
            raise ConfigError(f"The datapoint {key!r} has no content.", expected="one file or more")
        if self.written and key == self._last_key:
            raise ConfigError(
                f"Two datapoints in a row have the key {key!r}: they would be read as one."
            )
        files: dict[str, bytes] = {}
        for extension in extensions:
            name = f"{key}.{extension}"
            match = NAME.fullmatch(name) if is_utf8(name, "surrogateescape") else None
            if match is None or match.groups() != (key, extension):
                raise ConfigError(
                    f"The file {name!r} would not be read back under its key.",
                    got=f"the key {given(key)}",
                    expected="keys without dots after the last slash, extensions without slashes",
                )
            files[name] = encode_file(extension, datapoint[extension])
        self._last_key = key
        return files


class TarSerializer:
    """Write a flow of dicts to tar archives, and read them again."""

    @staticmethod
    def save(ds: DataFlow, path: PathLike, *, datapoints_per_file: int | None = None) -> list[Path]:
        """Write one pass of a flow.

        The archives appear when all of them are whole, or none does. They replace those of an
        older pass, also when these were more.

        Args:
            ds: Its datapoints are dicts from extensions to contents, as `TarWriter.write` takes.
            path: The archive; with `datapoints_per_file` a pattern such as `train-%05d.tar`.
            datapoints_per_file: Begin a new archive after so many.

        Returns:
            The archives.

        Raises:
            ConfigError: A datapoint cannot be written, the pattern has no place for a number, or
                the flow never ends.
        """
        check_finite(ds)
        pattern = str(path_of(path))
        if datapoints_per_file is not None:
            integer_of(datapoints_per_file, "datapoints_per_file", least=1)
            if not re.search("%[0-9]*d", pattern):
                raise ConfigError(
                    f"{pattern!r} is no pattern for the names of archives.",
                    expected="one with a number, such as train-%05d.tar",
                )
        archives: list[Path] = []
        with contextlib.ExitStack() as whole, contextlib.ExitStack() as current:

            def begin() -> TarWriter:
                current.close()
                name = pattern if datapoints_per_file is None else pattern % len(archives)
                archives.append(Path(name))
                return current.enter_context(TarWriter(whole.enter_context(whole_file(name))))

            writer = begin()
            for index, datapoint in enumerate(ds):
                if writer.written == datapoints_per_file:
                    writer = begin()
                try:
                    writer.write(datapoint)
                except ConfigError as error:
                    error.pipeline = f"{ds}, datapoint {index}"
                    raise
        if datapoints_per_file is not None:
            for number in itertools.count(len(archives)):
                older = Path(pattern % number)
                if not older.exists():
                    break
                older.unlink()
        return archives

    @staticmethod
    def load(path: PathLike, shuffle: bool = False) -> DataFlow:
        """The flow that was saved, its contents decoded; a pattern may name several archives."""
        ds = TarData(path, decode=True)
        return ShuffleData(ds) if shuffle else ds
