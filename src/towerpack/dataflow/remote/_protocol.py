"""Messages and sockets of producers and consumers.

Producers have DEALER sockets and the consumer a ROUTER socket. They work like PUSH and PULL, with a
limit of waiting messages for each producer, but the consumer can acknowledge the end.

A message has a header and the frames of its kind. Nothing is pickled or evaluated, and all lengths
are checked.

    DATA     a list of datapoints, packed by `towerpack.dataflow.formats.pack_frames`
    END      the passes of the producer are over
    ERROR    type, text and traceback of an exception that the producer's flow raised

A *run* is one call of `send_dataflow_zmq`, identified by 8 random bytes. Its datapoints are
numbered from 0, so that a consumer notices missing datapoints.
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
from towerpack.dataflow.remote._keys import Keys, set_keys

LONGEST_NAME: Final = 200
_MAGIC: Final = b"TPDF\x05"
_HEADER: Final = struct.Struct("<5sBxx8sQ")

SLICE_S: Final = 0.1  # period in which a waiting side checks whether it was closed
REPORT_S: Final = 30.0  # period in which a waiting side logs a message
_ADDRESS: Final = re.compile(
    r"(ipc|inproc)://.+|tcp://(?P<host>\[[^\[\]]+\]|[^\[\]:;]+):(?P<port>\d+)"
)
_LOOPBACK: Final = re.compile(r"localhost|127(\.\d{1,3}){3}|\[::1\]")
# libzmq detects by heartbeats that a machine has disappeared.
_HEARTBEAT_MS: Final = 2_000
_LINGER_MS: Final = 1_000
# The kernel frees the address of a killed process after some time.
_BIND_PATIENCE_S: Final = 2.0


class Kind(enum.IntEnum):
    DATA = 1
    END = 2
    ERROR = 3


class Message(NamedTuple):
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
        raise FormatError("The message has another version of the protocol.")
    _, kind, run, number = _HEADER.unpack_from(head)
    try:
        name = head[_HEADER.size :].decode()
        return Message(Kind(kind), run, number, name, frames[1:])
    except ValueError as error:
        raise FormatError(f"The header of the message is damaged: {error}.") from error


@contextlib.contextmanager
def socket_at(
    kind: str, *addresses: str, bind: bool, keys: Keys, hwm: int, max_nbytes: int = -1
) -> Generator[Any]:
    """Open a ZeroMQ socket with up to `hwm` waiting messages and frames of up to `max_nbytes`."""
    for address in addresses:
        check_address(address, keys)
    zmq: Any = require("zmq", extra="remote", needed_for="Remote data")
    # `inproc://` addresses exist within a context.
    shared = any(address.startswith("inproc://") for address in addresses)
    context = zmq.Context.instance() if shared else zmq.Context()
    socket = context.socket(getattr(zmq, kind))
    authenticator: Any = None
    try:
        socket.linger = _LINGER_MS
        socket.set_hwm(hwm)
        socket.maxmsgsize = max_nbytes
        socket.heartbeat_ivl = _HEARTBEAT_MS
        socket.ipv6 = any("[" in address for address in addresses)
        if keys is not None:
            authenticator = set_keys(socket, keys, bind=bind)
        for address in addresses:
            if bind:
                _bind(socket, address)
            else:
                socket.connect(address)
        yield socket
    finally:
        socket.close()
        if authenticator is not None:
            authenticator.stop()
        if not shared:
            context.term()


def _bind(socket: Any, address: str) -> None:
    zmq: Any = require("zmq", extra="remote", needed_for="Remote data")
    scheme, _, path = address.partition("://")
    # ZeroMQ would delete an existing file.
    if scheme == "ipc" and os.path.exists(path) and not stat.S_ISSOCK(os.stat(path).st_mode):
        raise ConfigError(f"The address {address} must not be an existing file or folder.")
    until = time.monotonic() + _BIND_PATIENCE_S
    while True:
        try:
            socket.bind(address)
            return
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE or time.monotonic() > until:
                what = f"Cannot listen at {address}: {error.strerror}."
                raise DataFlowError(what) from error
        time.sleep(SLICE_S)


def check_address(address: str, keys: Keys) -> None:
    match = _ADDRESS.fullmatch(str(address))
    if match is None or not 0 < int(match["port"] or 1) < 1 << 16:
        raise ConfigError(
            f"{address!r} is not an address for remote data.",
            expected="tcp://host:port with a port in 1..65535, ipc://path or inproc://name",
        )
    if keys is None and match["host"] and not _LOOPBACK.fullmatch(match["host"]):
        raise ConfigError(
            f"The address {address} needs keys=, because other machines can reach it.",
            fix="create keys with `towerpack data keys FOLDER`, copy them to both sides and pass "
            "keys=FOLDER; or use tcp://127.0.0.1",
        )
