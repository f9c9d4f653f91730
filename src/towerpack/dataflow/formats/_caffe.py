"""Caffe's images: LMDB records that are `Datum` messages."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import FormatError
from towerpack.dataflow._opening import PathLike, reading
from towerpack.dataflow.formats._lmdb import Keys, LMDBData, LMDBDataDecoder
from towerpack.dataflow.formats._protobuf import (
    BYTES,
    FIXED32,
    fields,
    packed_floats,
    signed,
)
from towerpack.dataflow.stages._mapping import Limit, OnError

_CHANNELS, _HEIGHT, _WIDTH, _DATA, _LABEL, _FLOATS, _ENCODED = range(1, 8)
_FIELDS: Final = range(1, 8)
_INTEGERS: Final = (_CHANNELS, _HEIGHT, _WIDTH, _LABEL, _ENCODED)


class CaffeLMDB(LMDBDataDecoder):
    """Images and labels from an LMDB database as Caffe's `convert_imageset` writes it.

    Datapoints are `[image, label]`: [height, width, channels], uint8, in the order of channels in
    which they are stored, which with Caffe is BGR; and an `int`. JPEGs and PNGs (`encoded` records)
    are decoded. Records of floats give float32.

    Contract: order, length, randomness and resuming as `LMDBData`; thread- and fork-safe.

    Args:
        path: The file, or the directory that has it as `data.mdb`.
        shuffle: Give every pass another order.
        keys: As for `LMDBData`.
        seed: For the shuffle alone; by default the run's.
        on_error: What a record does that is no image: "raise" a `MapError`, or "skip" it.
        max_errors: As for `MapData`.

    Raises:
        ConfigError: There is no such file.
        FormatError: It is no LMDB file, or a damaged one.
    """

    def __init__(
        self,
        path: PathLike,
        shuffle: bool = True,
        keys: Keys | None = None,
        *,
        seed: int | None = None,
        on_error: OnError = "raise",
        max_errors: Limit = None,
    ) -> None:
        records = LMDBData(path, shuffle, keys, seed=seed)
        super().__init__(records, decode_datum, on_error=on_error, max_errors=max_errors)


def decode_datum(key: bytes, value: bytes) -> list[Any]:
    """Image and label of a Caffe `Datum`.

    Args:
        key: For messages.
        value: The message.

    Raises:
        FormatError: It is none, or its image is damaged.
    """
    name = f"The record {key!r:.80}"
    with reading(name, "Caffe's Datum"):
        numbers, data, values = _parsed(value)
    if numbers.get(_ENCODED):
        return [_decoded(data, numbers.get(_CHANNELS), name), numbers.get(_LABEL, 0)]
    shape = tuple(numbers.get(field, 0) for field in (_CHANNELS, _HEIGHT, _WIDTH))
    flat = np.frombuffer(data, np.uint8) if len(data) else values
    if min(shape) < 1 or shape[0] * shape[1] * shape[2] != len(flat):
        raise FormatError(
            f"{name} is no image: its size does not fit its content.",
            got=f"{len(flat):,} values",
            expected=f"{shape[0]} channels x {shape[1]} x {shape[2]}",
            fix="the record was written wrongly or damaged; write it again",
        )
    img = np.ascontiguousarray(flat.reshape(shape).transpose(1, 2, 0))
    return [img if img.flags.writeable else img.copy(), numbers.get(_LABEL, 0)]


def _parsed(value: bytes) -> tuple[dict[int, int], memoryview, NDArray[np.float32]]:
    """The numbers of a datum by their fields, its bytes, and its floats."""
    numbers: dict[int, int] = {}
    data = memoryview(b"")
    parts: list[NDArray[np.float32]] = []
    for field, kind, content in fields(memoryview(value)):
        if field in _INTEGERS and isinstance(content, int):
            numbers[field] = signed(content)
        elif field == _DATA and kind == BYTES and not isinstance(content, int):
            data = content
        elif field == _FLOATS and kind in (BYTES, FIXED32) and not isinstance(content, int):
            parts.append(packed_floats(content))
        elif field in _FIELDS:
            raise ValueError(f"field {field} is of wire type {kind}")
    return numbers, data, np.concatenate(parts) if parts else np.zeros(0, np.float32)


def _decoded(data: memoryview, channels: int | None, name: str) -> NDArray[np.uint8]:
    from towerpack.dataflow.images import decode_image

    return decode_image(data, rgb=False, channels=1 if channels == 1 else 3, name=name)
