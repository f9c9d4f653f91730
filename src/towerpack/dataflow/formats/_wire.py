"""Datapoints as bytes and back, without pickle: what files and remote data are made of.

A message is a header and the raw memory of everything large in the datapoint:

    "TPW" 1 | number of codes | bytes of values | codes | values (a msgpack array) | memory ...

The *codes*, one letter for each value of the datapoint from the outside in, say what is there; the
*values*, all of them numbers, strings or `None`, say the rest. Nothing is nested in the bytes, so
that every length can be compared with what is really there before anything is allocated for it.

A message is either one piece of bytes, where memory lies at multiples of 16, or a list of frames.
"""

from __future__ import annotations

import importlib
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, Final

from towerpack._core.errors import ConfigError, FormatError
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow.formats._wire_tree import Buffer, Reader, Writer

_MAGIC: Final = b"TPW\x01"
_PREFIX: Final = struct.Struct("<4sII")
_ALIGNMENT: Final = 16


def pack(datapoint: Datapoint) -> bytes:
    """A datapoint as one piece of bytes.

    Takes tuples, lists, dicts, `None`, bool, int (up to 64 bits), float, str, bytes, NumPy scalars
    and arrays of them, in any nesting, and gives back exactly these types.

    Raises:
        ConfigError: Something in it is of another type.
    """
    return pack_all([take_apart(datapoint)])


def pack_frames(datapoint: Datapoint) -> list[Buffer]:
    """A datapoint as a header and the raw memory of its larger components, which is not copied.

    Raises:
        ConfigError: Something in it is of a type that `pack` does not take.
    """
    return frames_of(take_apart(datapoint))


def take_apart(datapoint: Datapoint) -> Writer:
    """The first half of `pack` and `pack_frames`; `pack_all` and `frames_of` are the second.

    Raises:
        ConfigError: Something in it is of a type that `pack` does not take.
    """
    writer = Writer()
    writer.add(datapoint, 0)
    return writer


def frames_of(datapoint: Writer) -> list[Buffer]:
    """The second half of `pack_frames`."""
    return [_head(datapoint.codes, datapoint.values), *datapoint.frames]


def pack_all(datapoints: Sequence[Writer]) -> bytes:
    """Several datapoints in one piece, for `unpack_all`; it costs little more than one."""
    codes = b"".join([writer.codes for writer in datapoints])
    parts: list[Buffer] = [_head(codes, [v for writer in datapoints for v in writer.values])]
    for writer in datapoints:
        for frame in writer.frames:
            parts += (bytes(-len(parts[-1]) % _ALIGNMENT), frame)
    return b"".join(parts)


def _head(codes: Buffer, values: list[Any]) -> bytes:
    packed = _packed(values)
    if max(len(codes), len(packed)) >= 1 << 32:
        raise ConfigError("A datapoint with 4 GB of small values cannot be packed.")
    return _PREFIX.pack(_MAGIC, len(codes), len(packed)) + codes + packed


def unpack(data: Buffer, *, copy: bool = False) -> Datapoint:
    """The datapoint that `pack` made these bytes of.

    Args:
        data: Whole, and nothing after it.
        copy: Give larger arrays memory of their own. Otherwise they are views of `data`, and can
            be written to if `data` can.

    Raises:
        FormatError: The bytes are damaged, or something else.
    """
    return unpack_all(data, 1, copy=copy)[0]


def unpack_all(data: Buffer, count: int, *, copy: bool = False) -> list[Datapoint]:
    """The so many datapoints of which `pack_all` made these bytes; the rest as `unpack`."""
    view = memoryview(data).cast("B")
    at = 0

    def take(nbytes: int) -> memoryview:
        nonlocal at
        start = at + -at % _ALIGNMENT
        if nbytes > len(view) - start:
            raise ValueError(f"{nbytes:,} bytes are missing from byte {start:,} on")
        at = start + nbytes
        return view[start:at]

    with damages():
        reader, at = _start(view, take, copy)
        datapoints = reader.whole(count)
        if at != len(view):
            raise ValueError(f"{len(view) - at:,} bytes are left over")
    return datapoints


def unpack_frames(frames: Sequence[Buffer], *, copy: bool = False) -> Datapoint:
    """The datapoint that `pack_frames` made these frames of; arguments and errors as `unpack`."""
    rest = iter(frames)

    def take(nbytes: int) -> memoryview:
        view = memoryview(next(rest)).cast("B")
        if len(view) != nbytes:
            raise ValueError(f"a frame of {len(view):,} bytes instead of {nbytes:,}")
        return view

    with damages():
        header = memoryview(next(rest)).cast("B")
        reader, end = _start(header, take, copy)
        (datapoint,) = reader.whole(1)
        if end != len(header) or next(rest, None) is not None:
            raise ValueError("bytes are left over")
    return datapoint


def _start(view: memoryview, take: Callable[[int], memoryview], copy: bool) -> tuple[Reader, int]:
    """A reader of what begins here, and where its header ends."""
    magic, num_codes, nbytes = _PREFIX.unpack_from(view)
    if magic != _MAGIC:
        same = magic[:3] == _MAGIC[:3]
        raise ValueError(f"version {magic[3]} is not known" if same else "it does not begin as one")
    codes_end = _PREFIX.size + num_codes
    end = codes_end + nbytes
    if end > len(view):
        raise ValueError(f"a header of {end:,} bytes in {len(view):,}")
    codes = bytes(view[_PREFIX.size : codes_end])
    return Reader(codes, _unpacked(view[codes_end:end]), take, copy), end


@cache
def _msgpack() -> Any:
    return importlib.import_module("msgpack")


def _packed(values: list[Any]) -> bytes:
    return _msgpack().packb(values, unicode_errors="surrogatepass")


def _unpacked(raw: memoryview) -> Iterator[Any]:
    """The values one after another; lists and maps among them are an error.

    `msgpack.unpackb` would allocate what nested lists claim to hold before it reads them.
    """
    nbytes = max(1, len(raw))
    unpacker = _msgpack().Unpacker(
        read_size=nbytes,
        max_buffer_size=nbytes,
        max_array_len=0,
        max_map_len=0,
        max_ext_len=0,
        unicode_errors="surrogatepass",
    )
    unpacker.feed(raw)
    try:
        unpacker.read_array_header()
    except _msgpack().OutOfData as error:
        raise ValueError("it has no values") from error
    return unpacker


# What wrong bytes lead to: ours are ValueErrors, as are most of msgpack's and NumPy's.
_DAMAGE: Final = (
    ValueError,
    TypeError,
    IndexError,
    StopIteration,
    OverflowError,
    struct.error,
)


class damages:  # noqa: N801 - a context manager, as those of contextlib
    """What wrong bytes lead to becomes a `FormatError`."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if isinstance(error, _DAMAGE):
            ends = isinstance(error, (StopIteration, IndexError))
            reason = "it ends too soon" if ends else str(error)
            raise FormatError(
                f"This is no packed datapoint, or a damaged one: {reason}.",
                fix="it was cut off, changed, or written by something else; make it again",
            ) from error
