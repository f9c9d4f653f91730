"""Bodies of requests to calls of a model, and its outputs to bodies of answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import orjson

from towerpack._core.errors import FormatError, RequestError
from towerpack.dataflow.images import image_header
from towerpack.inference import ExportedModel, Signature, TensorInfo
from towerpack.serving._values import numpy_dtype, refused, to_array, to_json

_DEFAULT = "serving_default"
# What stands at the end of a whole file. A model's decoder sees other damage.
_ENDS = {"jpeg": b"\xff\xd9", "png": b"IEND"}


class Call(NamedTuple):
    """A call of a model that fits its signature.

    Attributes:
        rows: The size of the batch axis; 0 if the signature has none.
        by_row: Whether the answer is given by row (`predictions`) or by output (`outputs`).
    """

    model: ExportedModel
    signature: str
    inputs: dict[str, np.ndarray]
    rows: int
    by_row: bool


def batched(signature: Signature) -> bool:
    """Whether the first axis of all inputs and outputs is free: the batch."""
    infos = [*signature.inputs.values(), *signature.outputs.values()]
    return all(info.shape and info.shape[0] is None for info in infos)


def call_of_json(model: ExportedModel, body: bytes, max_pixels: int) -> Call:
    """The call that a JSON body asks for, in row format (`instances`) or by column (`inputs`)."""
    try:
        # orjson is fast, and refuses NaN and Infinity.
        relaxed = b"NaN" in body or b"Infinity" in body
        request = json.loads(body) if relaxed else orjson.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"JSON Parse error: {error}.") from error
    if not isinstance(request, dict):
        raise RequestError("JSON Value: Is not object.")
    name = request.get("signature_name") or _DEFAULT
    if not isinstance(name, str):
        raise RequestError("'signature_name' key must be a string value.")
    infos = _signature(model, name).inputs
    values = _columns(request, list(infos))
    inputs = {key: to_array(values[key], info) for key, info in infos.items()}
    return _call(model, name, inputs, "instances" in request, max_pixels)


def call_of_bytes(
    model: ExportedModel, body: bytes, query: Mapping[str, str], max_pixels: int
) -> Call:
    """The call of a signature with one input, given as it is: a picture file, or a tensor's bytes.

    Args:
        query: `signature_name`; for tensors also `shape` (1,28,28; without it, as many rows as
            there are) and `dtype` (without it, the input's). Bytes are little-endian, in C order.
    """
    name = query.get("signature_name") or _DEFAULT
    infos = _signature(model, name).inputs
    if len(infos) > 1:
        raise RequestError(f"The signature takes {', '.join(infos)}: send JSON.")
    ((key, info),) = infos.items()
    array = np.empty([1] * len(info.shape), object)
    array.fill(body)
    inputs = {key: array if info.dtype == "string" else _tensor(body, info, query)}
    return _call(model, name, inputs, True, max_pixels)


def answer(call: Call, outputs: Mapping[str, np.ndarray]) -> bytes:
    """The body of the answer. An output that is the only one is given without its name."""
    if call.by_row and call.rows:
        columns = [[to_json(np.asarray(row), n) for row in a] for n, a in outputs.items()]
        rows = zip(*columns, strict=True)
        found = [row[0] if len(row) == 1 else dict(zip(outputs, row, strict=True)) for row in rows]
        return orjson.dumps({"predictions": found}, option=orjson.OPT_SERIALIZE_NUMPY)
    named = {name: to_json(array, name) for name, array in outputs.items()}
    found = next(iter(named.values())) if len(named) == 1 else named
    return orjson.dumps({"outputs": found}, option=orjson.OPT_SERIALIZE_NUMPY)


def _columns(request: dict[str, Any], names: list[str]) -> dict[str, Any]:
    """The values of each input. A single input may be given without its name."""
    if ("instances" in request) == ("inputs" in request):
        raise RequestError("Missing 'inputs' or 'instances' key, or both are there.")
    by_row = "instances" in request
    key = "instances" if by_row else "inputs"
    found = request[key]
    items = found if by_row else [found]
    if not isinstance(items, list) or not items:
        raise RequestError("Expecting 'instances' to be a list with values.")
    objects = [isinstance(item, dict) and item.keys() != {"b64"} for item in items]
    if len(names) == 1 and not any(objects):
        return {names[0]: found}
    for number, item in enumerate(items):
        if not objects[number] or item.keys() != set(names):
            raise RequestError(
                f"Failed to process element: {number} of '{key}'. Expecting an object whose keys "
                f"must be equal to: {','.join(names)}."
            )
    return {name: [row[name] for row in items] for name in names} if by_row else found


def _signature(model: ExportedModel, name: str) -> Signature:
    if name not in model.signatures:
        known = ", ".join(model.signatures)
        raise RequestError(f'Serving signature name: "{name}" not found in {known}.')
    return model.signatures[name]


def _tensor(body: bytes, info: TensorInfo, query: Mapping[str, str]) -> np.ndarray:
    dtype = numpy_dtype(info)
    free = ",".join("-1" if size is None else str(size) for size in info.shape)
    try:
        given = np.dtype(query.get("dtype", dtype.name)).newbyteorder("<")
        if given.kind not in "biuf" or not np.can_cast(given, dtype, "safe"):
            raise TypeError(f"{given} does not become {dtype} without loss")
        shape = [int(size) for size in query.get("shape", free).split(",")]
        return np.frombuffer(body, given).reshape(shape).astype(dtype, copy=False)
    except (TypeError, ValueError) as error:
        raise refused(info, str(error)) from error


def _call(
    model: ExportedModel, name: str, inputs: dict[str, np.ndarray], by_row: bool, max_pixels: int
) -> Call:
    signature = model.signatures[name]
    for key, array in inputs.items():
        info = signature.inputs[key]
        pairs = zip(array.shape, info.shape, strict=False)
        if array.ndim != len(info.shape) or any(w not in (None, size) for size, w in pairs):
            expected = ", ".join("?" if size is None else str(size) for size in info.shape)
            raise refused(info, f"the shape is {list(array.shape)}, expected [{expected}]")
        if array.size == 0:
            raise refused(info, "there are no values")
        if array.dtype.kind == "O" and key.startswith("image"):
            for data in array.flat:
                _check_picture(data, max_pixels)
    rows = {len(array) for array in inputs.values()} if batched(signature) else {0}
    if len(rows) > 1:
        raise RequestError(f"The inputs have different numbers of rows: {sorted(rows)}.")
    return Call(model, name, inputs, rows.pop(), by_row)


def _check_picture(data: bytes, max_pixels: int) -> None:
    """Refuse a picture that is none, cut off, or too large to be decoded."""
    try:
        header = image_header(data, name="the picture")
    except FormatError as error:
        raise RequestError(f"{error.what} Got {error.got}.") from error
    size = f"{header.height} x {header.width} pixels in {len(data)} bytes"
    if header.height * header.width > max_pixels:
        raise RequestError(f"The picture is too large: {size}; at most {max_pixels} pixels.")
    if data.rfind(_ENDS.get(header.format, b""), header.frame) < 0:
        raise RequestError(f"The picture is cut off: {size}.")
