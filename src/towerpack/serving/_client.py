from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson

from towerpack._core.errors import ConfigError, RequestError
from towerpack.serving._protocol import jsonable, strings_of

_DTYPES = {"DT_FLOAT": "f4", "DT_DOUBLE": "f8", "DT_HALF": "f2", "DT_BFLOAT16": "f4"}


class Client(AbstractContextManager["Client"]):
    """Client that requests predictions from a server. Use as a context manager.

    Args:
        url: URL of the server, such as http://127.0.0.1:8501.
        name: Name of the model. None uses the only model of a Towerpack server.
        token: Token of the server, if it requires one.
        timeout_s: Timeout of a request in seconds.
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
        """Return the states of the model's versions."""
        return self._ask("GET", "")

    def metadata(self) -> dict[str, Any]:
        """Return the model's signatures. A Towerpack server also returns the class names."""
        return self._ask("GET", "/metadata")

    def predict(
        self,
        inputs: Mapping[str, Any] | np.ndarray | bytes | str | Path,
        signature: str | None = None,
    ) -> dict[str, np.ndarray]:
        """Compute the outputs of a signature. Return arrays by name, with strings as bytes.

        Args:
            inputs: Arrays by name. For a single input, a Towerpack server also accepts an array, or
                an image file as a path or as bytes.
            signature: Name of the signature (default: `serving_default`).

        Raises:
            RequestError: The server rejected the request, or cannot be reached (`status` 0).
            ConfigError: `inputs` has another type, or is a string that does not name a file.
        """
        if isinstance(inputs, str) and Path(inputs).is_file():
            inputs = Path(inputs)
        if not isinstance(inputs, Mapping | np.ndarray | bytes | Path):
            raise ConfigError(
                f"inputs must be arrays by name, an array, or one image file, got {inputs!r:.80}.",
                fix="pass arrays and texts by name, predict({'text': ['…']}), and image files "
                "one by one: [client.predict(path) for path in paths]",
            )
        query = {"signature_name": signature or "serving_default"}
        if isinstance(inputs, Mapping):
            values = {name: jsonable(np.asarray(value), "_bytes") for name, value in inputs.items()}
            text = orjson.dumps(query | {"inputs": values}, option=orjson.OPT_SERIALIZE_NUMPY)
            answer = self._ask("POST", ":predict", content=text)
        else:
            if isinstance(inputs, np.ndarray):
                query |= {"shape": ",".join(map(str, inputs.shape)), "dtype": inputs.dtype.name}
                inputs = inputs.astype(inputs.dtype.newbyteorder("<")).tobytes()
            body = inputs.read_bytes() if isinstance(inputs, Path) else inputs
            kind = {"content-type": "application/octet-stream"}
            try:
                answer = self._ask("POST", ":predict", content=body, params=query, headers=kind)
            except RequestError as error:
                if error.status == 400 and "shape" in query and signature is None:
                    error.fix = "pass signature='tensors' to send pixels to a model of image files"
                raise
        if not self._signatures:
            self._signatures = self.metadata()["metadata"]["signature_def"]["signature_def"]
        infos: dict[str, Any] = self._signatures[query["signature_name"]]["outputs"]
        columns: Any = answer.get("outputs", answer.get("predictions"))
        if len(infos) == 1:
            columns = dict.fromkeys(infos, columns)
        elif "predictions" in answer:
            columns = {name: [row[name] for row in columns] for name in infos}
        return {name: _array(columns[name], info["dtype"]) for name, info in infos.items()}

    def _ask(self, method: str, what: str, **request: Any) -> dict[str, Any]:
        if self._name is None:
            self._name = self._send("GET", "/v1/models")["models"][0]["name"]
        return self._send(method, f"/v1/models/{self._name}{what}", **request)

    def _send(self, method: str, path: str, **request: Any) -> dict[str, Any]:
        url = self._http.base_url
        try:
            response = self._http.request(method, path, **request)
            body = response.json()
        except (httpx.HTTPError, ValueError) as error:  # ValueError: the body is not JSON
            raise RequestError(f"The server {url} did not answer: {error!r}", status=0) from error
        if response.is_error:
            status = response.status_code
            what = f"The server {url} answered with status {status}: {body.get('error')}"
            raise RequestError(what, status=status)
        return body


def _array(value: Any, dtype: str) -> np.ndarray:
    if dtype == "DT_STRING":
        return strings_of(value)
    return np.array(value, _DTYPES.get(dtype, dtype.removeprefix("DT_").lower()))
