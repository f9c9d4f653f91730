"""Protocol buffers' wire format: just enough for messages that are read and written by hand.

Nothing is believed: a length is compared with what is left before anything is taken.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

import numpy as np
from numpy.typing import NDArray

VARINT: Final = 0
FIXED64: Final = 1
BYTES: Final = 2
FIXED32: Final = 5

_MASK64: Final = (1 << 64) - 1
_LONGEST_VARINT: Final = 10
_FIXED_BYTES: Final = {FIXED64: 8, FIXED32: 4}


def fields(data: memoryview) -> Generator[tuple[int, int, int | memoryview]]:
    """The fields of a message: number, wire type, and an unsigned integer or the field's bytes.

    Numbers of fixed size that are repeated, each with its own tag, come together as if packed.

    Raises:
        ValueError: The bytes are no message.
    """
    at, end = 0, len(data)
    while at < end:
        start = at
        tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if not 0 < number < 1 << 29:
            raise ValueError(f"there is no field {number}")
        if kind == VARINT:
            value, at = _varint(data, at)
            yield number, kind, value
        elif kind == BYTES:
            nbytes, at = _varint(data, at)
            _check_left(number, nbytes, end - at)
            yield number, kind, data[at : at + nbytes]
            at += nbytes
        elif kind in _FIXED_BYTES:
            _check_left(number, _FIXED_BYTES[kind], end - at)
            run = _repeated(data, start, at - start, _FIXED_BYTES[kind])
            yield number, kind, memoryview(run[:, at - start :].tobytes())
            at = start + run.size
        else:
            raise ValueError(f"field {number} is of wire type {kind}")


def _check_left(number: int, nbytes: int, left: int) -> None:
    if nbytes > left:
        raise ValueError(f"field {number} claims {nbytes:,} bytes where {left:,} are left")


def _repeated(data: memoryview, start: int, tag_bytes: int, nbytes: int) -> NDArray[np.uint8]:
    """Tags and values from `start` on, one in each row, as long as the tag stays the same."""
    width = tag_bytes + nbytes
    rows = np.frombuffer(data[start : len(data) - (len(data) - start) % width], np.uint8)
    rows = rows.reshape(-1, width)
    count, block = 1, 16
    # Blocks that grow: to compare all that is left, each time, could take for ever.
    while count < len(rows):
        same = (rows[count : count + block, :tag_bytes] == rows[0, :tag_bytes]).all(axis=1)
        if not same.all():
            return rows[: count + int(same.argmin())]
        count += len(same)
        block *= 2
    return rows


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """An integer of 1 to 10 bytes, and where it ends."""
    value = 0
    for shift in range(0, 7 * _LONGEST_VARINT, 7):
        if at >= len(data):
            raise ValueError("it ends within a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK64, at
    raise ValueError("a number has no end")


def signed(value: int) -> int:
    """An int32 or int64 of the unsigned integer that it is stored as."""
    return value - (1 << 64) if value >> 63 else value


def packed_varints(data: memoryview) -> NDArray[np.int64]:
    """Many signed integers, one after another.

    Raises:
        ValueError: The bytes are no integers.
    """
    raw = np.frombuffer(data, np.uint8)
    if len(raw) == 0 or raw.max() < 0x80:
        return raw.astype(np.int64)
    ends = np.flatnonzero(raw < 0x80)
    if len(ends) == 0 or ends[-1] != len(raw) - 1:
        raise ValueError("it ends within a number")
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if lengths.max() > _LONGEST_VARINT:
        raise ValueError("a number has no end")
    values = np.zeros(len(ends), np.uint64)
    for byte in range(int(lengths.max())):
        longer = np.flatnonzero(lengths > byte)
        parts = (raw[starts[longer] + byte] & 0x7F).astype(np.uint64)
        values[longer] |= parts << np.uint64(7 * byte)
    return values.view(np.int64)


def pack_varints(values: NDArray[np.int64]) -> bytes:
    """What `packed_varints` reads."""
    shifts = 7 * np.arange(_LONGEST_VARINT, dtype=np.uint64)
    rest = values.view(np.uint64)[:, None] >> shifts
    more = rest > 0x7F
    needed = np.concatenate((np.ones((len(values), 1), bool), more[:, :-1]), axis=1)
    return ((rest & 0x7F).astype(np.uint8) | more.astype(np.uint8) << 7)[needed].tobytes()


def packed_floats(data: memoryview) -> NDArray[np.float32]:
    """Many floats, one after another; an array of its own memory.

    Raises:
        ValueError: The bytes are no floats.
    """
    return np.frombuffer(data, "<f4").astype(np.float32)


def varint(value: int) -> bytes:
    """An integer as it is stored."""
    value &= _MASK64
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def bytes_field(number: int, value: bytes) -> bytes:
    """A field with bytes in it: a string, a message, a packed list."""
    return varint(number << 3 | BYTES) + varint(len(value)) + value
