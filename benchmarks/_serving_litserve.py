"""LitServe with its batches, as its documentation shows it.

    PYTHON _serving_litserve.py file|json SIGNATURE SAVED_MODEL PORT BATCH BATCH_TIMEOUT

`file`: a request is a form with a file (a picture, or a float32 tensor). `json`: a nested list.
"""

import sys
from typing import Any

import litserve
import numpy as np
from _serving_model import load, row

form, name, folder, port, batch, timeout = sys.argv[1:]


class Api(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self.model = load(folder, name)

    def decode_request(self, request):  # LitServe reads annotations
        if form == "file":
            return row(request["file"].file.read(), name)
        return np.array(request["image"], np.float32)

    def batch(self, inputs: list[Any]) -> Any:
        return inputs if name == "files" else np.stack(inputs)

    def predict(self, x: Any) -> Any:
        return self.model(x)

    def unbatch(self, output: Any) -> list[dict[str, Any]]:
        rows = zip(*output.values(), strict=True)
        return [dict(zip(output, each, strict=True)) for each in rows]

    def encode_response(self, output: Any) -> dict[str, Any]:
        return {key: value.tolist() for key, value in output.items()}


if __name__ == "__main__":
    api = Api(max_batch_size=int(batch), batch_timeout=float(timeout))
    server = litserve.LitServer(api, accelerator="cpu")
    options: Any = {"log_level": "warning", "access_log": False, "generate_client_file": False}
    server.run(host="127.0.0.1", port=int(port), **options)
