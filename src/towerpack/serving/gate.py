"""Middleware for all requests: access control, request limits, and metrics."""

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

from towerpack._core.errors import RequestError, shortened
from towerpack._core.logs import get_logger

LOOPBACK = ("127.0.0.1", "::1", "localhost")
_OPEN = ("/", "/healthz", "/readyz")  # the page has no data of the model before it has the token
_LONGEST = 1000  # characters of a path; Python cannot parse integers of more than 4,300 digits
_HEADERS = {401: {"www-authenticate": "Bearer"}, 429: {"retry-after": "1"}}


@dataclass(frozen=True)
class Limits:
    """Limits of a server. The status of rejected requests is in parentheses.

    Attributes:
        batch: Maximum batch size of the model. Requests with more rows are computed in parts.
        waiting: Number of requests that wait for the model (429).
        body_bytes: Size of one request body in bytes (413).
        held_bytes: Total size in bytes of the bodies of requests and responses in memory (429).
        pixels: Number of pixels of an image according to its header, with all frames (400).
        request_pixels: Number of pixels of all images in a request (400).
        connections: Number of open connections (`serve` only). One more connection closes the
            connection that has been idle longest.
        request_s: Seconds in which the headers of a request must arrive, and in which a client must
            read another part of a response (`serve` only). Otherwise the connection is closed.
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
    """Prometheus metrics of a server. The label `kind` is 'predict' or 'other'."""

    def __init__(self) -> None:
        self.registry = to = CollectorRegistry()
        sizes, labels = [2**power for power in range(9)], ["kind", "status"]
        self.requests = Counter("towerpack_requests", "Requests.", labels, registry=to)
        self.seconds = Histogram("towerpack_request_seconds", "Duration.", ["kind"], registry=to)
        self.batch = Histogram("towerpack_batch_rows", "Batch size.", buckets=sizes, registry=to)
        self.waiting = Gauge("towerpack_waiting", "Calls that wait for the model.", registry=to)
        self.version = Gauge("towerpack_version", "Version that is served.", registry=to)
        ProcessCollector(registry=to)


class Gate:
    """ASGI middleware that checks requests, if possible before their bodies are read."""

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
                raise RequestError("The server has too many request bodies.", status=429)
            return message

        async def respond(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
                if unread:
                    message["headers"] = [*message["headers"], (b"connection", b"close")]
            else:
                # Before the end of a response, `send` waits until the client has read the body.
                held = len(message.get("body", b""))
                size, self._held = size + held, self._held + held
                await send({**message, "more_body": True})
                message = {"type": "http.response.body"}
                # Many clients read the response only after sending the body: skip it for a while.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(2):
                        while unread and (await receive()).get("more_body"):
                            pass
            await send(message)

        try:
            self._check(path, headers)
            await self._app(scope, counted, respond)
        except RequestError as error:
            await error_response(error.what, error.status)(scope, receive, respond)
        except Exception as error:  # noqa: BLE001
            if status:  # the response has begun, so only sending can fail
                get_logger(__name__).warning("The response to %a was not sent: %s", path, error)
                return
            get_logger(__name__).exception("The request %a failed.", path)
            response = error_response("The server failed; see its log.", 500)
            await response(scope, receive, respond)
        finally:
            self._held -= size
            kind = "predict" if path.endswith(":predict") else "other"
            self._metrics.requests.labels(kind, status).inc()
            self._metrics.seconds.labels(kind).observe(time.perf_counter() - began)

    def _check(self, path: str, headers: Headers) -> None:
        sent = headers.get("authorization", "").encode("latin-1")
        if self._token and path not in _OPEN and not secrets.compare_digest(sent, self._token):
            what = "The request needs the header Authorization: Bearer TOKEN."
            raise RequestError(what, status=401)
        if not self._token:
            self._check_origin(headers.get("host", "localhost"), headers.get("origin"))
        if headers.get("content-encoding", "identity") != "identity":
            raise RequestError("The request body must not be compressed.", status=415)
        if len(path) > _LONGEST:  # such as a version of 5,000 digits
            raise RequestError(f"A path must have at most {_LONGEST} characters.", status=404)
        length = headers.get("content-length", "0")[:18]
        if not (length.isascii() and length.isdigit()):
            raise RequestError(f"Content-Length must be a number, got {length!a}.", status=400)
        self._check_size(int(length))

    def _check_origin(self, host: str, origin: str | None) -> None:
        """Reject requests that a page of another site sends through a browser."""
        if origin is not None and origin.rpartition("//")[2] != host:
            what = "A server without a token rejects requests from pages of other sites."
            raise RequestError(what, status=403)
        name = re.sub(r":\d*$", "", host).strip("[]").lower()
        if self._local and name not in LOOPBACK:
            what = f"A server without a token accepts only requests to localhost, got {host!a}."
            raise RequestError(what, status=403)

    def _check_size(self, size: int) -> None:
        if size > (most := self._limits.body_bytes):
            raise RequestError(f"The body is larger than {most} bytes.", status=413)


def error_response(what: str, status: int) -> Response:
    body = orjson.dumps({"error": shortened(what)})
    return Response(body, status, _HEADERS.get(status), media_type="application/json")
