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
from towerpack.dataflow.arguments import integer_of, repr_of
from towerpack.dataflow.datapoints import describe_datapoint
from towerpack.dataflow.formats._tar import KEY, NAME, TarData, encode_file
from towerpack.dataflow.formats._writing import check_finite, is_utf8, whole_file
from towerpack.dataflow.stages._shuffle import ShuffleData


class TarWriter:
    """Writer of a tar archive, which appears at its path when it is complete.

        with TarWriter("train.tar") as writer:
            writer.write({"__key__": "cat/7", "jpg": jpeg_bytes, "cls": 3})

    If the block raises an error, no file is written. Equal datapoints give an equal archive.

    Args:
        path: The archive. An existing file is replaced.
    """

    def __init__(self, path: PathLike) -> None:
        self.path = path_of(path)
        self._open = contextlib.ExitStack()
        self._tar: tarfile.TarFile | None = None
        self._last_key: str | None = None
        self.written = 0
        self.nbytes = 0

    def __enter__(self) -> TarWriter:
        temporary = self._open.enter_context(whole_file(self.path))
        self._tar = self._open.enter_context(tarfile.open(temporary, "w"))
        return self

    def write(self, datapoint: Mapping[str, Any]) -> None:
        """Append one datapoint.

        Args:
            datapoint: Dict from extensions to contents: bytes, or the types that the extensions
                `txt` (`str`), `cls`, `index`, `id` (`int`), `npy` (arrays) and `json` encode.
                `"__key__"` is the stem of the files (default: the number of the datapoint).

        Raises:
            ConfigError: The archive is not open, the key or an extension would not be read back
                unchanged, or the extension cannot encode the value.
        """
        if self._tar is None:
            fix = "call write inside the block `with TarWriter(path) as writer:`"
            raise ConfigError(f"The archive {self.path} must be open to be written.", fix=fix)
        for name, content in self._files(datapoint).items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            info.mode = 0o644
            self._tar.addfile(info, io.BytesIO(content))
        self.written += 1
        self.nbytes = self._tar.offset

    def __exit__(self, *exc: Any) -> None:
        self._tar = None
        self._open.__exit__(*exc)

    def _files(self, datapoint: Mapping[str, Any]) -> dict[str, bytes]:
        if not isinstance(cast("object", datapoint), Mapping):
            raise ConfigError(
                "Datapoints of a tar archive must be dicts from extensions to contents.",
                got=describe_datapoint(datapoint),
                fix='convert datapoints: MapData(ds, lambda dp: {"npy": dp[0], "cls": dp[1]})',
            )
        key = datapoint.get(KEY, f"{self.written:08d}")
        extensions = [name for name in datapoint if name != KEY]
        if not extensions:
            raise ConfigError(f"The datapoint {key!r} must have at least one file, got none.")
        if self.written and key == self._last_key:
            what = f"Two consecutive datapoints have the key {key!r} and would be read as one."
            raise ConfigError(
                what, fix=f"give each datapoint a different {KEY!r}, or leave out the key"
            )
        files: dict[str, bytes] = {}
        for extension in extensions:
            name = f"{key}.{extension}"
            match = NAME.fullmatch(name) if is_utf8(name, "surrogateescape") else None
            if match is None or match.groups() != (key, extension):
                raise ConfigError(
                    f"The file {name!r} would not be read back under its key.",
                    got=f"the key {repr_of(key)}",
                    expected="keys without dots after the last slash, extensions without slashes",
                )
            files[name] = encode_file(extension, datapoint[extension])
        self._last_key = key
        return files


class TarSerializer:
    """Serializer of flows of dicts to tar archives."""

    @staticmethod
    def save(ds: DataFlow, path: PathLike, *, datapoints_per_file: int | None = None) -> list[Path]:
        """Write one pass of a flow.

        The archives appear when all of them are complete. They replace the archives of an earlier
        call, including archives with higher numbers.

        Args:
            ds: Finite flow of dicts as for `TarWriter.write`.
            path: The archive. With `datapoints_per_file`, a pattern such as `train-%05d.tar`.
            datapoints_per_file: Number of datapoints in each archive (default: one archive).

        Returns:
            Paths of the archives.

        Raises:
            ConfigError: A datapoint cannot be written, the pattern has no number, or the flow is
                infinite.
        """
        check_finite(ds)
        pattern = str(path_of(path))
        if datapoints_per_file is not None:
            integer_of(datapoints_per_file, "datapoints_per_file", least=1)
            if not re.search("%[0-9]*d", pattern):
                raise ConfigError(
                    f"With datapoints_per_file, path must be a pattern, got {pattern!r}.",
                    expected="a pattern with a number, such as train-%05d.tar",
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
        """Return the saved flow, with decoded contents.

        Args:
            path: The archive, or a pattern such as `train-*.tar`.
            shuffle: Shuffle every pass differently, as `ShuffleData` does.
        """
        ds = TarData(path, decode=True)
        return ShuffleData(ds) if shuffle else ds
