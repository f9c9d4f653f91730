"""Messages between producers and a consumer, and the sockets that they pass through.

Producers have DEALER sockets and the consumer a ROUTER: they do what PUSH and PULL do, each
producer waiting when its own messages are too many, and the consumer can answer that it has heard
an end.

A message has a header, then what a kind needs. Nothing is pickled or evaluated, and no length is
believed: what does not fit is a `FormatError`.

    DATA     a list of datapoints, as `towerpack.dataflow.formats.pack_frames` makes it
    END      the producer's passes are over
    ERROR    its flow raised: the exception's type, text and traceback

A *run* is one call of `send_dataflow_zmq`, named by 8 random bytes. Its datapoints are numbered
from 0 on, so that a consumer knows what is missing.
"""

from __future__ import annotations

import contextlib
import enum
import os
import re
import stat
import struct
import time
from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple

from towerpack._core.errors import ConfigError, DataFlowError, FormatError
from towerpack._core.extras import require
from towerpack.dataflow.remote._keys import Keys, give_keys

LONGEST_NAME: Final = 200
_MAGIC: Final = b"TPDF\x05"
_HEADER: Final = struct.Struct("<5sBxx8sQ")

SLICE_S: Final = 0.1  # of a wait, after which other threads are heard
REPORT_S: Final = 30.0  # between two messages of whoever waits
_ADDRESS: Final = re.compile(
    r"(ipc|inproc)://.+|tcp://(?P<host>\[[^\[\]]+\]|[^\[\]:;]+):(?P<port>\d+)"
)
_LOOPBACK: Final = re.compile(r"localhost|127(\.\d{1,3}){3}|\[::1\]")
# libzmq notices by its own heartbeats that a machine is gone without a word.
_HEARTBEAT_MS: Final = 2_000
_LINGER_MS: Final = 1_000
# The address of a process that was killed is free when the kernel has cleaned up after it.
_BIND_PATIENCE_S: Final = 2.0


class Kind(enum.IntEnum):
    """What a message holds."""

    DATA = 1
    END = 2
    ERROR = 3


class Message(NamedTuple):
    """A message whose header is right."""

    kind: Kind
    run: bytes
    number: int
    name: str
    frames: Sequence[Any]


def header(kind: Kind, run: bytes, number: int, name: bytes) -> bytes:
    return _HEADER.pack(_MAGIC, kind, run, number) + name


def parse(frames: Sequence[Any]) -> Message:
    head = bytes(frames[0][: _HEADER.size + LONGEST_NAME + 1])
    if len(head) <= _HEADER.size or not head.startswith(_MAGIC):
        raise FormatError("This is no message of remote data, or one of another version.")
    _, kind, run, number = _HEADER.unpack_from(head)
    try:
        name = head[_HEADER.size :].decode()
        return Message(Kind(kind), run, number, name, frames[1:])
    except ValueError as error:
        raise FormatError(f"A damaged message of remote data: {error}.") from error


@contextlib.contextmanager
def socket_at(
    kind: str, *addresses: str, bind: bool, keys: Keys, hwm: int, max_nbytes: int = -1
) -> Generator[Any]:
    """Lend a ZeroMQ socket: `hwm` messages may wait, longer frames than `max_nbytes` disconnect."""
    for address in addresses:
        check_address(address, keys)
    zmq: Any = require("zmq", extra="remote", needed_for="Remote data")
    # `inproc://` addresses exist within a context.
    shared = any(address.startswith("inproc://") for address in addresses)
    context = zmq.Context.instance() if shared else zmq.Context()
    socket = context.socket(getattr(zmq, kind))
    door: Any = None
    try:
        socket.linger = _LINGER_MS
        socket.set_hwm(hwm)
        socket.maxmsgsize = max_nbytes
        socket.heartbeat_ivl = _HEARTBEAT_MS
        socket.ipv6 = any("[" in address for address in addresses)
        if keys is not None:
            door = give_keys(socket, keys, bind=bind)
        for address in addresses:
            if bind:
                _bind(socket, address)
            else:
                socket.connect(address)
        yield socket
    finally:
        socket.close()
        if door is not None:
            door.stop()
        if not shared:
            context.term()


def _bind(socket: Any, address: str) -> None:
    zmq: Any = require("zmq", extra="remote", needed_for="Remote data")
    scheme, _, path = address.partition("://")
    # ZeroMQ would delete a file that is there.
    if scheme == "ipc" and os.path.exists(path) and not stat.S_ISSOCK(os.stat(path).st_mode):
        raise ConfigError(f"{address} is a file or folder, and no socket.")
    until = time.monotonic() + _BIND_PATIENCE_S
    while True:
        try:
            socket.bind(address)
            return
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE or time.monotonic() > until:
                what = f"Nobody can listen at {address}: {error.strerror}."
                raise DataFlowError(what) from error
        time.sleep(SLICE_S)


def check_address(address: str, keys: Keys) -> None:
    match = _ADDRESS.fullmatch(str(address))
    if match is None or not 0 < int(match["port"] or 1) < 1 << 16:
        raise ConfigError(
            f"{address!r} is not an address of remote data.",
            expected="tcp://host:port with a port in 1..65535, ipc://path or inproc://name",
        )
    if keys is None and match["host"] and not _LOOPBACK.fullmatch(match["host"]):
        raise ConfigError(
            f"{address} can be reached from other machines, and there are no keys.",
            expected="keys for everything but ipc://, inproc:// and tcp://127.0.0.1",
            fix="make keys (towerpack data keys FOLDER), copy them to both sides, and pass "
            "keys=FOLDER; or use tcp://127.0.0.1",
        )
