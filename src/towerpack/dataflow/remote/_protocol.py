"""The messages between producers and a consumer.

Every message is a header of 40 bytes and the frames that belong to its kind:

    HELLO    producer  who it is, until it is started                         frames: facts
    DATA     producer  datapoint `number` of a session             frames: state, datapoint...
    GROUP    producer  `limit` small datapoints from `number` on  frames: all, perhaps last's state
    END      producer  the stream ended before `number`
    ERROR    producer  the flow raised at `number`                            frames: facts
    BEAT     producer  it lives, and has sent all before `number`; `limit` answers a LOOK
    LOOK     consumer  who is there? (`session` is the consumer's name, `number` a riddle)
    START    consumer  produce from `number` on, up to `limit`                frames: facts
    ACK      consumer  all before `number` has arrived; go on up to `limit`
    RESEND   consumer  as ACK, and send again from `number` on
    STOP     consumer  the session is over
    REFUSE   consumer  no, and why (a bound producer says it too)             frames: facts

A *session* is one stream from one producer to one consumer, named by 16 random bytes. In a session
END and ERROR have numbers as datapoints have. Any message may be lost, repeated, or come late:
numbers say what is new, BEAT and ACK are repeated, and a START that has come before is an ACK.

*Facts* are a msgpack map. Nothing here is pickled, and nothing is believed: sizes and types are
checked, and what does not fit is a `FormatError`.
"""

from __future__ import annotations

import enum
import importlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast

from towerpack._core.errors import FormatError

VERSION: Final = 2
GROUP_NBYTES: Final = 1 << 17
"""What a GROUP's datapoints may have."""
NOBODY: Final = bytes(16)
_MAGIC: Final = b"TPDF"
_HEADER: Final = struct.Struct("<4sBBxx16sQQ")
_MOST_FACTS: Final = 1 << 26
_MOST_FRAMES: Final = 1 << 16

T = TypeVar("T")


class Kind(enum.IntEnum):
    """What a message says; the module's text explains each."""

    HELLO = 1
    DATA = 2
    END = 3
    ERROR = 4
    BEAT = 5
    LOOK = 6
    START = 7
    ACK = 8
    RESEND = 9
    STOP = 10
    REFUSE = 11
    GROUP = 12


_KINDS: Final = {kind.value: kind for kind in Kind}  # much quicker than Kind(value)
# How many frames each has besides the header.
_FRAMES: Final = {
    Kind.HELLO: (1, 1),
    Kind.ERROR: (1, 1),
    Kind.START: (1, 1),
    Kind.REFUSE: (1, 1),
    Kind.GROUP: (1, 2),
    Kind.DATA: (2, _MOST_FRAMES),
}


@dataclass(frozen=True, slots=True)
class Message:
    """A message that has the form of one."""

    kind: Kind
    session: bytes
    number: int
    limit: int
    frames: Sequence[Any]

    def fact(self, name: str, kind: type[T], most: int = 1 << 20) -> T:
        """One of the facts.

        Raises:
            FormatError: It is missing, of another type, or longer or larger than `most`.
        """
        value = self.facts().get(name)
        if type(value) is not kind:
            raise FormatError(
                f"A {self.kind.name} message lacks {name!r}.",
                got=type(value).__name__,
                expected=kind.__name__,
            )
        size = len(value) if isinstance(value, str | bytes) else abs(cast("int", value))
        if size > most:
            raise FormatError(f"{name!r} of a {self.kind.name} message is too large.")
        return value

    def facts(self) -> Mapping[str, Any]:
        """What the message says besides its numbers."""
        if len(self.frames) != 1 or len(self.frames[0]) > _MOST_FACTS:
            raise FormatError(f"A {self.kind.name} message has one frame, of limited size.")
        facts = unpacked(self.frames[0])
        if not isinstance(facts, dict):
            raise FormatError(f"The facts of a {self.kind.name} message are no map.")
        return cast("Mapping[str, Any]", facts)


def unpacked(raw: bytes | memoryview) -> object:
    """What msgpack has packed, from anybody.

    `unpackb` allocates what every list claims to hold, nested ones too, before it reads them. So
    the bytes are read once without making anything of them.

    Raises:
        FormatError: The bytes are damaged, or hold less than they claim.
    """
    msgpack: Any = importlib.import_module("msgpack")
    nbytes = max(1, len(raw))
    unpacker = msgpack.Unpacker(read_size=nbytes, max_buffer_size=nbytes)
    try:
        unpacker.feed(raw)
        unpacker.skip()
        return msgpack.unpackb(raw, strict_map_key=False)
    except (ValueError, TypeError, msgpack.OutOfData) as error:
        # msgpack's other errors are ValueErrors; a list as a key is a TypeError.
        raise FormatError(f"Damaged msgpack: {error}.") from error


def header(kind: Kind, session: bytes = NOBODY, number: int = 0, limit: int = 0) -> bytes:
    """The first frame of a message."""
    return _HEADER.pack(_MAGIC, VERSION, kind, session, number, limit)


def with_facts(head: bytes, facts: Mapping[str, Any]) -> list[bytes]:
    """A message that says more than its numbers."""
    msgpack: Any = importlib.import_module("msgpack")
    return [head, msgpack.packb(facts)]


class VersionError(FormatError):
    """A message of another version of this protocol. Internal."""


def parse(frames: Sequence[Any]) -> Message:
    """Read the frames of a message, which may come from anybody.

    Args:
        frames: Bytes-like.

    Raises:
        FormatError: It is no message of this protocol.
    """
    if not 0 < len(frames) <= _MOST_FRAMES or len(frames[0]) != _HEADER.size:
        raise FormatError("This is no message of remote data.")
    magic, version, kind, session, number, limit = _HEADER.unpack(frames[0])
    if magic != _MAGIC:
        raise FormatError("This is no message of remote data.")
    if version != VERSION:
        raise VersionError(
            f"The other side speaks version {version} of the protocol.",
            expected=f"version {VERSION}",
            fix="run the same version of Towerpack on both sides",
        )
    kind = _KINDS.get(kind)
    if kind is None:
        raise FormatError("There is no message of this kind.")
    count = len(frames) - 1
    least, most = _FRAMES.get(kind, (0, 0))
    if not least <= count <= most:
        raise FormatError(f"A {kind.name} message does not have {count} frames.")
    return Message(kind, session, number, limit, frames[1:])
