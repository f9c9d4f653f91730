"""Sockets: where messages come from and go to, without waiting.

The side that binds has ROUTER sockets, which know who is at the other end and tell when he is gone;
the sides that connect have DEALER sockets. Which side produces makes no difference here.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack._core.extras import require
from towerpack.dataflow.remote._address import Keys, check_address, check_free
from towerpack.dataflow.remote._handshakes import Handshakes
from towerpack.dataflow.remote._interrupts import keep_lost_interrupts, raise_lost_interrupt
from towerpack.dataflow.remote._keys import Doorkeeper, client_keys, server_keys

# libzmq notices by its own heartbeats that a machine is gone without a word.
_HEARTBEAT_MS: Final = 2_000
_HEARTBEAT_TIMEOUT_MS: Final = 10_000
_RECONNECT_MS: Final = 50
_RECONNECT_MAX_MS: Final = 100
# Beside datapoints, of which credit allows `hwm`, there are only small messages.
_SPARE: Final = 16
# The address of a consumer that was killed is free when the kernel has cleaned up after it.
_BIND_PATIENCE_S: Final = 2.0


class Route(NamedTuple):
    """Where a message came from: which socket, and who at its other end (empty: the only one)."""

    link: int
    peer: bytes


class GoneError(Exception):
    """Nobody is at the other end of a route any more. Internal."""


class Post:
    """The sockets of one side. Use from one thread at a time, and in the process that made it.

    Args:
        addresses: What to bind or connect, checked.
        bind: Bind them rather than connect.
        keys: For encryption; needed for addresses that other machines reach.
        hwm: Datapoints that may wait in each direction, for each peer.
        max_nbytes: A peer that announces a longer frame is disconnected.

    Attributes:
        connected: A connection of this side's was made, perhaps anew. Who asks sets it back.
    """

    def __init__(
        self, addresses: Sequence[str], *, bind: bool, keys: Keys, hwm: int, max_nbytes: int
    ) -> None:
        self._zmq: Any = require("zmq", extra="remote", needed_for="Remote data")
        self.bind = bind
        self.connected = False
        self._pid = os.getpid()
        self._limits = (hwm + _SPARE, max_nbytes)
        self._own: Any = self._zmq.Context()
        self._poller: Any = self._zmq.Poller()
        self._links: list[Any] = []
        self._handshakes = Handshakes(bind=bind, keys=keys is not None)
        self._door: Doorkeeper | None = None
        self._turn = 0
        keep_lost_interrupts()
        try:
            self._prepare_keys(keys)
            for address in addresses:
                check_address(address, keys)
                self._open(address)
        except BaseException:
            self.close(linger_s=0)
            raise

    @property
    def refused(self) -> int:
        """How many connections had no allowed key."""
        return self._door.refused if self._door is not None else 0

    def routes(self) -> list[Route]:
        """Routes that exist before anything was received: those of sides that connect."""
        return [] if self.bind else [Route(link, b"") for link in range(len(self._links))]

    def receive(self) -> tuple[Route, list[memoryview]] | None:
        """The frames of a message that has arrived, from each socket in turn."""
        raise_lost_interrupt()
        for _ in self._links:
            self._turn = (self._turn + 1) % len(self._links)
            try:
                frames = self._links[self._turn].recv_multipart(self._zmq.NOBLOCK, copy=False)
            except self._zmq.Again:
                continue
            views = [frame.buffer for frame in frames]
            peer = bytes(views.pop(0)) if self.bind else b""
            return Route(self._turn, peer), views
        return None

    def send(self, route: Route, frames: Sequence[Any]) -> bool:
        """Send without waiting; False if the peer takes no more at present.

        Raises:
            GoneError: Nobody is there any more. Only sides that bind can know.
        """
        parts = [route.peer, *frames] if self.bind else list(frames)
        try:
            self._links[route.link].send_multipart(parts, self._zmq.NOBLOCK, copy=False)
        except self._zmq.Again:
            return False
        except self._zmq.ZMQError as error:
            if error.errno != self._zmq.EHOSTUNREACH:
                raise
            raise GoneError from error
        return True

    def keep(self, data: Any) -> Any:
        """Copy a buffer into memory of libzmq's, which sending it then shares: any number of times.

        (To send other memory without a copy, pyzmq would run a thread that keeps it alive.)
        """
        return self._zmq.Frame(data, copy=True)

    def wait(self, seconds: float) -> None:
        """Wait until something arrives, at most so long; let in who may come in."""
        raise_lost_interrupt()
        self._poller.poll(max(1, int(seconds * 1000)))
        self.admit()

    def admit(self) -> None:
        """Let in who waits and may come in, and take note of connections."""
        if self._door is not None:
            self._door.answer()
        if self._handshakes.heed() and not self.bind:
            self.connected = True

    def close(self, *, linger_s: float = 1.0) -> None:
        """Close the sockets; what was sent gets so long to leave."""
        if os.getpid() != self._pid:
            return  # a fork's copy: the sockets are the parent's
        self._handshakes.close()
        for link in self._links:
            link.close(linger=int(linger_s * 1000))
        self._links = []
        if self._door is not None:
            self._door.socket.close()
            self._door = None
        self._own.term()

    def _prepare_keys(self, keys: Keys) -> None:
        self._server = self._client = None
        if keys is not None and self.bind:
            self._server = server_keys(keys)
            self._door = Doorkeeper(self._own, self._server.allowed)
            self._poller.register(self._door.socket, self._zmq.POLLIN)
        elif keys is not None:
            self._client = client_keys(keys)

    def _open(self, address: str) -> None:
        # The two ends of inproc:// must share a context.
        shared = address.startswith("inproc://")
        context = self._zmq.Context.instance() if shared else self._own
        socket = context.socket(self._zmq.ROUTER if self.bind else self._zmq.DEALER)
        self._links.append(socket)
        socket.rcvhwm = socket.sndhwm = self._limits[0]
        socket.maxmsgsize = self._limits[1]
        socket.heartbeat_ivl = _HEARTBEAT_MS
        socket.heartbeat_timeout = _HEARTBEAT_TIMEOUT_MS
        socket.reconnect_ivl = _RECONNECT_MS
        socket.reconnect_ivl_max = _RECONNECT_MAX_MS
        socket.ipv6 = "[" in address
        if self._server is not None:
            socket.curve_server = True
            socket.curve_publickey, socket.curve_secretkey = (
                self._server.public,
                self._server.secret,
            )
            socket.zap_domain = b"towerpack"
        if self._client is not None:
            socket.curve_publickey = self._client.public
            socket.curve_secretkey = self._client.secret
            socket.curve_serverkey = self._client.server
        if self.bind:
            socket.router_mandatory = True
        if not shared:  # inproc:// has no handshakes
            self._poller.register(self._handshakes.watch(socket, address), self._zmq.POLLIN)
        self._attach(socket, address)
        self._poller.register(socket, self._zmq.POLLIN)

    def _attach(self, socket: Any, address: str) -> None:
        deadline = time.monotonic() + _BIND_PATIENCE_S
        while True:
            try:
                if self.bind:
                    check_free(address)
                socket.bind(address) if self.bind else socket.connect(address)
            except (self._zmq.ZMQError, OSError) as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                    raise _cannot_open(address, error) from error
            else:
                return
            time.sleep(0.05)


def _cannot_open(address: str, error: Any) -> DataFlowError | ConfigError:
    if error.errno == errno.EADDRINUSE:
        return DataFlowError(
            f"{address} is in use.",
            fix="end the process that has it, close the other pass over it, or take another port",
        )
    return ConfigError(
        f"{address} cannot be opened: {error}.",
        fix="for ipc:// the folder must exist, and the path be shorter than 100 characters",
    )
