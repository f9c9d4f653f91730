"""Limits on idle connections, which HTTP servers in Python leave open."""

from __future__ import annotations

import asyncio
import sys
from typing import Any, cast

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from towerpack.serving._gate import Limits


class Connection(cast("type[Any]", AutoHTTPProtocol)):
    """Connection to one client.

    The server closes the connection if no request has arrived within `limits.request_s` seconds of
    the connection's start or of the request's first byte. If `most` connections are open, each
    new connection closes the one that has sent nothing for the longest time.
    """

    def __init__(self, limits: Limits, most: int, **options: Any) -> None:
        super().__init__(**options)
        self._limits, self._most = limits, most
        self._timer: asyncio.TimerHandle | None = None
        self._aborted = False
        self._since = 0.0

    def connection_made(self, transport: Any) -> None:
        """Start the time limit, and make room if too many connections are open."""
        super().connection_made(transport)
        self._watch()
        others = [each for each in self.connections if not each._aborted]
        if len(others) > self._most:
            # This connection is among them: it is closed if all others are being answered.
            silent = [each for each in others if each.idle or each.cycle.more_body]
            min(silent, key=lambda each: each._since).abort()

    def data_received(self, data: bytes) -> None:
        """Start the time limit at the first bytes of a request, and end it with the last header."""
        super().data_received(data)
        self._watch()

    def connection_lost(self, error: Exception | None) -> None:
        """End the time limit."""
        super().connection_lost(error)
        if self._timer is not None:
            self._timer.cancel()

    @property
    def idle(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def abort(self) -> None:
        """Close the connection, even if the client does not read what was sent."""
        self._aborted = True
        self.transport.abort()

    def _watch(self) -> None:
        self._since = self.loop.time()
        if self.idle and self._timer is None:
            self._timer = self.loop.call_later(self._limits.request_s, self._end)
        elif not self.idle and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end(self) -> None:
        if self.idle:
            self.abort()


def most_connections(limits: Limits) -> int:
    """Return how many connections fit into half of the files that this process may open."""
    if sys.platform == "win32":
        return limits.connections
    import resource

    none = resource.RLIM_INFINITY
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * limits.connections if hard == none else min(2 * limits.connections, hard)
    if soft != none and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return min(limits.connections, max(soft, wanted) // 2)
