"""Files and folders of data, told by their content and name."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from towerpack._core.errors import ConfigError

if TYPE_CHECKING:
    from towerpack.dataflow import DataFlow

_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
_TAR_MAGIC = slice(257, 262)
_LMDB_MAGIC = slice(16, 20)
_PACKED_MAGIC = b"TPW\x02"


def open_data(path: Path) -> DataFlow:
    """The flow over a file or folder of a format that Towerpack reads, in order.

    Raises:
        ConfigError: Nothing tells what it holds.
    """
    start = b""
    if path.is_file():
        with open(path, "rb") as file:
            start = file.read(512)
    for kind in _KINDS:
        if kind.matches(path, start):
            return kind.open(path)
    raise ConfigError(
        f"Nothing tells what {path} holds.",
        got=_seen(path, start),
        expected=", ".join(kind.name for kind in _KINDS),
        fix="write a function that returns its DataFlow, and name that: file.py:function",
    )


def _seen(path: Path, start: bytes) -> str:
    if path.is_dir():
        return "a folder without folders and images"
    return f"a file that begins with {start[:8]!r}" if start else "an empty file"


@dataclass(frozen=True)
class _Kind:
    name: str
    matches: Callable[[Path, bytes], bool]
    open: Callable[[Path], DataFlow]


def _named(*suffixes: str) -> Callable[[Path, bytes], bool]:
    return lambda path, start: path.is_file() and path.name.lower().endswith(suffixes)


def _begins(*magics: bytes) -> Callable[[Path, bytes], bool]:
    return lambda path, start: start.startswith(magics)


def _is_lmdb(path: Path, start: bytes) -> bool:
    if path.is_dir():
        return (path / "data.mdb").is_file()
    return start[_LMDB_MAGIC] == b"\xde\xc0\xef\xbe"


def _is_tar(path: Path, start: bytes) -> bool:
    return (
        start[_TAR_MAGIC] == b"ustar"
        or _named(".tar", ".tgz", ".txz")(path, start)
        or ".tar." in path.name
    )


def _has_folders(path: Path, start: bytes) -> bool:
    return path.is_dir() and any(child.is_dir() for child in path.iterdir())


def _has_images(path: Path, start: bytes) -> bool:
    return path.is_dir() and bool(_images_in(path))


def _images_in(folder: Path) -> list[Path]:
    return sorted(
        path
        for path in folder.iterdir()
        if path.name.lower().endswith(_IMAGES) and not path.name.startswith(".")
    )


def _lmdb(path: Path) -> DataFlow:
    from towerpack.dataflow.formats import LMDBData, LMDBSerializer

    ds = LMDBData(path, shuffle=False)
    # What a serializer wrote is shown as it was before.
    for _, value in itertools.islice(ds, 1):
        if value.startswith(_PACKED_MAGIC):
            return LMDBSerializer.load(path, shuffle=False)
    return ds


def _tfrecord(path: Path) -> DataFlow:
    from towerpack.dataflow import MapData
    from towerpack.dataflow.formats import TFRecordData, TFRecordSerializer

    ds = TFRecordData(path)
    for (record,) in itertools.islice(ds, 1):
        if record.startswith(_PACKED_MAGIC):
            return TFRecordSerializer.load(path)
        if _is_example(record):
            return MapData(ds, _features_of)
    return ds


def _is_example(record: bytes) -> bool:
    from towerpack._core.errors import FormatError
    from towerpack.dataflow.formats import parse_example

    try:
        return bool(parse_example(record))
    except FormatError:
        return False


def _features_of(datapoint: list[bytes]) -> dict[str, Any]:
    from towerpack.dataflow.formats import parse_example

    return parse_example(datapoint[0])


def _hdf5(path: Path) -> DataFlow:
    from towerpack.dataflow.formats import HDF5Data
    from towerpack.dataflow.formats._hdf5 import data_sets_of

    return HDF5Data(path, data_sets_of(path), shuffle=False)


def _csv(path: Path) -> DataFlow:
    from towerpack.dataflow import ImageCSV

    return ImageCSV(path)


def _flow(name: str, **options: Any) -> Callable[[Path], DataFlow]:
    from towerpack import dataflow

    return lambda path: getattr(dataflow, name)(path, **options)


def _images(path: Path) -> DataFlow:
    from towerpack.dataflow import ImageFromFile

    return ImageFromFile(_images_in(path) if path.is_dir() else [path])


_KINDS = (
    _Kind("LMDB", _is_lmdb, _lmdb),
    _Kind("HDF5", _begins(b"\x89HDF\r\n\x1a\n"), _hdf5),
    _Kind("NumPy", _begins(b"\x93NUMPY", b"PK\x03\x04"), _flow("NumpyData")),
    _Kind("Parquet", _begins(b"PAR1"), _flow("ParquetData")),
    _Kind("TFRecord", _named(".tfrecord", ".tfrecords"), _tfrecord),
    _Kind("tar", _is_tar, _flow("TarData", decode=True)),
    _Kind("SVMLight", _named(".svm", ".svmlight", ".libsvm"), _flow("SVMLightData", shuffle=False)),
    _Kind("CSV of images", _named(".csv"), _csv),
    _Kind("image", _named(*_IMAGES), _images),
    _Kind("folder of folders of images", _has_folders, _flow("ImageFolder")),
    _Kind("folder of images", _has_images, _images),
)
