"""Reading and writing of image files, and base classes of inputters of images."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.extras import require
from towerpack._core.files import replace_file
from towerpack._core.pictures import png
from towerpack._core.tables import Row, read_rows
from towerpack.apps._config import Data
from towerpack.apps._inputter import Inputter, Split, class_list, read_classes, write_classes
from towerpack.apps._splits import (
    check_batch,
    held_out,
    part_of,
    parted,
    places,
    relative_name,
    root_of,
)
from towerpack.dataflow import (
    BatchByLength,
    BatchData,
    DataFlow,
    DataFromList,
    MapData,
    PrefetchData,
    ShuffleData,
)
from towerpack.dataflow.images import AugmentorList, decode_image
from towerpack.dataflow.images.headers import header_of as header_of
from towerpack.dataflow.sources._files import ImageReader
from towerpack.dataflow.sources.discovery import IMAGE_EXTENSIONS, Discovery
from towerpack.ops.geometry import Geometry

read_picture = ImageReader()
"""Function from a file name to an image, uint8 [h, w, 3], with the EXIF orientation applied."""


def check_exist(files: Sequence[str]) -> None:
    missing = [file for file in files if not os.path.isfile(file)]
    if missing:
        raise FormatError(
            f"All listed pictures must exist, but {len(missing)} of {len(files)} do not.",
            got=f"the first is {missing[0]}",
            fix="add the pictures, or remove them from the files that data.train names",
        )


def size_error(
    what: str, got: tuple[float, float], expected: tuple[float, float], other_boxes_on: str | None
) -> FormatError:
    return FormatError(
        f"{what} state a different size than the picture has.",
        got="{:g} x {:g} pixels".format(*got),
        expected="{:g} x {:g} pixels".format(*expected),
        fix=f"set data.boxes_on={other_boxes_on}"
        if other_boxes_on
        else "correct width and height in the annotations that data.train names",
    )


class PictureInputter(Inputter):
    """Base class of inputters of images. Subclasses define `find`, and `geometry` or `prepare`.

    `find` is called when the data are first needed. A run stores its classes, so that predictions
    need no data. `geometry` is the deterministic transform to the network's input.
    """

    suffixes = IMAGE_EXTENSIONS
    geometry: Geometry
    _run_classes: Any = None

    @abstractmethod
    def find(self) -> tuple[Any, Mapping[str, Any]]:
        """Return the classes, and the available data by split: 'train', 'val', 'test'."""

    @property
    def classes(self) -> Any:
        """Classes of the run, or of the data if the run has not started."""
        return self._data[0] if self._run_classes is None else self._run_classes

    @property
    def class_names(self) -> Sequence[str]:  # type: ignore[override]
        return self.classes

    @property
    def parts(self) -> Mapping[str, Any]:
        classes, parts = self._data
        if self._run_classes is not None and classes != self._run_classes:
            what = "The data must have the same classes as the run."
            raise ConfigError(what, got=f"{classes}", expected=f"{self._run_classes}")
        return parts

    def keep(self, run_dir: Path) -> None:
        write_classes(run_dir, self._as_json(self.classes))

    def restore(self, run_dir: Path | None) -> None:
        self._run_classes = read_classes(run_dir, self._from_json)

    @cached_property
    def _data(self) -> tuple[Any, dict[str, Any]]:
        classes, parts = self.find()
        classes = list(classes) if isinstance(classes, Sequence) else classes
        return classes, self._checked(classes, dict(parts))

    def _checked(self, classes: Any, parts: dict[str, Any]) -> dict[str, Any]:
        del classes
        return parts

    def _as_json(self, classes: Any) -> Any:
        return classes

    def _from_json(self, content: Any) -> Any:
        return class_list(content)

    def read(self, source: Any) -> NDArray[np.uint8]:
        """Read an image, uint8 [h, w, 3], and apply its EXIF orientation.

        Args:
            source: Name of a file, or the bytes of a file.
        """
        return decode_image(source) if isinstance(source, bytes) else read_picture(str(source))

    def prepare(self, sample: Any) -> tuple[NDArray[Any], ...]:
        return (AugmentorList(self.geometry.augmentors()).augment(sample),)


class FilesInputter(PictureInputter):
    """Base class of inputters of file lists that are short enough to check every file.

    If there are no 'val' data, a fraction of the training data is used for validation.
    """

    def __init__(self, config: Any) -> None:
        self.config = config
        self.batch_size = config.batch_size

    @abstractmethod
    def decoder(self) -> Callable[[Any], Any]:
        """Return a function from an item of a split to a datapoint that begins with the image."""

    def _checked(self, classes: Any, parts: dict[str, Any]) -> dict[str, Any]:
        check_exist([str(getattr(i, "picture", i)) for items in parts.values() for i in items])
        train, share = parts.get("train"), self.config.validation
        if train and "val" not in parts and share:
            parts["train"], parts["val"] = parted(train, held_out(self._names(train), share, "val"))
        return parts

    def _names(self, items: Sequence[Any]) -> list[str]:
        root = root_of(self.config)
        return [relative_name(getattr(item, "picture", item), root) for item in items]

    def row_names(self, split: Split) -> Sequence[str]:
        return self._names(part_of(self.parts, split))

    def batches(
        self,
        split: Split,
        change: Callable[[DataFlow], DataFlow],
        pad: Any = None,
        group_of: Callable[[Any], int] | None = None,
    ) -> DataFlow:
        """Return the batches of a split. `change` transforms the dataflow of decoded datapoints.

        `group_of` maps an item, and its changed datapoint, to the group 1 or 2. The items of a
        training batch are then of one group, unless a group is smaller than a batch.
        """
        training = split == "train"
        items = part_of(self.parts, split)
        if training:
            check_batch(len(items), self.batch_size)
        groups = [group_of(item) for item in items] if training and group_of else []
        ds: DataFlow = DataFromList([[item] for item in items], shuffle=False)
        decode = partial(_decoded, decode=self.decoder())
        if groups and min(Counter(groups).values()) >= self.batch_size:
            ds = BatchByLength(
                change(MapData(ds, decode)),
                self.batch_size,
                [1],
                length=group_of or 0,
                lengths=groups,
                shuffle=True,
                pad=pad,
                remainder=False,
            )
        else:
            ds = MapData(ShuffleData(ds) if training else ds, decode)
            ds = BatchData(change(ds), self.batch_size, remainder=not training, pad=pad)
        workers = self.config.workers
        return PrefetchData(ds, num_proc=workers) if workers else ds


def _decoded(datapoint: list[Any], decode: Callable[[Any], Any]) -> Any:
    return decode(datapoint[0])


def listed(file: str, columns: Sequence[str], encoding: str | None = None) -> list[Row]:
    """Return the rows of a CSV file of file names, with the names as paths.

    Names are relative to the folder of the CSV file. The first line is a header if its fields
    contain no dot and do not name files.
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
            expected = ",".join(columns)
            raise FormatError(f"{row}: a line must have {len(columns)} fields.", expected=expected)
        for name in row.fields:
            if not is_file(name):
                raise FormatError(f"{row}: the file {path_of(name)} does not exist.")
    if not rows:
        raise FormatError(f"{file} must list at least one {columns[0]}.")
    return [row._replace(fields=list(map(path_of, row.fields))) for row in rows]


def listed_by_split(config: Data, columns: Sequence[str]) -> dict[str, list[Row]]:
    return {
        split: [row for file in files for row in listed(file, columns, config.encoding)]
        for split, files in places(config, "{}.csv").items()
    }


def pictures_in(folder: str | Path) -> list[str]:
    """Return the images below a folder, sorted, and log which files are left out."""
    discovery = Discovery()
    pictures = sorted(discovery.files(folder))
    discovery.report(folder)
    if not pictures:
        raise ConfigError(f"No pictures found in {folder}.", expected=" ".join(IMAGE_EXTENSIONS))
    return pictures


def typeface(height_px: float) -> Any:
    """Return a font for text on images. Matplotlib contains the font."""
    require("matplotlib", extra="apps", needed_for="Annotated pictures")
    import matplotlib
    from PIL import ImageFont

    file = Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf"
    return ImageFont.truetype(str(file), max(6, round(height_px)))


def write_picture(path: Path, picture: np.ndarray) -> None:
    """Write an image as a PNG file.

    Args:
        path: Path of the file. Its folder is created.
        picture: Gray, uint8 [h, w], or red, green, blue, uint8 [h, w, 3].
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, png(picture))
