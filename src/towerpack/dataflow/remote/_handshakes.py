"""Connections as they are made, or cannot be: what the monitors of sockets tell.

Where the other side does not know this side's key, or only one of the two has keys, libzmq gives up
the address for good, without a word. Here it is said, and the address is connected again, so that
it is enough to mend the keys at the other end.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from towerpack._core.extras import require
from towerpack._core.logs import get_logger
from towerpack.dataflow.remote._seldom import Seldom

log = get_logger(__name__)

_AGAIN_S: Final = 1.0
# A side that is ended while it shakes hands leaves one such event; other keys some in a second.
_FEW: Final = 3
_ENDED_WITH_KEYS: Final = "the other side has another key than server.key says, or has none"
_ENDED_WITHOUT: Final = "the other side ended it; it may have keys, and this side has none"


@dataclass
class _Watched:
    monitor: Any
    socket: Any
    address: str
    ended: int = 0
    again_s: float | None = None


class Handshakes:
    """Watches the sockets of one side.

    Args:
        bind: They are bound rather than connected.
        keys: They have keys.
        clock: Seconds that pass.
    """

    def __init__(
        self, *, bind: bool, keys: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._zmq: Any = require("zmq", extra="remote", needed_for="Remote data")
        self._parse: Any = require(
            "zmq.utils.monitor", extra="remote", needed_for="Remote data"
        ).parse_monitor_message
        self._bind = bind
        self._keys = keys
        self._clock = clock
        self._watched: list[_Watched] = []
        self._seldom = Seldom(log, clock)

    def watch(self, socket: Any, address: str) -> Any:
        """Watch a socket that is about to be bound or connected.

        Returns:
            A socket to poll: there is something to `heed` if it is readable.
        """
        zmq = self._zmq
        # (PROBE_ROUTER tells of the first connection only; with IMMEDIATE of all, but then what
        # came last before a connection ends is dropped.)
        monitor = socket.get_monitor_socket(
            zmq.EVENT_HANDSHAKE_SUCCEEDED
            | zmq.EVENT_HANDSHAKE_FAILED_AUTH
            | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        )
        self._watched.append(_Watched(monitor, socket, address))
        return monitor

    def heed(self) -> bool:
        """Take note of what has happened, and connect again what libzmq has given up.

        Returns:
            Whether a connection was made.
        """
        made = False
        for watched in self._watched:
            while (event := self._event(watched.monitor)) is not None:
                made = self._heed(watched, event) or made
            if watched.again_s is not None and self._clock() >= watched.again_s:
                watched.again_s = None
                watched.socket.disconnect(watched.address)
                watched.socket.connect(watched.address)
        return made

    def close(self) -> None:
        """Watch no more."""
        for watched in self._watched:
            watched.socket.disable_monitor()
            watched.monitor.close(linger=0)
        self._watched = []

    def _event(self, monitor: Any) -> dict[str, Any] | None:
        try:
            return self._parse(monitor.recv_multipart(self._zmq.NOBLOCK))
        except self._zmq.Again:
            return None

    def _heed(self, watched: _Watched, event: dict[str, Any]) -> bool:
        zmq = self._zmq
        if event["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            watched.ended = 0
            return True
        if event["event"] == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
            watched.ended += 1
            if watched.ended >= _FEW and not self._bind:
                self._tell(watched, _ENDED_WITH_KEYS if self._keys else _ENDED_WITHOUT)
            return False
        if not self._bind and watched.again_s is None:
            watched.again_s = self._clock() + _AGAIN_S
        self._tell(watched, self._cause(event))
        return False

    def _cause(self, event: dict[str, Any]) -> str:
        zmq = self._zmq
        if event["event"] == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            if self._bind:
                return "it has a key that is not in allowed/, which is read when a pass begins"
            return "this side's key is not in allowed/ of the side that binds it"
        if event["value"] == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH:
            return "one side has keys and the other has none"
        if event["value"] == zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC:
            return "server.key of the side that connects is not the key of the side that binds it"
        return f"the other end does not keep to ZeroMQ's protocol ({event['value']!r})"

    def _tell(self, watched: _Watched, why: str) -> None:
        text = f"{watched.address}: a connection was refused: {why}"
        self._seldom.warn(text, text)
