"""Messages between producers and a consumer, and the sockets that they pass through.

Producers have DEALER sockets and the consumer a ROUTER: they do what PUSH and PULL do, each
producer waiting when its own messages are too many, and the consumer can answer that it has heard
an end.

A message has a header, then what a kind needs. Nothing is pickled or evaluated, and no length is
believed: what does not fit is a `FormatError`.

    DATA     a datapoint, as `towerpack.dataflow.formats.pack_frames` makes it
    GROUP    a list of small ones, as `pack` makes it
    END      the producer's passes are over
    ERROR    its flow raised: the exception's type, text and traceback

A *run* is one call of `send_dataflow_zmq`, named by 8 random bytes. Its datapoints are numbered
from 0 on, so that a consumer knows what is missing.
"""

from __future__ import annotations

import contextlib
import enum
import ipaddress
import os
import re
import stat
import struct
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from towerpack._core.errors import ConfigError, DataFlowError, FormatError
from towerpack._core.extras import require
from towerpack.dataflow.remote._keys import Keys, give_keys

LONGEST_NAME: Final = 200
_MAGIC: Final = b"TPDF"
_VERSION: Final = 4
_HEADER: Final = struct.Struct("<4sBBxx8sQ")
_FRAMES: Final = 1 << 16

SLICE_S: Final = 0.1
"""How long one wait lasts, after which signals are handled and other threads heard."""
REPORT_S: Final = 30.0
"""How often whoever waits says so."""
_ADDRESS: Final = re.compile(
    r"(ipc|inproc)://.+|tcp://(?P<host>\[[^\[\]]+\]|[^\[\]:;]+):(?P<port>\d+)"
)
# libzmq notices by its own heartbeats that a machine is gone without a word.
_HEARTBEAT_MS: Final = 2_000
_RECONNECT_MS, _RECONNECT_MAX_MS = 50, 1_000
_LINGER_MS: Final = 1_000
# The address of a process that was killed is free when the kernel has cleaned up after it.
_BIND_PATIENCE_S: Final = 2.0


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
    """Read the frames of a message, which may come from anybody."""
    head = bytes(frames[0][: _HEADER.size + LONGEST_NAME + 1])
    if len(head) <= _HEADER.size or len(frames) > _FRAMES or not head.startswith(_MAGIC):
        raise FormatError("This is no message of remote data.")
    _, version, kind, run, number = _HEADER.unpack_from(head)
    if version != _VERSION:
        raise FormatError(
            f"The other side speaks version {version} of the protocol.",
            expected=f"version {_VERSION}",
        )
    try:
        name = head[_HEADER.size :].decode()
        return Message(Kind(kind), run, number, name, frames[1:])
    except ValueError as error:
        raise FormatError(f"A damaged message of remote data: {error}.") from error


class Socket:
    """One end of connections; `raw` is ZeroMQ's. For one thread at a time, in one process.

    `hwm` messages may wait, for each peer; one that announces a longer frame than `max_nbytes` is
    disconnected.
    """

    def __init__(
        self, kind: str, *addresses: str, bind: bool, keys: Keys, hwm: int, max_nbytes: int = -1
    ) -> None:
        for address in addresses:
            check_address(address, keys)
        self.zmq: Any = require("zmq", extra="remote", needed_for="Remote data")
        self._pid = os.getpid()
        # `inproc://` addresses exist within a context.
        shared = any(address.startswith("inproc://") for address in addresses)
        self._own = None if shared else self.zmq.Context()
        context = self.zmq.Context.instance() if self._own is None else self._own
        self.raw: Any = context.socket(getattr(self.zmq, kind))
        self._door: Any = None
        self.raw.linger = 0
        self.raw.set_hwm(hwm)
        self.raw.maxmsgsize = max_nbytes
        self.raw.heartbeat_ivl = _HEARTBEAT_MS
        self.raw.reconnect_ivl = _RECONNECT_MS
        self.raw.reconnect_ivl_max = _RECONNECT_MAX_MS
        self.raw.ipv6 = any("[" in address for address in addresses)
        try:
            if keys is not None:
                self._door = give_keys(self.raw, keys, bind=bind)
            for address in addresses:
                if bind:
                    self._bind(address)
                else:
                    self.raw.connect(address)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close it; what was sent last has a second to leave."""
        if os.getpid() != self._pid or self.raw.closed:  # a fork's sockets are its parent's
            return
        self.raw.close(linger=_LINGER_MS)
        if self._door is not None:
            self._door.stop()
        if self._own is not None:
            self._own.term()

    def _bind(self, address: str) -> None:
        _check_free(address)
        until = time.monotonic() + _BIND_PATIENCE_S
        while True:
            try:
                self.raw.bind(address)
                return
            except self.zmq.ZMQError as error:
                if error.errno != self.zmq.EADDRINUSE or time.monotonic() > until:
                    what = f"Nobody can listen at {address}: {error.strerror}."
                    raise DataFlowError(what) from error
            time.sleep(SLICE_S)


def check_address(address: str, keys: Keys) -> None:
    """Refuse malformed addresses, and without keys those that other machines can reach."""
    match = _ADDRESS.fullmatch(str(address))
    if match is None or not 0 < int(match["port"] or 1) < 1 << 16:
        raise ConfigError(
            f"{address!r} is not an address of remote data.",
            expected="tcp://host:port with a port in 1..65535, ipc://path or inproc://name",
        )
    if keys is None and match["host"] and not _is_loopback(match["host"]):
        raise ConfigError(
            f"{address} can be reached from other machines, and there are no keys.",
            expected="keys for everything but ipc://, inproc:// and tcp://127.0.0.1",
            fix="make keys (towerpack data keys FOLDER), copy them to both sides, and pass "
            "keys=FOLDER; or use tcp://127.0.0.1",
        )


def _is_loopback(host: str) -> bool:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host == "localhost"


def _check_free(address: str) -> None:
    """Refuse a path where a file is: ZeroMQ would delete it."""
    scheme, _, path = address.partition("://")
    if scheme == "ipc" and os.path.exists(path) and not stat.S_ISSOCK(os.stat(path).st_mode):
        raise ConfigError(f"{address} is a file or folder, and no socket.")
