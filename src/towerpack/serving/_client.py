"""A client of servers that speak TensorFlow Serving's REST protocol."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson

from towerpack._core.errors import RequestError
from towerpack.serving._protocol import jsonable, strings_of

_DTYPES = {"DT_FLOAT": "f4", "DT_DOUBLE": "f8", "DT_HALF": "f2", "DT_BFLOAT16": "f4"}


class Client(AbstractContextManager["Client"]):
    """Ask a server for predictions. As a context manager, it closes its connections.

    Args:
        url: Of the server: http://127.0.0.1:8501
        name: The model's; by default the only one that a Towerpack server has.
        token: What the server was started with, if it was.
        timeout_s: For one request.
    """

    def __init__(
        self, url: str, name: str | None = None, *, token: str | None = None, timeout_s: float = 30
    ) -> None:
        headers: dict[str, Any] = (
            {} if token is None else {"authorization": f"Bearer {token}".encode()}
        )
        self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout_s)
        self._name, self._signatures = name, dict[str, Any]()

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def status(self) -> dict[str, Any]:
        """The states of the model's versions, as the server tells them."""
        return self._ask("GET", "")

    def metadata(self) -> dict[str, Any]:
        """The model's signatures and, from a Towerpack server, its classes."""
        return self._ask("GET", "/metadata")

    def predict(
        self, inputs: Mapping[str, Any] | np.ndarray | bytes | Path, signature: str | None = None
    ) -> dict[str, np.ndarray]:
        """Compute the outputs of a signature: arrays by name, in its types; strings are bytes.

        Args:
            inputs: Arrays by name. Or that of a single input alone, which a Towerpack server takes
                as it is: an array, or a picture file or its bytes.
            signature: Its name; by default `serving_default`.

        Raises:
            RequestError: The server refused, or cannot be reached (`status` 0).
        """
        query = {"signature_name": signature or "serving_default"}
        if isinstance(inputs, Mapping):
            values = {name: jsonable(np.asarray(value), "_bytes") for name, value in inputs.items()}
            text = orjson.dumps(query | {"inputs": values}, option=orjson.OPT_SERIALIZE_NUMPY)
            found = self._ask("POST", ":predict", content=text)
        else:
            if isinstance(inputs, np.ndarray):
                query |= {"shape": ",".join(map(str, inputs.shape)), "dtype": inputs.dtype.name}
                inputs = inputs.astype(inputs.dtype.newbyteorder("<")).tobytes()
            body = inputs.read_bytes() if isinstance(inputs, Path) else inputs
            kind = {"content-type": "application/octet-stream"}
            found = self._ask("POST", ":predict", content=body, params=query, headers=kind)
        if not self._signatures:
            self._signatures = self.metadata()["metadata"]["signature_def"]["signature_def"]
        infos: dict[str, Any] = self._signatures[query["signature_name"]]["outputs"]
        columns: Any = found.get("outputs", found.get("predictions"))
        if len(infos) == 1:
            columns = dict.fromkeys(infos, columns)
        elif "predictions" in found:
            columns = {name: [row[name] for row in columns] for name in infos}
        return {name: _array(columns[name], info["dtype"]) for name, info in infos.items()}

    def _ask(self, method: str, what: str, **request: Any) -> dict[str, Any]:
        if self._name is None:
            self._name = self._send("GET", "/v1/models")["models"][0]["name"]
        return self._send(method, f"/v1/models/{self._name}{what}", **request)

    def _send(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        where = self._http.base_url
        try:
            answer = self._http.request(method, path, **request)
            found = answer.json()
        except (httpx.HTTPError, ValueError) as error:  # ValueError: what answers speaks no JSON
            raise RequestError(f"No answer from {where}: {error!r}", status=0) from error
        if answer.is_error:
            status = answer.status_code
            raise RequestError(f"{where} answered {status}: {found.get('error')}", status=status)
        return found


def _array(value: Any, dtype: str) -> np.ndarray:
    if dtype == "DT_STRING":
        return strings_of(value)
    return np.array(value, _DTYPES.get(dtype, dtype.removeprefix("DT_").lower()))
