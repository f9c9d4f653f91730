"""Files of pictures, lists of them, inputters of them, and letters on them."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.extras import require
from towerpack._core.tables import Row, read_rows
from towerpack.apps._inputter import Inputter, Split, read_classes, write_classes
from towerpack.apps._splits import held_out, part_of, parted, relative_name, root_of
from towerpack.dataflow import (
    BatchData,
    DataFlow,
    DataFromList,
    MapData,
    PrefetchData,
    ShuffleData,
)
from towerpack.dataflow.images import decode_image
from towerpack.dataflow.images.headers import header_of as header_of
from towerpack.dataflow.sources._files import ImageReader
from towerpack.dataflow.sources.discovery import IMAGE_EXTENSIONS, Discovery

read_picture = ImageReader()
"""From the name of a file to uint8 [h, w, 3], upright."""


def check_exist(files: Sequence[str]) -> None:
    """Check that all pictures exist.

    Raises:
        FormatError: One does not.
    """
    missing = [file for file in files if not os.path.isfile(file)]
    if missing:
        raise FormatError(
            f"{len(missing)} of {len(files)} pictures do not exist.",
            got=f"the first is {missing[0]}",
            fix="add the pictures, or remove them from the files that data.train names",
        )


class PictureInputter(Inputter):
    """Base of inputters of pictures. A subclass defines `find`.

    Data are looked for when they are needed first. A run keeps its classes, so that predictions
    need no data.
    """

    suffixes = IMAGE_EXTENSIONS
    _kept: Any = None

    @abstractmethod
    def find(self) -> tuple[Any, Mapping[str, Any]]:
        """Names of the classes, and the data of each split: 'train', 'val', 'test' if they are."""

    @property
    def classes(self) -> Any:
        """Those of the run; of the data, where there is no run yet."""
        return self._data[0] if self._kept is None else self._kept

    @property
    def class_names(self) -> Sequence[str]:  # type: ignore[override]
        """Names of the classes."""
        return self.classes

    @property
    def parts(self) -> Mapping[str, Any]:
        """The data of each split.

        Raises:
            ConfigError: There are no data, or they have other classes than the run.
            FormatError: A list of them is damaged.
        """
        classes, parts = self._data
        if self._kept is not None and classes != self._kept:
            raise ConfigError(
                "The data have other classes than the run.",
                got=f"{classes}",
                expected=f"{self._kept}",
            )
        return parts

    def keep(self, run_dir: Path) -> None:
        """Write the classes."""
        write_classes(run_dir, self._as_json(self.classes))

    def restore(self, run_dir: Path | None) -> None:
        """Take the classes of a run."""
        kept = read_classes(run_dir)
        self._kept = None if kept is None else self._from_json(kept)

    @cached_property
    def _data(self) -> tuple[Any, dict[str, Any]]:
        classes, parts = self.find()
        classes = list(classes) if isinstance(classes, Sequence) else classes
        return classes, self._checked(classes, dict(parts))

    def _checked(self, classes: Any, parts: dict[str, Any]) -> dict[str, Any]:
        """The parts as they are used."""
        del classes
        return parts

    def _as_json(self, classes: Any) -> Any:
        return classes

    def _from_json(self, content: Any) -> Any:
        return content

    def read(self, source: Any) -> NDArray[np.uint8]:
        """A picture [h, w, 3], upright.

        Args:
            source: The name of a file, or what is in one.

        Raises:
            FormatError: It is no picture, or a damaged one.
        """
        return decode_image(source) if isinstance(source, bytes) else read_picture(str(source))


class FilesInputter(PictureInputter):
    """Base of inputters of lists of files that are small enough to be checked one by one.

    Args:
        config: Has `validation`, `batch_size` and `workers`. Without 'val', a share of 'train'
            becomes that.
    """

    def __init__(self, config: Any) -> None:
        self.config = config
        self.batch_size = config.batch_size

    @abstractmethod
    def decoder(self) -> Callable[[Any], Any]:
        """From an item of a part to a datapoint, whose first component is the picture."""

    def _checked(self, classes: Any, parts: dict[str, Any]) -> dict[str, Any]:
        check_exist([str(getattr(i, "picture", i)) for items in parts.values() for i in items])
        train, share = parts.get("train"), self.config.validation
        if train and "val" not in parts and share:
            parts["train"], parts["val"] = parted(train, held_out(self._names(train), share, "val"))
        return parts

    def _names(self, items: Sequence[Any]) -> list[str]:
        """Return the name of each item's picture below `path`."""
        root = root_of(self.config)
        return [relative_name(getattr(item, "picture", item), root) for item in items]

    def row_names(self, split: Split) -> Sequence[str]:
        """Return the names of a split's pictures."""
        return self._names(part_of(self.parts, split))

    def batches(
        self, split: Split, change: Callable[[DataFlow], DataFlow], pad: Any = None
    ) -> DataFlow:
        """Batches of what `change` makes of datapoints, as `flow` gives them; `pad` of `BatchData`.

        Raises:
            ConfigError: There are no such data, or less than a batch to train on.
        """
        training = split == "train"
        items = part_of(self.parts, split)
        if training and len(items) < self.batch_size:
            raise ConfigError(
                f"{len(items)} training pictures are no batch.",
                expected=f"at least batch_size={self.batch_size}",
                fix="set data.batch_size to a smaller number",
            )
        ds: DataFlow = DataFromList([[item] for item in items], shuffle=False)
        ds = MapData(ShuffleData(ds) if training else ds, partial(_decoded, decode=self.decoder()))
        ds = BatchData(change(ds), self.batch_size, remainder=not training, pad=pad)
        workers = self.config.workers
        return PrefetchData(ds, num_proc=workers) if workers else ds


def _decoded(datapoint: list[Any], decode: Callable[[Any], Any]) -> Any:
    return decode(datapoint[0])


def listed(file: str, columns: Sequence[str], encoding: str | None = None) -> list[Row]:
    """Rows of a CSV file, whose fields are files: as written, relative to its folder.

    A first line whose fields have no extension and name no files is a header.

    Args:
        file: The list.
        columns: What they hold; those after them are left out.
        encoding: As for `read_text`.

    Raises:
        ConfigError: The list cannot be read.
        FormatError: A line has too few columns, or there is no such file, or no line.
    """

    def path_of(name: str) -> str:
        return str(Path(file).parent / Path(name.strip()).expanduser())

    def is_file(name: str) -> bool:
        return os.path.isfile(path_of(name))

    delimiter = "," if len(columns) == 1 else None
    rows = read_rows(file, encoding, delimiter=delimiter, is_file=is_file)
    rows = [row._replace(fields=row.fields[: len(columns)]) for row in rows]
    if rows and not any(not name or "." in name or is_file(name) for name in rows[0].fields):
        del rows[0]
    for row in rows:
        if len(row.fields) < len(columns) or not all(map(str.strip, row.fields)):
            raise FormatError(f"{row} names too little.", expected=",".join(columns))
        for name in row.fields:
            if not is_file(name):
                raise FormatError(f"{row}: there is no file {path_of(name)}.")
    if not rows:
        raise FormatError(f"{file} lists no {columns[0]}.")
    return [row._replace(fields=list(map(path_of, row.fields))) for row in rows]


def pictures_in(folder: str | Path) -> list[str]:
    """Return the pictures in a folder and below it, by name. Log which files are left out.

    Raises:
        ConfigError: There are none.
    """
    discovery = Discovery()
    found = sorted(discovery.files(folder))
    discovery.report(folder)
    if not found:
        raise ConfigError(
            f"There are no pictures in {folder}.", expected=" ".join(IMAGE_EXTENSIONS)
        )
    return found


def typeface(height_px: float) -> Any:
    """Pillow's font for letters on pictures.

    Raises:
        MissingExtraError: Matplotlib, which brings it, is not installed.
    """
    require("matplotlib", extra="apps", needed_for="Annotated pictures")
    import matplotlib
    from PIL import ImageFont

    file = Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"
    return ImageFont.truetype(str(file), max(6, round(height_px)))
