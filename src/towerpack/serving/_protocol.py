"""Conversion between HTTP bodies and model calls, as in TensorFlow Serving."""

from __future__ import annotations

import base64
import itertools
import json
import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson

from towerpack._core.errors import FormatError, RequestError, SpecError
from towerpack.dataflow.images import image_header
from towerpack.dataflow.images.headers import begins_like_image, check_contents
from towerpack.inference.exported import fitting

if TYPE_CHECKING:
    from towerpack.inference import ExportedModel, TensorInfo
    from towerpack.serving.gate import Limits

_WORDS = {"nan": b"NaN", "inf": b"Infinity", "-inf": b"-Infinity"}
_ALLOWED = {"b": {bool}, "f": {int, float}, "V": {int, float}, "O": {str, dict}}  # V: bfloat16
# Bytes that end a complete file. The model's image decoder detects other damage.
_ENDS = {"jpeg": b"\xff\xd9", "png": b"IEND"}
_CUT_PNG = b"\x89PNG\x1a"  # `curl -d @FILE` removes ends of lines
_AS_IMAGE = " Send an image with --data-binary @FILE and -H 'Content-Type: image/png'."
_GIF_FRAME, _GIF_EXTENSION = 0x2C, 0x21
_GIF_BLOCKS = (_GIF_FRAME, _GIF_EXTENSION)


class Call(NamedTuple):
    """Call of a model. `rows` is 0 if the signature has no batch dimension."""

    model: ExportedModel
    signature: str
    inputs: dict[str, np.ndarray]
    rows: int
    by_row: bool  # whether the request has `instances`, and the response `predictions`
    errors: list[str | None]  # error of each requested row; `inputs` has only rows without error


def call_of(
    model: ExportedModel, body: bytes, query: Mapping[str, str] | None, limits: Limits
) -> Call:
    """Convert a request body to a call.

    Without `query`, the body is JSON in row or column format. Otherwise the body is the signature's
    only input: an image file, or a little-endian tensor in C order. `query` contains
    `signature_name`, and for tensors `shape` (such as 1,28,28; default: the spec's) and `dtype`.
    """
    request: Mapping[str, Any] = _parsed(body) if query is None else query
    name = request.get("signature_name") or "serving_default"
    if not isinstance(name, str) or name not in model.signatures:
        known = ", ".join(model.signatures)
        raise RequestError(f'Serving signature name: "{name}" not found in {known}.')
    infos, outputs = model.signatures[name].inputs, model.signatures[name].outputs
    if query is None:
        # The first call may omit the state, which later calls contain.
        optional = [key for key in model.metadata.get("optional_inputs", ()) if key in infos]
        values = _columns(request, list(infos), optional)
        inputs = {key: _array(values[key], info) for key, info in infos.items() if key in values}
        count = max((len(array) for array in inputs.values() if array.ndim), default=1)
        inputs |= {key: _zeros(infos[key], count) for key in infos if key not in values}
    elif len(infos) > 1:
        raise RequestError(f"The signature has several inputs ({', '.join(infos)}): send JSON.")
    else:
        inputs = {key: _tensor(body, info, query) for key, info in infos.items()}
    try:  # check sizes before using them, because a query may choose them
        inputs = {key: fitting(array, infos[key]) for key, array in inputs.items()}
    except SpecError as error:
        text = " ".join(str(error).split())
        raise RequestError(f"The model refused the values: {text}") from error
    free = all(i.shape and i.shape[0] is None for i in [*infos.values(), *outputs.values()])
    rows = {len(array) if array.ndim and free else 0 for array in inputs.values()}
    if len(rows) > 1:
        raise RequestError(f"All inputs must have the same number of rows, got {sorted(rows)}.")
    shapes = [zip(infos[key].shape, array.shape, strict=True) for key, array in inputs.items()]
    most = max((m for shape in shapes for n, m in shape if n is None), default=0)
    if most > len(body):  # an empty array may claim any size
        raise RequestError(f"A size of {most} is too large for a body of {len(body)} bytes.")
    count, by_row = rows.pop(), query is not None or "instances" in request
    errors: list[str | None] = [None] * count
    pixels = 0
    for key, array in inputs.items():
        is_image = key.startswith("image")  # other inputs may contain texts, or images too
        for index, data in np.ndenumerate(array) if array.dtype.kind == "O" else ():
            if not (is_image or begins_like_image(data[:18])):
                continue
            number, error = _picture(data, limits.pixels)
            pixels += number
            if error and not (by_row and count):
                raise RequestError(f"Row {index[0]}: {error}" if index else error)
            if error:
                errors[index[0]] = error
    if pixels > limits.request_pixels:
        most = limits.request_pixels
        raise RequestError(
            f"The images of a request must have at most {most} pixels, got {pixels}."
        )
    good = [row for row, error in enumerate(errors) if error is None]
    if errors and not good:
        raise RequestError(str(errors[0]))
    if len(good) < count:
        inputs = {key: array[good] for key, array in inputs.items()}
    return Call(model, name, inputs, len(good), by_row, errors)


def answer(call: Call, outputs: Mapping[str, np.ndarray]) -> bytes:
    """Return the response body. The name of a single output is omitted."""
    if call.by_row and (call.rows or all(a.ndim and not len(a) for a in outputs.values())):
        columns = [[jsonable(np.asarray(row), n) for row in a] for n, a in outputs.items()]
        rows = zip(*columns, strict=True)
        good = (row[0] if len(row) == 1 else dict(zip(outputs, row, strict=True)) for row in rows)
        predictions: list[Any] = []
        for error in call.errors:
            predictions += [{"error": error}] if error else itertools.islice(good, 1)
        predictions += good  # a model may return more rows than it got
        return orjson.dumps({"predictions": predictions}, option=orjson.OPT_SERIALIZE_NUMPY)
    named = {name: jsonable(array, name) for name, array in outputs.items()}
    content = next(iter(named.values())) if len(named) == 1 else named
    return orjson.dumps({"outputs": content}, option=orjson.OPT_SERIALIZE_NUMPY)


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        # orjson is faster, but does not support NaN and Infinity.
        relaxed = b"NaN" in body or b"Infinity" in body
        content = json.loads(body) if relaxed else orjson.loads(body)
    except (ValueError, RecursionError) as error:
        is_image = begins_like_image(body[:18]) or body.startswith(_CUT_PNG)
        raise RequestError(f"JSON Parse error: {error}.{_AS_IMAGE if is_image else ''}") from error
    if not isinstance(content, dict):
        raise RequestError("JSON Value: Is not object.")
    return content


def _tensor(body: bytes, info: TensorInfo, query: Mapping[str, str]) -> np.ndarray:
    if info.dtype == "string":
        return np.array([body], object)
    free = ",".join("-1" if size is None else str(size) for size in info.shape)
    try:
        name = query.get("dtype", info.dtype)
        if not name.isidentifier():  # NumPy also accepts descriptions of records and counts
            raise ValueError(f"{name!r} is not the name of a dtype")
        dtype = np.dtype(name).newbyteorder("<")
        shape = [int(size) for size in query.get("shape", free).split(",")]
        return np.frombuffer(body, dtype).reshape(shape)
    except (TypeError, ValueError) as error:
        raise RequestError(f"Input '{info.name}': {error}.") from error


def _zeros(info: TensorInfo, rows: int) -> np.ndarray:
    return np.zeros([rows, *(size or 1 for size in info.shape[1:])], info.dtype)


def _columns(
    request: Mapping[str, Any], names: list[str], optional: Collection[str] = ()
) -> dict[str, Any]:
    """Return the values of each input. With a single input, its name may be omitted."""
    by_row = "instances" in request
    if by_row == ("inputs" in request):
        raise RequestError("Missing 'inputs' or 'instances' key, or both are present.")
    key = "instances" if by_row else "inputs"
    content: Any = request[key]
    items: Any = content if by_row else [content]
    if not isinstance(items, list) or not items:
        raise RequestError("Expecting 'instances' to be a list with values.")
    objects = [isinstance(item, dict) and item.keys() != {"b64"} for item in items]
    if len(names) == 1 and not any(objects):
        return {names[0]: content}
    for number, item in enumerate(items):
        if not objects[number] or not set(names) - {*optional} <= item.keys() <= set(names):
            what = f"Failed to process element: {number} of '{key}'. It must be an object whose"
            raise RequestError(f"{what} keys must be equal to: {','.join(sorted(names))}.")
    if not by_row:
        return content
    used = [name for name in names if any(name in row for row in items)]
    if any(name not in row for name in used for row in items):
        raise RequestError(f"All of 'instances' must have the keys {', '.join(used)}.")
    return {name: [row[name] for row in items] for name in used}


def _array(value: Any, info: TensorInfo) -> np.ndarray:
    """Convert a value to an input's dtype, without rounding and without parsing strings."""
    dtype = np.dtype(object if info.dtype == "string" else info.dtype)
    try:
        wrong = _leaf_types(value) - _ALLOWED.get(dtype.kind, {int})
        if wrong:
            raise ValueError(f"{wrong.pop().__name__} is not of expected type: {info.dtype}")
        with np.errstate(over="raise"):
            return strings_of(value) if dtype.kind == "O" else np.array(value, dtype)
    # Ragged lists, too large numbers, wrong base64, or too many levels of lists.
    except (ValueError, ArithmeticError, RuntimeError) as error:
        raise RequestError(f"Input '{info.name}': {error}.") from error


def _leaf_types(value: Any) -> set[type]:
    leaves, level = set[type](), [value]
    while list in (types := set(map(type, level))):
        leaves |= types - {list}
        level = [*itertools.chain.from_iterable(i for i in level if type(i) is list)]
    return leaves | types


def _picture(data: bytes, max_pixels: int) -> tuple[int, str | None]:
    """Return the number of pixels of an image, and an error if the image is rejected."""
    try:
        header = image_header(data, name="the image")
        if header.format == "jpeg":  # thousands of scans would take minutes
            check_contents(header, data, "the image")
    except FormatError as error:
        return 0, f"{error.what} Got {error.got}." if error.got else error.what
    frames, height, width = 1, header.height, header.width
    if header.format == "gif":
        frames, height, width = _frames_of_gif(data, height, width)
    pixels = height * width * frames
    size = f"{height} x {width} pixels in {len(data)} bytes"
    size += f", {frames} frames" if frames > 1 else ""
    if pixels > max_pixels:
        # Rejected images are not decoded, so they do not count for the limit of the request.
        return 1, f"The image is too large: {size}; at most {max_pixels} pixels."
    cut = data.rfind(_ENDS.get(header.format, b""), header.frame) < 0
    return pixels, f"The image is cut off: {size}." if cut else None


def _frames_of_gif(data: bytes, height: int, width: int) -> tuple[int, int, int]:
    """Return the number of frames of a GIF file, and the largest height and width."""
    frames, start = 0, 13 + _table_bytes(data[10] if len(data) > 10 else 0)
    while start < len(data) and data[start] in _GIF_BLOCKS:
        if data[start] == _GIF_FRAME:
            frames += 1
            width = max(width, int.from_bytes(data[start + 5 : start + 7], "little"))
            height = max(height, int.from_bytes(data[start + 7 : start + 9], "little"))
            start += 11 + _table_bytes(data[start + 9] if start + 9 < len(data) else 0)
        else:
            start += 2
        while start < len(data) and data[start]:
            start += data[start] + 1
        start += 1
    return max(1, frames), height, width


def _table_bytes(flags: int) -> int:
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def strings_of(value: Any) -> np.ndarray:
    """Convert nested lists of strings to an array of bytes objects."""
    array = np.array(value, object)
    for index, item in np.ndenumerate(array):
        match item:
            case str():
                array[index] = item.encode("utf-8", "surrogatepass")
            case {"b64": str(text)} if len(item) == 1:
                array[index] = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
            case _:
                raise ValueError('expected strings, {"b64": …}, or lists of one size of these')
    return array


def jsonable(array: np.ndarray, name: str) -> Any:
    """Convert an output, or a row of an output, to a value that orjson can serialize.

    Strings become `{"b64": …}` if the name ends in `_bytes`, or if they are not UTF-8.
    """
    if array.dtype.kind in "OSU":
        return _texts(array.tolist(), name.endswith("_bytes"))
    array = array.astype(np.float32) if array.dtype.kind == "V" else array  # bfloat16
    if array.ndim:
        plain = np.ascontiguousarray(array)
    else:  # orjson supports floats of every size, but not all integers of NumPy (`longlong`)
        plain = array[()] if array.dtype.kind == "f" else array.item()
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return plain
    # orjson writes null for NaN and infinity. TensorFlow Serving writes words.
    words = (_WORDS[str(number)] for number in array[~np.isfinite(array)].tolist())
    text = orjson.dumps(plain, option=orjson.OPT_SERIALIZE_NUMPY)
    return orjson.Fragment(re.sub(rb"null", lambda _: next(words), text))


def _texts(value: Any, as_bytes: bool) -> Any:
    if isinstance(value, list):
        return [_texts(item, as_bytes) for item in value]
    data = value.encode() if isinstance(value, str) else value
    try:
        return {"b64": base64.b64encode(data).decode()} if as_bytes else data.decode()
    except UnicodeDecodeError:
        return _texts(data, True)
