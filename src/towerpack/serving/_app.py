"""HTTP server: prediction with TensorFlow Serving's REST protocol, test page and metrics."""

from __future__ import annotations

import asyncio
import gc
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import uvicorn
from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from towerpack._core.errors import ConfigError, RequestError
from towerpack.serving._batcher import Batcher
from towerpack.serving._connections import Connection, most_connections
from towerpack.serving._protocol import answer, call_of
from towerpack.serving._versions import Versions
from towerpack.serving.gate import LOOPBACK, Gate, Limits, Metrics, error_response

if TYPE_CHECKING:
    from towerpack.inference import ExportedModel, TensorInfo

T = TypeVar("T")
_LIMITS = Limits()
_POLICY = "default-src 'unsafe-inline'; connect-src 'self'; img-src blob: data:"
_BYTES = ("application/octet-stream", "image/")  # JSON is the default: curl sends it as a form
_BODY_S, _STOP_S = 60, 30  # seconds for a body to arrive, and for requests after SIGTERM
# Entries of `towerpack.json` that clients may read. Other entries contain paths.
_PUBLIC = ("task", "class_names", "colours", "format")
_LONG_BODY = 64 << 10
_SEND_BYTES = 128 << 10
_DTYPES = {"float32": "DT_FLOAT", "float64": "DT_DOUBLE", "float16": "DT_HALF"}


def create_app(
    path: str | Path,
    *,
    name: str | None = None,
    token: str | None = None,
    limits: Limits = _LIMITS,
    local: bool = False,
) -> FastAPI:
    """Load an exported model. Return an ASGI application that serves it.

    Args:
        path: Directory of versions written by `towerpack export`.
        name: Name of the model in URLs. None uses the name of the directory.
        token: Secret that requests must send as `Authorization: Bearer TOKEN`. The test page and
            the health checks need no token.
        limits: Limits on requests and connections.
        local: Without a token, accept only requests whose `Host` is a loopback name. This keeps
            pages of other sites from accessing the model through a browser.

    Raises:
        ConfigError: There is no model, its name cannot be part of a URL, or the token is invalid.
    """
    if token is not None and not (token.isprintable() and token.strip() == token > ""):
        raise ConfigError(
            "The token must be printable, not empty, and without surrounding spaces.",
            fix="set --token or TOWERPACK_TOKEN to a secret, or unset both",
        )
    path = Path(path).resolve()
    name = path.name if name is None else name
    if not name or set(name) & set("/:?#"):
        raise ConfigError(
            f"The name of a model must not be empty or contain / : ? #, got '{name}'.",
            fix="set --name to a name without these characters",
        )
    metrics = Metrics()
    versions = Versions(path, limits.batch)
    batcher = Batcher(limits.batch, limits.waiting, metrics.batch.observe)
    metrics.version.set_function(lambda: versions.current[0])
    metrics.waiting.set_function(lambda: len(batcher.waiting))
    page = files("towerpack.serving").joinpath("page.html").read_text(encoding="utf-8")

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        watching = asyncio.create_task(versions.watch())
        yield
        watching.cancel()
        batcher.thread.shutdown()

    # FastAPI's documentation pages would load scripts from another host.
    app = FastAPI(title=name, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_middleware(Gate, token=token, limits=limits, metrics=metrics, local=local)

    @app.exception_handler(HTTPException)
    def not_found(request: Request, error: HTTPException) -> Response:
        path = request.url.path
        return error_response(f"Malformed request: {request.method} {path}", error.status_code)

    def current(asked: str, number: int) -> tuple[int, ExportedModel]:
        if asked != name or number not in (0, versions.current[0]):
            which = f"Specific({asked}, {number})" if number else f"Latest({asked})"
            raise RequestError(f"Servable not found for request: {which}", status=404)
        return versions.current

    async def predict(request: Request) -> Response:
        _, model = current(request.path_params["asked"], request.path_params.get("number", 0))
        try:
            async with asyncio.timeout(_BODY_S):
                body = await request.body()
        except (TimeoutError, ClientDisconnect) as error:
            raise RequestError("The body did not arrive.", status=408) from error
        is_binary = request.headers.get("content-type", "").startswith(_BYTES)
        query = request.query_params if is_binary else None
        # Parsing a long body would block all other connections.
        run = asyncio.to_thread if len(body) > _LONG_BODY else _run
        call = await run(call_of, model, body, query, limits)
        text = await run(answer, call, await batcher.run(call, request.is_disconnected))
        return Response(text, media_type="application/json")

    # Starlette's routes are faster, because FastAPI inspects the arguments of each request.
    app.add_route("/v1/models/{asked}:predict", predict, methods=["POST"])
    app.add_route("/v1/models/{asked}/versions/{number:int}:predict", predict, methods=["POST"])

    @app.get("/v1/models/{asked}/metadata")
    @app.get("/v1/models/{asked}/versions/{number:int}/metadata")
    def metadata(asked: str, number: int = 0) -> dict[str, Any]:
        served, model = current(asked, number)
        signatures = {
            key: {"inputs": _tensors(signature.inputs), "outputs": _tensors(signature.outputs)}
            for key, signature in model.signatures.items()
        }
        public = {key: value for key, value in model.metadata.items() if key in _PUBLIC}
        content = {"signature_def": {"signature_def": signatures}, "towerpack": public}
        return {"model_spec": {"name": asked, "version": str(served)}, "metadata": content}

    @app.get("/v1/models/{asked}")
    @app.get("/v1/models/{asked}/versions/{number:int}")
    def status(asked: str, number: int = 0) -> dict[str, Any]:
        failed = {n: why for n, (_, why) in versions.failed.items() if number in (0, n)}
        served, _ = current(asked, 0 if failed else number)
        states: list[dict[str, Any]] = []
        for version, why in (failed if number in failed else {served: "", **failed}).items():
            error = {"error_code": "UNKNOWN" if why else "OK", "error_message": why}
            state = "END" if why else "AVAILABLE"
            states.append({"version": str(version), "state": state, "status": error})
        return {"model_version_status": states}

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"models": [{"name": name}]}

    @app.get("/")
    def show_page() -> Response:
        return Response(page, 200, {"content-security-policy": _POLICY}, "text/html")

    @app.get("/healthz")
    @app.get("/readyz")  # the server starts after a model is loaded
    def health() -> Response:
        return Response(f"version {versions.current[0]}", media_type="text/plain")

    @app.get("/metrics")
    def show_metrics() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


def serve(
    path: str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8501,
    ready: Callable[[str], object] = print,
    **options: Any,
) -> None:
    """Serve an exported model until SIGTERM or Ctrl-C. Requests in progress are completed.

    Args:
        path: Directory of versions written by `towerpack export`.
        host: Address to listen on. By default other machines cannot reach the server.
        port: Port to listen on. 0 chooses a free port.
        ready: Function that gets the URL when the server accepts requests.
        options: Additional arguments of `create_app`.

    Raises:
        ConfigError: There is no model, or the server cannot listen on the address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:  # before loading the model, which takes seconds
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        what = f"The server cannot listen on {host}, port {port}: {error.strerror or error}."
        raise ConfigError(what, fix="pass a different --port, or 0 for a free port") from error
    with listening:
        # Connections inherit the size. With large buffers, slow clients seem to read nothing.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BYTES)
        app = create_app(path, local=host in LOOPBACK, **options)
        # The garbage collector stops all threads, and requests with many rows create many objects.
        gc.freeze()
        gc.set_threshold(100_000, 10, 10)
        limits: Limits = options.get("limits", _LIMITS)
        http: Any = partial(Connection, limits, most_connections(limits))
        config = uvicorn.Config(
            app, http=http, ws="none", log_config=None, timeout_graceful_shutdown=_STOP_S
        )
        config.timeout_keep_alive = 75  # clients must close idle connections first
        ready(f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}")
        # uvicorn raises the signal again at its end, which would change the exit code.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        uvicorn.Server(config).run(sockets=[listening])


async def _run(function: Callable[..., T], *arguments: Any) -> T:
    return function(*arguments)


def _tensors(infos: Mapping[str, TensorInfo]) -> dict[str, Any]:
    tensors: dict[str, Any] = {}
    for name, info in infos.items():
        sizes = [{"size": str(-1 if size is None else size), "name": ""} for size in info.shape]
        dtype = _DTYPES.get(info.dtype, f"DT_{info.dtype.upper()}")
        tensors[name] = {"dtype": dtype, "tensor_shape": {"dim": sizes}, "name": name}
    return tensors
