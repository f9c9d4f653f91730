"""Readers of file formats of data sets: IDX, MAT, Caffe's mean images, boxes of PASCAL VOC.

All readers raise `FormatError` for damaged files and unexpected contents.
"""

from __future__ import annotations

import gzip
import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import FormatError
from towerpack._core.extras import require
from towerpack.dataflow._user_files import Strings, check_expansion, reading
from towerpack.dataflow.formats._protobuf import message_class

_UINT8 = 8
_LARGEST_BLOB = 64 << 20
_LARGEST_XML = 1 << 20


def read_idx(path: Path, *, num_axes: int) -> NDArray[np.uint8]:
    """Read a uint8 array from an IDX file (the format of MNIST), which may be gzipped."""
    with open(path, "rb") as file:
        compressed = file.read(2) == b"\x1f\x8b"
    with (gzip.open if compressed else open)(path, "rb") as content, reading(path, "an IDX file"):
        magic, *shape = struct.unpack(f">{1 + num_axes}I", content.read(4 * (1 + num_axes)))
        if magic != _UINT8 << 8 | num_axes:
            raise ValueError(f"it has other contents than uint8 with {num_axes} axes")
        nbytes = math.prod(shape)
        check_expansion(nbytes, path.stat().st_size, "the array", path)
        data = content.read(nbytes + 1)
        return np.frombuffer(data, np.uint8).reshape(shape)


def read_mat(path: Path, names: Sequence[str], *, kinds: str = "biuf") -> list[NDArray[Any]]:
    """Read the variables of a MAT-file (up to version 7) whose NumPy dtype kind is in `kinds`."""
    io: Any = require("scipy.io", extra="datasets", needed_for=path.name)
    with open(path, "rb") as file, reading(path, "a MAT-file"):
        try:
            variables = io.loadmat(file, variable_names=names)
        except MemoryError as error:
            raise ValueError("it claims more than fits into memory") from error
        for name in names:
            if name not in variables or variables[name].dtype.kind not in kinds:
                raise ValueError(f"the variable {name!r} is missing, or has another type")
        return [variables[name] for name in names]


def read_blob(path: Path, *, channels: int) -> NDArray[np.float32]:
    """Read an array [channels, height, width] from a `BlobProto` file of Caffe."""
    blob_class = message_class("BlobProto")
    with reading(path, "a mean image of Caffe"), open(path, "rb") as file:
        blob = blob_class.FromString(file.read(_LARGEST_BLOB))
        if blob.channels != channels:
            raise ValueError(f"it has {blob.channels} channels, not {channels}")
        return np.array(blob.data, np.float32).reshape(channels, blob.height, blob.width)


def read_first_box(path: Path) -> NDArray[np.float32]:
    """Read the box `[x0, y0, x1, y1]` in pixels of the first object in XML of PASCAL VOC."""
    with open(path, "rb") as file:
        data = file.read(_LARGEST_XML)
    with reading(path, "an annotation"):
        # XML is dangerous only because of entities, which document types declare.
        if b"<!DOCTYPE" in data:
            raise ValueError("it declares a document type, which annotations do not need")
        box = ElementTree.fromstring(data).find("object/bndbox")  # noqa: S314 - see above
        corners = [] if box is None else [box.findtext(c) for c in ("xmin", "ymin", "xmax", "ymax")]
        if box is None or None in corners:
            raise ValueError("it has no box")
        values = np.array(corners).astype(np.float32)
        if not np.isfinite(values).all():
            raise ValueError(f"the box is {corners}")
        return values


def read_lines(path: Path) -> list[str]:
    """Read the lines of a text file without empty lines. There must be at least one."""
    with reading(path, "a list"):
        text = path.read_bytes().decode("utf-8", "surrogateescape")
        lines = [line.strip() for line in text.split("\n") if line.strip()]
        if not lines:
            raise ValueError("it is empty")
    return lines


def inner_names(path: Path, names: Sequence[str]) -> Strings:
    """Check and return file names. Raise `FormatError` if a name points outside its folder."""
    for name in names:
        if ".." in name or name.startswith("/") or "\0" in name:
            what = f"{path} lists the file {name!r:.200}, which is outside of the folder."
            raise FormatError(what)
    return Strings(names)
