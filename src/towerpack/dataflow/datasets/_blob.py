"""Caffe's BlobProto: an array in a protocol buffer, with which mean images are stored."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from towerpack.dataflow._opening import reading

# Fields of the message (caffe.proto) and types of the wire.
_CHANNELS, _HEIGHT, _WIDTH, _DATA = 2, 3, 4, 5
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LARGEST = 64 << 20
_LONGEST_VARINT = 10


def read_blob(path: Path, *, channels: int) -> NDArray[np.float32]:
    """The array [channels, height, width] in a file.

    Raises:
        FormatError: The file is damaged, or has another number of channels.
    """
    with reading(path, "a mean image of Caffe's"), open(path, "rb") as file:
        data = file.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise ValueError(f"it has more than {_LARGEST:,} bytes")
        sizes, values = _fields(data)
        shape = tuple(sizes.get(field, 0) for field in (_CHANNELS, _HEIGHT, _WIDTH))
        if shape[0] != channels:
            raise ValueError(f"an array of shape {list(shape)}")
        return values.reshape(shape)


def _fields(data: bytes) -> tuple[dict[int, int], NDArray[np.float32]]:
    """Numbers by field, and the values. Packed or one by one: both are allowed."""
    sizes: dict[int, int] = {}
    packed: list[bytes] = []
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        field, kind = tag >> 3, tag & 7
        if kind == _VARINT:
            sizes[field], at = _varint(data, at)
            continue
        length = {_FIXED32: 4, _FIXED64: 8}.get(kind)
        if kind == _BYTES:
            length, at = _varint(data, at)
        if length is None or at + length > len(data):
            raise ValueError(f"field {field} is cut off, or of unknown type {kind}")
        if field == _DATA and kind in (_BYTES, _FIXED32):
            packed.append(data[at : at + length])
        at += length
    return sizes, np.frombuffer(b"".join(packed), "<f4").astype(np.float32)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(_LONGEST_VARINT):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number of more than ten bytes")
