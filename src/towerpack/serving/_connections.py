from __future__ import annotations

import math
import sys
from typing import Any, cast

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from towerpack.serving.gate import Limits

_MOST_HEADER_BYTES = 64 << 10
_MOST_PIPELINED = 100
_LEAST_BYTES_PER_S = 1024
_CALLS_ON_BODY = hasattr(AutoHTTPProtocol, "on_body")


class Connection(cast("type[Any]", AutoHTTPProtocol)):
    """Connection to a client, with limits on time, header size and number of connections.

    A request whose headers take longer than `limits.request_s`, or whose headers and trailers
    exceed 64 KiB, closes the connection. So does a client that reads less than 1 KiB/s of a
    response in this time. If more than `most` connections are open, a new one closes the connection
    that has waited longest.
    """

    def __init__(self, limits: Limits, most: int, **options: Any) -> None:
        super().__init__(**options)
        self._seconds, self._most = limits.request_s, most
        self._header_bytes = 0
        self._has_body = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # A response is over when the client has read it, as far as the kernel does not hold it.
        transport.set_write_buffer_limits(high=0)
        self._unread = math.inf
        self._since = self.loop.time()
        self.loop.call_later(self._seconds, self._check)
        others = [each for each in self.connections if not each.transport.is_closing()]
        if len(others) > self._most:
            # This connection waits, too, so the list is never empty.
            waiting = [each for each in others if each._waits]
            min(waiting, key=lambda each: each._since).transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.timeout_keep_alive_task is not None:
            self._since = self.loop.time()
        super().data_received(data)
        in_body = self.cycle is not None and self.cycle.more_body
        # httptools stores trailers without a limit. h11, which has no `on_body`, limits them.
        in_headers = _CALLS_ON_BODY and not self._has_body if in_body else self._idle
        self._has_body = False
        self._header_bytes = self._header_bytes + len(data) if in_headers else 0
        if self._header_bytes > _MOST_HEADER_BYTES:  # uvicorn has no limit
            self.transport.abort()

    def pause_writing(self) -> None:
        """Start the time limit for the client to read."""
        super().pause_writing()
        self._since, self._unread = self.loop.time(), math.inf

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _MOST_PIPELINED:  # uvicorn would keep them all in memory
            self.transport.abort()
            raise ValueError("too many pipelined requests")  # ends the parsing
        super().on_message_begin()

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        self._has_body = True

    @property
    def _idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    @property
    def _waits(self) -> bool:
        return self._idle or self.cycle.more_body or self.flow.write_paused

    def _check(self) -> None:
        before, unread = self._unread, self.transport.get_write_buffer_size()
        self._unread = unread
        # While uvicorn's timer runs, no byte of the next request has arrived.
        sends_nothing = self._idle and self.timeout_keep_alive_task is None
        if unread:
            late = unread > before - _LEAST_BYTES_PER_S * self._seconds
        else:
            late = sends_nothing and self.loop.time() - self._since >= self._seconds
        if late:
            self.transport.abort()
        elif unread or not self.transport.is_closing():
            self.loop.call_later(self._seconds, self._check)


def most_connections(limits: Limits) -> int:
    """Return the maximum number of connections, at most half of the process's open-file limit."""
    if sys.platform == "win32":
        return limits.connections
    import resource

    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(limits.connections, files // 2) if files >= 0 else limits.connections
