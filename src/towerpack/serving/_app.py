"""The server's paths: TensorFlow Serving's REST protocol, a page, health and metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from towerpack._core.errors import ConfigError, RequestError
from towerpack.serving._batcher import Batcher
from towerpack.serving._gate import Gate, Metrics, error_response
from towerpack.serving._limits import Limits
from towerpack.serving._protocol import answer, call_of_bytes, call_of_json
from towerpack.serving._versions import Version, Versions

if TYPE_CHECKING:
    from towerpack.inference import TensorInfo

_POLICY = "default-src 'none'; connect-src 'self'; img-src blob: data:; "
_POLICY += "script-src 'unsafe-inline'; style-src 'unsafe-inline'"
_BYTES = ("application/octet-stream", "image/")  # all else is JSON: curl calls it a form
_BODY_S = 60  # in which a body must have arrived
_TOLD = ("task", "class_names", "format")  # of `towerpack.json`, which holds paths too
_DTYPES = {"float32": "DT_FLOAT", "float64": "DT_DOUBLE", "float16": "DT_HALF"}


def create_app(
    path: str | Path,
    *,
    name: str | None = None,
    token: str | None = None,
    limits: Limits | None = None,
    reload_s: float = 1.0,
) -> FastAPI:
    """Load a model and make the ASGI application that serves it.

    Args:
        path: What `towerpack export` wrote: a directory with a directory for each version.
        name: What paths call the model; by default the directory's name.
        token: If given, requests must bring `Authorization: Bearer TOKEN`; the page and the health
            need none.
        limits: What is taken at most.
        reload_s: How often the directory is looked at for new versions, in seconds.

    Raises:
        ConfigError: There is no model, or its name cannot be part of a path.
    """
    root = Path(path).resolve()
    name = root.name if name is None else name
    if not name or set(name) & set("/:?#"):
        raise ConfigError(f"A model cannot be called '{name}'.", fix="a name without / : ? #")
    limits = limits or Limits()
    metrics = Metrics()
    versions = Versions(root, limits.batch)
    batcher = Batcher(limits, metrics.batch.observe)
    metrics.version.set_function(lambda: versions.current.number)
    metrics.waiting.set_function(lambda: len(batcher.waiting))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
        watching = asyncio.create_task(versions.watch(reload_s))
        yield
        watching.cancel()
        batcher.thread.shutdown()

    # FastAPI's pages of documentation load scripts from another host.
    app = FastAPI(title=name, docs_url=None, redoc_url=None, lifespan=lifespan)
    app.add_middleware(Gate, token=token, limits=limits, metrics=metrics)
    app.add_exception_handler(HTTPException, _not_found)
    app.add_exception_handler(Exception, _failed)

    def wanted(request: Request) -> Version:
        asked, number = request.path_params["name"], request.path_params.get("version", 0)
        current = versions.current
        if asked != name or number not in (0, current.number):
            which = f"Specific({asked}, {number})" if number else f"Latest({asked})"
            raise RequestError(f"Servable not found for request: {which}", status=404)
        return current

    async def predict(request: Request) -> Response:
        model = wanted(request).model
        try:
            async with asyncio.timeout(_BODY_S):
                body = await request.body()
        except (TimeoutError, ClientDisconnect) as error:
            raise RequestError("The body did not arrive.", status=408) from error
        if request.headers.get("content-type", "").startswith(_BYTES):
            call = call_of_bytes(model, body, request.query_params, limits.pixels)
        else:
            call = call_of_json(model, body, limits.pixels)
        return _json(answer(call, await batcher.run(call)))

    async def metadata(request: Request) -> Response:
        return _json(orjson.dumps(_metadata(name, wanted(request))))

    async def status(request: Request) -> Response:
        number = request.path_params.get("version")
        failed = [_state(n, why) for n, (_, why) in versions.failed.items() if number in (None, n)]
        states = failed if number in versions.failed else [_state(wanted(request).number), *failed]
        return _json(orjson.dumps({"model_version_status": states}))

    async def models(_: Request) -> Response:
        return _json(orjson.dumps({"models": [{"name": name}]}))

    for at in ("/v1/models/{name}", "/v1/models/{name}/versions/{version:int}"):
        # Starlette's routes: FastAPI's look for arguments in every request.
        app.add_route(f"{at}:predict", predict, methods=["POST"])
        app.add_route(f"{at}/metadata", metadata)
        app.add_route(at, status)
    app.add_route("/v1/models", models)
    page = files("towerpack.serving").joinpath("page.html").read_text(encoding="utf-8")

    @app.get("/")
    def show_page() -> Response:
        return Response(page, 200, {"content-security-policy": _POLICY}, "text/html")

    @app.get("/healthz")
    @app.get("/readyz")  # there is no server before a model is loaded
    def show_health() -> Response:
        return Response(f"version {versions.current.number}", media_type="text/plain")

    @app.get("/metrics")
    def show_metrics() -> Response:
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    return app


async def _not_found(request: Request, error: Any) -> Response:
    what = f"Malformed request: {request.method} {request.url.path}"
    return error_response(what, error.status_code)


async def _failed(_: Request, error: Exception) -> Response:
    return error_response("The server failed; its log tells why.", 500)


def _json(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _state(number: int, error: str = "") -> dict[str, Any]:
    told = {"error_code": "UNKNOWN" if error else "OK", "error_message": error}
    return {"version": str(number), "state": "END" if error else "AVAILABLE", "status": told}


def _metadata(name: str, version: Version) -> dict[str, Any]:
    model = version.model
    signatures = {
        key: {"inputs": _tensors(s.inputs), "outputs": _tensors(s.outputs)}
        | {"method_name": "tensorflow/serving/predict"}
        for key, s in model.signatures.items()
    }
    ours = {key: model.metadata[key] for key in _TOLD if key in model.metadata}
    return {
        "model_spec": {"name": name, "signature_name": "", "version": str(version.number)},
        "metadata": {"signature_def": {"signature_def": signatures}, "towerpack": ours},
    }


def _tensors(infos: Mapping[str, TensorInfo]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, info in infos.items():
        sizes = [{"size": str(-1 if size is None else size), "name": ""} for size in info.shape]
        dtype = _DTYPES.get(info.dtype, f"DT_{info.dtype.upper()}")
        shape = {"dim": sizes, "unknown_rank": False}
        found[name] = {"dtype": dtype, "tensor_shape": shape, "name": name}
    return found
