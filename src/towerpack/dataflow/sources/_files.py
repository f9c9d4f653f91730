"""Images in files of their own."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.extras import require
from towerpack.dataflow._arena import Allocate
from towerpack.dataflow._batch_rows import RowMaker, empty_row
from towerpack.dataflow._plan import Node
from towerpack.dataflow._user_files import PathLike, Strings
from towerpack.dataflow.arguments import given, integer_of
from towerpack.dataflow.content import content_of_files, content_of_values
from towerpack.dataflow.datapoints import Block, Datapoint, Positions, as_ints
from towerpack.dataflow.images._arguments import height_and_width
from towerpack.dataflow.images._decode import MAX_PIXELS, decode_image
from towerpack.dataflow.sources._memory import PlannedSource

_LARGEST_FILE = 1 << 30
_DECODING = 'lambda file: decode_image(Path(file).read_bytes()), on_error="skip"'


class FilesStage(PlannedSource["FilesNode"]):
    """Base of sources that read one file for each datapoint; arguments as of `FilesNode`."""

    def __init__(
        self,
        files: Strings,
        reader: ImageReader | None,
        labels: NDArray[np.int64] | None,
        *,
        shuffle: bool,
        seed: int | None,
    ) -> None:
        super().__init__(FilesNode(files, reader, labels), shuffle=shuffle, seed=seed)

    def content(self) -> str:
        node = self._node
        made = content_of_values(node.labels, repr(node.reader))
        return f"{super().content()}, {content_of_files(self.files)}, {made}"

    @property
    def files(self) -> Sequence[str]:
        """The files, in order."""
        return self._node.files


class ImageFromFile(FilesStage):
    """Datapoint i is `[image]`, decoded from file i: uint8, [height, width, channels], RGB.

    Contract: as `DataFromList`.

    Args:
        files: Names of JPEG, PNG, WebP, BMP, TIFF or GIF files. Copied, and never reordered.
        channel: 3 for colour, 1 for grey.
        resize: Height and width, or one number for both, of all images; by default as they are.
        shuffle: Give every pass another order, as `ShuffleData` does.
        max_pixels: Larger images are an error, before anything is allocated for them.
        seed: For the shuffle alone; by default the run's.

    Raises:
        FormatError: A file cannot be read, or is no whole image; raised while iterating.
    """

    def __init__(
        self,
        files: Sequence[PathLike],
        channel: int = 3,
        resize: int | tuple[int, int] | None = None,
        shuffle: bool = False,
        *,
        max_pixels: int = MAX_PIXELS,
        seed: int | None = None,
    ) -> None:
        if isinstance(files, (str, os.PathLike)) or not isinstance(cast("object", files), Iterable):
            raise ConfigError("ImageFromFile takes a list of files.", got=given(files))
        reader = ImageReader(channel, resize, max_pixels)
        super().__init__(Strings(map(str, files)), reader, None, shuffle=shuffle, seed=seed)


class ImageReader:
    """Read an image file; `rgb=False` is BGR, OpenCV's order."""

    def __init__(
        self,
        channels: int = 3,
        resize: int | tuple[int, int] | None = None,
        max_pixels: int = MAX_PIXELS,
        *,
        rgb: bool = True,
    ) -> None:
        if channels not in (1, 3):
            raise ConfigError(f"There are no images of {channels} channels.", expected="3 or 1")
        self._channels = channels
        self._rgb = rgb
        self._size = None if resize is None else height_and_width(resize, "size")
        limit = integer_of(max_pixels, "max_pixels")
        self._decode = partial(decode_image, rgb=rgb, channels=channels, max_pixels=limit)

    def __repr__(self) -> str:
        return f"ImageReader({self._channels}, {self._size}, rgb={self._rgb})"

    def __call__(self, file: str, allocate: Allocate = np.empty) -> NDArray[np.uint8]:
        """The image in one file; `allocate` makes memory for one that is resized."""
        image = self._decode(_read(file), name=file)
        if self._size is None:
            return image
        cv2: Any = require("cv2", extra="image", needed_for="resizing images")
        # Also where the size is right: in a row of a batch, a copy here saves the one of the stack.
        out = allocate((*self._size, self._channels), np.uint8)
        cv2.resize(image, self._size[::-1], dst=out)
        return out


def _read(file: str) -> bytes:
    """What an image file holds, unless it is too large or no file."""

    def opener(file: str, flags: int) -> int:
        return os.open(file, flags | os.O_NONBLOCK)  # a pipe would wait for who writes to it

    try:
        with open(file, "rb", opener=opener) as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError("it is no file, but a pipe or a device")
            if status.st_size > _LARGEST_FILE:
                raise OSError(f"it has {status.st_size:_} bytes")
            return opened.read()
    except (OSError, ValueError) as error:
        raise FormatError(
            f"The image {file} cannot be read: {error}.",
            fix="check the list of files and where the program runs; complete the data set",
        ) from error


class FilesNode(RowMaker, Node):
    """Read one file for each datapoint, or give its name; `(image, label)`, else `[image]`."""

    def __init__(
        self, files: Strings, reader: ImageReader | None, labels: NDArray[np.int64] | None
    ) -> None:
        self.files = files
        self.labels = labels
        self.size: int | None = len(files)
        self.reader = reader

    def read(self, epoch: int, positions: Positions) -> Block:
        return self.make(self._made, ((position, empty_row) for position in as_ints(positions)))

    def get(self, epoch: int, position: int) -> Datapoint:
        return self._made(position, np.empty)

    def _made(self, position: int, allocate: Allocate) -> Datapoint:
        file = self.files[position]
        try:
            component = file if self.reader is None else self.reader(file, allocate)
        except FormatError as error:
            first, ds = "decode=False here, then ", "ds"
            if self.labels is None:
                first, ds = "", "DataFromList([[file] for file in files])"
            fix = f"to leave out bad files: {first}MapDataComponent({ds}, {_DECODING})"
            error.fix = "; ".join(filter(None, [error.fix, fix]))
            raise
        return [component] if self.labels is None else (component, int(self.labels[position]))
