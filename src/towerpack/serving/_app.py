"""The server: TensorFlow Serving's REST protocol, a page, health and metrics."""

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
_BYTES = ("application/octet-stream", "image/")  # all else is JSON: curl calls it a form
_BODY_S, _STOP_S = 60, 30  # for a body to arrive, and for requests to end before the server does
_TOLD = ("task", "class_names", "colours", "format")  # of `towerpack.json`, which holds paths too
_LONG_BODY = 64 << 10
_DTYPES = {"float32": "DT_FLOAT", "float64": "DT_DOUBLE", "float16": "DT_HALF"}


def create_app(
    path: str | Path,
    *,
    name: str | None = None,
    token: str | None = None,
    limits: Limits = _LIMITS,
    local: bool = False,
) -> FastAPI:
    """Load a model and make the ASGI application that serves it.

    Args:
        path: What `towerpack export` wrote: a directory with a directory for each version.
        name: What paths call the model; by default the directory's name.
        token: If given, requests must bring `Authorization: Bearer TOKEN`; the page and the health
            need none.
        limits: What is taken at most.
        local: Without a token, answer only requests whose `Host` is a name of this machine's
            loopback: no page of another site can then reach the model through a browser.

    Raises:
        ConfigError: There is no model, its name cannot be part of a path, or the token is empty.
    """
    if token is not None and not token.strip():
        raise ConfigError(
            "The token is empty, so it would keep nobody out.",
            fix="set --token or TOWERPACK_TOKEN to a secret, or unset both",
        )
    path = Path(path).resolve()
    name = path.name if name is None else name
    if not name or set(name) & set("/:?#"):
        raise ConfigError(f"A model cannot be called '{name}'.", fix="a name without / : ? #")
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

    # Its pages of documentation load scripts from another host.
    app = FastAPI(title=name, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_middleware(Gate, token=token, limits=limits, metrics=metrics, local=local)

    @app.exception_handler(HTTPException)
    def not_found(request: Request, error: HTTPException) -> Response:
        path = request.url.path
        return error_response(f"Malformed request: {request.method} {path}", error.status_code)

    def find(asked: str, number: int) -> tuple[int, ExportedModel]:
        if asked != name or number not in (0, versions.current[0]):
            which = f"Specific({asked}, {number})" if number else f"Latest({asked})"
            raise RequestError(f"Servable not found for request: {which}", status=404)
        return versions.current

    async def predict(request: Request) -> Response:
        _, model = find(request.path_params["asked"], request.path_params.get("number", 0))
        try:
            async with asyncio.timeout(_BODY_S):
                body = await request.body()
        except (TimeoutError, ClientDisconnect) as error:
            raise RequestError("The body did not arrive.", status=408) from error
        as_it_is = request.headers.get("content-type", "").startswith(_BYTES)
        query = request.query_params if as_it_is else None
        # What takes long would keep all other connections waiting.
        aside = asyncio.to_thread if len(body) > _LONG_BODY else _here
        call = await aside(call_of, model, body, query, limits)
        text = await aside(answer, call, await batcher.run(call))
        return Response(text, media_type="application/json")

    # Starlette's way: FastAPI's looks for arguments in every request, which costs time.
    app.add_route("/v1/models/{asked}:predict", predict, methods=["POST"])
    app.add_route("/v1/models/{asked}/versions/{number:int}:predict", predict, methods=["POST"])

    @app.get("/v1/models/{asked}/metadata")
    @app.get("/v1/models/{asked}/versions/{number:int}/metadata")
    def metadata(asked: str, number: int = 0) -> dict[str, Any]:
        served, model = find(asked, number)
        signatures = {
            key: {"inputs": _tensors(found.inputs), "outputs": _tensors(found.outputs)}
            for key, found in model.signatures.items()
        }
        ours = {key: value for key, value in model.metadata.items() if key in _TOLD}
        found = {"signature_def": {"signature_def": signatures}, "towerpack": ours}
        return {"model_spec": {"name": asked, "version": str(served)}, "metadata": found}

    @app.get("/v1/models/{asked}")
    @app.get("/v1/models/{asked}/versions/{number:int}")
    def status(asked: str, number: int = 0) -> dict[str, Any]:
        failed = {n: why for n, (_, why) in versions.failed.items() if number in (0, n)}
        served, _ = find(asked, 0 if failed else number)
        told: list[dict[str, Any]] = []
        for version, why in (failed if number in failed else {served: "", **failed}).items():
            error = {"error_code": "UNKNOWN" if why else "OK", "error_message": why}
            state = "END" if why else "AVAILABLE"
            told.append({"version": str(version), "state": state, "status": error})
        return {"model_version_status": told}

    @app.get("/v1/models")
    def models() -> dict[str, Any]:
        return {"models": [{"name": name}]}

    @app.get("/")
    def show_page() -> Response:
        return Response(page, 200, {"content-security-policy": _POLICY}, "text/html")

    @app.get("/healthz")
    @app.get("/readyz")  # there is no server before a model is loaded
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
    """Serve a model until SIGTERM or Ctrl-C; what is being answered then is answered first.

    `path` and `options` are those of `create_app`. By default other machines cannot reach the
    server. Port 0 takes one that is free. `ready` is told the URL when requests are taken.

    Raises:
        ConfigError: There is no model, or the address cannot be listened at.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:  # before the model, which takes seconds to load
        listening = socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        what = f"The server cannot listen at {host}, port {port}: {error.strerror or error}."
        raise ConfigError(what, fix="another --port; 0 takes one that is free") from error
    with listening:
        app = create_app(path, local=host in LOOPBACK, **options)
        # The garbage collector stops all threads, and requests of many rows are many objects.
        gc.freeze()
        gc.set_threshold(100_000, 10, 10)
        limits: Limits = options.get("limits", _LIMITS)
        http: Any = partial(Connection, limits, most_connections(limits))
        config = uvicorn.Config(
            app, http=http, ws="none", log_config=None, timeout_graceful_shutdown=_STOP_S
        )
        config.timeout_keep_alive = 75  # longer than that of clients, who else use a closed one
        ready(f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}")
        # uvicorn raises the signal again when it is done, which would end the process as a failure.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        uvicorn.Server(config).run(sockets=[listening])


async def _here(function: Callable[..., T], *arguments: Any) -> T:
    return function(*arguments)


def _tensors(infos: Mapping[str, TensorInfo]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, info in infos.items():
        sizes = [{"size": str(-1 if size is None else size), "name": ""} for size in info.shape]
        dtype = _DTYPES.get(info.dtype, f"DT_{info.dtype.upper()}")
        found[name] = {"dtype": dtype, "tensor_shape": {"dim": sizes}, "name": name}
    return found
