"""Messages between producers and a consumer.

A message has a header, then what a kind needs. Nothing is pickled or evaluated, and no length is
believed: what does not fit is a `FormatError`.

    DATA     a datapoint, as `towerpack.dataflow.formats.pack_frames` makes it
    GROUP    a list of small ones, as `pack` makes it
    END      the producer's passes are over
    ERROR    its flow raised: a msgpack map with type, what and traceback

A *run* is one call of `send_dataflow_zmq`, named by 8 random bytes. Its datapoints are numbered
from 0 on, so that a consumer knows what is missing.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from towerpack._core.errors import FormatError

LONGEST_NAME: Final = 200
_MAGIC: Final = b"TPDF"
_VERSION: Final = 3
_HEADER: Final = struct.Struct("<4sBBxx8sQ")
_FRAMES: Final = 1 << 16


class Kind(enum.IntEnum):
    """What a message holds."""

    DATA = 1
    END = 2
    ERROR = 3
    GROUP = 4


class Message(NamedTuple):
    """A message whose header is right."""

    kind: Kind
    run: bytes
    number: int
    name: str
    frames: Sequence[Any]


def header(kind: Kind, run: bytes, number: int, name: bytes) -> bytes:
    """The first frame of a message."""
    return _HEADER.pack(_MAGIC, _VERSION, kind, run, number) + name


def parse(frames: Sequence[Any]) -> Message:
    """Read the frames of a message, which may come from anybody.

    Raises:
        FormatError: It is no message of this protocol.
    """
    head = bytes(frames[0][: _HEADER.size + LONGEST_NAME + 1])
    if len(head) <= _HEADER.size or len(frames) > _FRAMES:
        raise FormatError("This is no message of remote data.")
    magic, version, kind, run, number = _HEADER.unpack_from(head)
    if magic != _MAGIC:
        raise FormatError("This is no message of remote data.")
    if version != _VERSION:
        raise FormatError(
            f"The other side speaks version {version} of the protocol.",
            expected=f"version {_VERSION}",
            fix="run the same version of Towerpack on both sides",
        )
    try:
        name = head[_HEADER.size :].decode()
        return Message(Kind(kind), run, number, name, frames[1:])
    except ValueError as error:
        raise FormatError(f"A damaged message of remote data: {error}.") from error
