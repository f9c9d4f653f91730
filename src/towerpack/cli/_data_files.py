from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from towerpack._core.errors import ConfigError, FormatError

if TYPE_CHECKING:
    from towerpack.dataflow import DataFlow

_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff")
_TAR_MAGIC = slice(257, 262)
_LMDB_MAGIC = slice(16, 20)
_PACKED_MAGIC = b"TPW\x02"


def open_data(path: Path) -> DataFlow:
    """Return an unshuffled dataflow over the data in a file or folder."""
    start = b""
    if path.is_file():
        with open(path, "rb") as file:
            start = file.read(512)
    for matches, open_kind in _KINDS.values():
        if matches(path, start):
            return open_kind(path)
    got = f"a file that begins with {start[:8]!r}" if start else "an empty file"
    raise ConfigError(
        f"{path} has no known data format.",
        got="a folder without folders and images" if path.is_dir() else got,
        expected=", ".join(_KINDS),
        fix="write a function that returns a DataFlow, and pass file.py:function",
    )


def open_url(url: str) -> DataFlow:
    """Return an unshuffled dataflow over a URL, or over the files that match it."""
    endings = {"tar": "tar", "tfrecord": "TFRecord", "tfrecords": "TFRecord", "parquet": "Parquet"}
    ending = url.partition("?")[0].rpartition(".")[2].lower()
    kind = "CSV of images" if ending == "csv" else endings.get(ending)
    return _KINDS[kind or "folder of folders of images"][1](url)


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


def _images_in(folder: Path) -> list[Path]:
    shown = [path for path in folder.iterdir() if not path.name.startswith(".")]
    return sorted(path for path in shown if path.name.lower().endswith(_IMAGES))


def _lmdb(path: Path) -> DataFlow:
    from towerpack.dataflow.formats import LMDBData, LMDBSerializer

    ds = LMDBData(path, shuffle=False)
    # If a serializer wrote the file, show its datapoints instead of bytes.
    for _, value in itertools.islice(ds, 1):
        if value.startswith(_PACKED_MAGIC):
            return LMDBSerializer.load(path, shuffle=False)
    return ds


def _tfrecord(path: Path | str) -> DataFlow:
    from towerpack.dataflow import MapData
    from towerpack.dataflow.formats import TFRecordData, TFRecordSerializer, parse_example

    ds = TFRecordData(path)
    for (record,) in itertools.islice(ds, 1):
        if record.startswith(_PACKED_MAGIC):
            return TFRecordSerializer.load(path)
        with contextlib.suppress(FormatError):
            if parse_example(record):
                return MapData(ds, _features_of)
    return ds


def _features_of(datapoint: list[bytes]) -> dict[str, Any]:
    from towerpack.dataflow.formats import parse_example

    return parse_example(datapoint[0])


def _hdf5(path: Path) -> DataFlow:
    from towerpack.dataflow.formats import HDF5Data
    from towerpack.dataflow.formats._hdf5 import data_sets_of

    return HDF5Data(path, data_sets_of(path), shuffle=False)


def _flow(name: str, **options: Any) -> Callable[[Path], DataFlow]:
    from towerpack import dataflow

    return lambda path: getattr(dataflow, name)(path, **options)


def _images(path: Path) -> DataFlow:
    from towerpack.dataflow import ImageFromFile

    return ImageFromFile(_images_in(path) if path.is_dir() else [path])


_KINDS: dict[str, tuple[Callable[[Path, bytes], bool], Callable[[Any], DataFlow]]] = {
    "LMDB": (_is_lmdb, _lmdb),
    "HDF5": (_begins(b"\x89HDF\r\n\x1a\n"), _hdf5),
    "NumPy": (_begins(b"\x93NUMPY", b"PK\x03\x04"), _flow("NumpyData")),
    "Parquet": (_begins(b"PAR1"), _flow("ParquetData")),
    "TFRecord": (_named(".tfrecord", ".tfrecords"), _tfrecord),
    "tar": (_is_tar, _flow("TarData", decode=True)),
    "SVMLight": (_named(".svm", ".svmlight", ".libsvm"), _flow("SVMLightData", shuffle=False)),
    "CSV of images": (_named(".csv"), _flow("ImageCSV")),
    "image": (_named(*_IMAGES), _images),
    "folder of folders of images": (_has_folders, _flow("ImageFolder")),
    "folder of images": (lambda path, _: path.is_dir() and bool(_images_in(path)), _images),
}
