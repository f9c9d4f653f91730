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
from towerpack._core.remote_path import is_url
from towerpack.dataflow._arena import Allocate
from towerpack.dataflow._batch_rows import RowMaker, empty_row
from towerpack.dataflow._plan import Node
from towerpack.dataflow._remote_files import RemoteFile, in_threads, remote_file
from towerpack.dataflow._user_files import PathLike, Strings
from towerpack.dataflow.arguments import integer_of, repr_of
from towerpack.dataflow.content import content_of_files, content_of_values
from towerpack.dataflow.datapoints import Block, Datapoint, Positions, as_ints
from towerpack.dataflow.images._arguments import height_and_width
from towerpack.dataflow.images._decode import MAX_PIXELS, decode_image
from towerpack.dataflow.sources._memory import PlannedSource

_LARGEST_FILE = 1 << 30
_DECODING = 'lambda file: decode_image(Path(file).read_bytes()), on_error="skip"'


class FilesStage(PlannedSource["FilesNode"]):
    def __init__(
        self,
        files: Strings,
        reader: ImageReader | None,
        labels: NDArray[np.int64] | None,
        *,
        shuffle: bool,
        seed: int | None,
        versions: Strings | None = None,
    ) -> None:
        node = FilesNode(files, reader, labels, versions)
        super().__init__(node, shuffle=shuffle, seed=seed)

    def content(self) -> str:
        node = self._node
        settings = content_of_values(node.labels, repr(node.reader))
        if node.is_remote:
            versions = () if node.versions is None else node.versions
            files = content_of_values(list(node.files), list(versions))
        else:
            files = content_of_files(self.files)
        return f"{super().content()}, {files}, {settings}"

    @property
    def files(self) -> Sequence[str]:
        """Paths of the files in order."""
        return self._node.files


class ImageFromFile(FilesStage):
    """Decode image files. Datapoint i is `[image]`: uint8, [height, width, channels], RGB.

    Args:
        files: Paths or URLs of JPEG, PNG, WebP, BMP, TIFF or GIF files.
        channel: Number of channels: 3 for color, 1 for gray.
        resize: Height and width of all images, or one number for both; by default unchanged.
        shuffle: Whether to shuffle each pass, as `ShuffleData` does.
        max_pixels: Limit of pixels in an image, which is checked before memory is allocated.
        seed: Seed of the shuffle only; by default the run's seed.

    Raises:
        ConfigError: An argument is invalid.
        FormatError: A file is not a complete image; raised while iterating.
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
            raise ConfigError(f"ImageFromFile needs a list of files, got {repr_of(files)}.")
        reader = ImageReader(channel, resize, max_pixels)
        super().__init__(Strings(map(str, files)), reader, None, shuffle=shuffle, seed=seed)


class ImageReader:
    """Reader of image files. `rgb=False` returns the channels in OpenCV's order, BGR."""

    def __init__(
        self,
        channels: int = 3,
        resize: int | tuple[int, int] | None = None,
        max_pixels: int = MAX_PIXELS,
        *,
        rgb: bool = True,
    ) -> None:
        if channels not in (1, 3):
            raise ConfigError(f"The number of channels must be 3 or 1, got {channels}.")
        self._channels = channels
        self._rgb = rgb
        self._size = None if resize is None else height_and_width(resize, "size")
        limit = integer_of(max_pixels, "max_pixels")
        self._decode = partial(decode_image, rgb=rgb, channels=channels, max_pixels=limit)

    def __repr__(self) -> str:
        return f"ImageReader({self._channels}, {self._size}, rgb={self._rgb})"

    def __call__(self, file: str | RemoteFile, allocate: Allocate = np.empty) -> NDArray[np.uint8]:
        """Read an image. `allocate` provides the memory of a resized image."""
        image = self._decode(read_file(file), name=str(file))
        if self._size is None:
            return image
        cv2: Any = require("cv2", extra="image", needed_for="resizing images")
        # Also if the size is right: this copy to a row of the batch saves a copy when stacking.
        out = allocate((*self._size, self._channels), np.uint8)
        cv2.resize(image, self._size[::-1], dst=out)
        return out


def read_file(file: str | RemoteFile) -> bytes:
    if isinstance(file, RemoteFile) or is_url(file):
        remote = file if isinstance(file, RemoteFile) else remote_file(file)
        return remote.read_at(0, remote.size)

    def opener(file: str, flags: int) -> int:
        return os.open(file, flags | os.O_NONBLOCK)  # opening a pipe would wait for its writer

    try:
        with open(file, "rb", opener=opener) as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError("it is a pipe or a device, not a file")
            if status.st_size > _LARGEST_FILE:
                raise OSError(f"it has {status.st_size:_} bytes")
            return opened.read()
    except (OSError, ValueError) as error:
        raise FormatError(
            f"The image {file} cannot be read: {error}.",
            fix="check the list of files and the working directory, or add the missing files",
        ) from error


class FilesNode(RowMaker, Node):
    """Node that reads one file per datapoint: `(image, label)`, or `[image]` without labels."""

    def __init__(
        self,
        files: Strings,
        reader: ImageReader | None,
        labels: NDArray[np.int64] | None,
        versions: Strings | None = None,
    ) -> None:
        self.files = files
        self.labels = labels
        self.size: int | None = len(files)
        self.reader = reader
        self.is_remote = b"://" in files.arrays[0].tobytes()
        self.versions = versions  # of remote files, if they are known

    def read(self, epoch: int, positions: Positions) -> Block:
        places = as_ints(positions)
        if self.is_remote and self.reader is not None:
            for file in in_threads(self._file, places):
                if isinstance(file, RemoteFile):
                    file.will_read(0, file.size)
        return self.make(self._load, ((position, empty_row) for position in places))

    def get(self, epoch: int, position: int) -> Datapoint:
        return self._load(position, np.empty)

    def name_of(self, index: int) -> str:
        return self.files[index]

    def _file(self, position: int) -> str | RemoteFile:
        file = self.files[position]
        if not (self.is_remote and is_url(file)):
            return file
        return remote_file(file, "" if self.versions is None else self.versions[position])

    def _load(self, position: int, allocate: Allocate) -> Datapoint:
        try:
            if self.reader is None:
                component = self.files[position]
            else:
                component = self.reader(self._file(position), allocate)
        except FormatError as error:
            first, ds = "pass decode=False and use ", "ds"
            if self.labels is None:
                first, ds = "use ", "DataFromList([[file] for file in files])"
            fix = f"{first}MapDataComponent({ds}, {_DECODING}) to skip bad files"
            error.fix = "; ".join(filter(None, [error.fix, fix]))
            raise
        return [component] if self.labels is None else (component, int(self.labels[position]))
