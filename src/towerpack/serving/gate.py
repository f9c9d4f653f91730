"""What every request passes: the token, the limits of bodies, the count of answers."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
import time
from dataclasses import dataclass

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from towerpack._core.errors import RequestError
from towerpack._core.logs import get_logger

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_OPEN = ("/", "/healthz", "/readyz")  # the page says nothing of the model before it has the token
_LONGEST = 1000  # characters of a path; Python reads no integer of more than 4,300 digits
_HEADERS = {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": "1"}}


@dataclass(frozen=True)
class Limits:
    """What a server takes at most; what is beyond is refused with the status in parentheses.

    Attributes:
        batch: Rows that the model computes at once; a request of more is computed in parts.
        waiting: Requests that wait for the model (429).
        body_bytes: Of one request (413).
        held_bytes: Of all requests that are being received or computed (429).
        pixels: Of one picture, as its header says, all frames counted (400).
        request_pixels: Of all pictures of a request (400).
        connections: Open at once (`serve` only). If more come, the one that has been idle longest
            is closed.
        request_s: Seconds for the headers of a request to arrive (`serve` only). Then the
            connection is closed.
    """

    batch: int = 32
    waiting: int = 1024
    body_bytes: int = 16 << 20
    held_bytes: int = 512 << 20
    pixels: int = 50_000_000
    request_pixels: int = 200_000_000
    connections: int = 1000
    request_s: float = 20.0


class Metrics:
    """The measures of one server for Prometheus; kinds of requests are 'predict' and 'other'."""

    def __init__(self) -> None:
        self.registry = to = CollectorRegistry()
        sizes = [2**power for power in range(9)]
        self.requests = Counter("towerpack_requests", "Answered.", ["kind", "status"], registry=to)
        self.seconds = Histogram("towerpack_request_seconds", "To answer.", ["kind"], registry=to)
        self.batch = Histogram("towerpack_batch_rows", "At once.", buckets=sizes, registry=to)
        self.waiting = Gauge("towerpack_waiting", "Calls that wait for the model.", registry=to)
        self.version = Gauge("towerpack_version", "The one that is served.", registry=to)
        ProcessCollector(registry=to)


class Gate:
    """ASGI middleware that refuses before a body is read what can be refused then."""

    def __init__(
        self,
        app: ASGIApp,
        token: str | None,
        limits: Limits,
        metrics: Metrics,
        local: bool,
    ) -> None:
        self._app, self._limits, self._metrics = app, limits, metrics
        self._local = local
        self._token = None if token is None else f"Bearer {token}".encode()
        self._held = 0  # bytes of all bodies

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        began, path, headers = time.perf_counter(), scope["path"], Headers(scope=scope)
        unread = "content-length" in headers or "transfer-encoding" in headers
        size = status = 0

        async def counted() -> Message:
            nonlocal size, unread
            message = await receive()
            unread, got = message.get("more_body", False), len(message.get("body", b""))
            size, self._held = size + got, self._held + got
            self._check_size(size)
            if self._held > self._limits.held_bytes:
                raise RequestError("The server holds too many bodies.", status=429)
            return message

        async def told(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if unread:
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            elif unread:
                # Many clients read no answer before they have sent all: drop it for a while.
                message["more_body"] = True
                await send(message)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(2):
                        while (await receive()).get("more_body"):
                            pass
                message = {"type": "http.response.body"}
            await send(message)

        try:
            self._check(path, headers)
            await self._app(scope, counted, told)
        except RequestError as error:
            await error_response(error.what, error.status)(scope, receive, told)
        except Exception:  # noqa: BLE001
            get_logger(__name__).exception("%a failed", path)
            await error_response("The server failed; its log tells why.", 500)(scope, receive, told)
        finally:
            self._held -= size
            kind = "predict" if path.endswith(":predict") else "other"
            self._metrics.requests.labels(kind, status).inc()
            self._metrics.seconds.labels(kind).observe(time.perf_counter() - began)

    def _check(self, path: str, headers: Headers) -> None:
        given = headers.get("authorization", "").encode("latin-1")
        if self._token and path not in _OPEN and not secrets.compare_digest(given, self._token):
            raise RequestError("A token is needed: Authorization: Bearer TOKEN.", status=401)
        if not self._token:
            self._check_origin(headers.get("host", "localhost"), headers.get("origin"))
        if headers.get("content-encoding", "identity") != "identity":
            raise RequestError("Bodies are taken uncompressed only.", status=415)
        if len(path) > _LONGEST:  # such as a version of 5,000 digits
            raise RequestError(f"A path has at most {_LONGEST} characters.", status=404)
        self._check_size(int(headers.get("content-length", "0")[:18]))

    def _check_origin(self, host: str, origin: str | None) -> None:
        """Refuse what a page of another site makes a browser send, under its own name too."""
        if origin is not None and origin.rpartition("//")[2] != host:
            what = "Without a token, requests from pages of other sites are not answered."
            raise RequestError(what, status=403)
        name = re.sub(r":\d*$", "", host).strip("[]").lower()
        if self._local and name not in LOOPBACK:
            what = f"Without a token, only requests to localhost are answered, not to {host!a}."
            raise RequestError(what, status=403)

    def _check_size(self, size: int) -> None:
        if size > (most := self._limits.body_bytes):
            raise RequestError(f"The body is larger than {most} bytes.", status=413)


def error_response(what: str, status: int) -> Response:
    """An error in TensorFlow Serving's form."""
    body = orjson.dumps({"error": what})
    return Response(body, status, _HEADERS.get(status), media_type="application/json")
