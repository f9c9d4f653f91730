"""Bodies of requests to calls of a model, and its outputs to bodies, as TensorFlow Serving does."""

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
# What stands at the end of a whole file. A model's decoder sees other damage.
_ENDS = {"jpeg": b"\xff\xd9", "png": b"IEND"}
_GIF_FRAME, _GIF_EXTENSION = 0x2C, 0x21
_GIF_BLOCKS = (_GIF_FRAME, _GIF_EXTENSION)


class Call(NamedTuple):
    """A call of a model; its rows are 0 if the signature has no batch axis."""

    model: ExportedModel
    signature: str
    inputs: dict[str, np.ndarray]
    rows: int
    by_row: bool  # asked by row (`instances`), and answered so (`predictions`)
    errors: list[str | None]  # of each row that was asked; rows with one are not in `inputs`


def call_of(
    model: ExportedModel, body: bytes, query: Mapping[str, str] | None, limits: Limits
) -> Call:
    """The call that a body asks for.

    Without a query it is JSON, in row or column format. Else it is the only input of a signature as
    it is: a picture file, or a tensor, little-endian, in C order. The query has `signature_name`,
    and for tensors `shape` (such as 1,28,28; by default as many rows as there are) and `dtype`.
    """
    request: Mapping[str, Any] = _parsed(body) if query is None else query
    name = request.get("signature_name") or "serving_default"
    if not isinstance(name, str) or name not in model.signatures:
        known = ", ".join(model.signatures)
        raise RequestError(f'Serving signature name: "{name}" not found in {known}.')
    infos, outputs = model.signatures[name].inputs, model.signatures[name].outputs
    if query is None:
        # What a call gives back for the next one, the first one may leave out.
        optional = [key for key in model.metadata.get("optional_inputs", ()) if key in infos]
        values = _columns(request, list(infos), optional)
        inputs = {key: _array(values[key], info) for key, info in infos.items() if key in values}
        count = max((len(array) for array in inputs.values() if array.ndim), default=1)
        inputs |= {key: _zeros(infos[key], count) for key in infos if key not in values}
    elif len(infos) > 1:
        raise RequestError(f"The signature takes {', '.join(infos)}: send JSON.")
    else:
        inputs = {key: _tensor(body, info, query) for key, info in infos.items()}
    try:  # before anything is made of their sizes, which a query may choose
        inputs = {key: fitting(array, infos[key]) for key, array in inputs.items()}
    except SpecError as error:
        text = " ".join(str(error).split())
        raise RequestError(f"The model refused the values: {text}") from error
    free = all(i.shape and i.shape[0] is None for i in [*infos.values(), *outputs.values()])
    rows = {len(array) if array.ndim and free else 0 for array in inputs.values()}
    if len(rows) > 1:
        raise RequestError(f"The inputs have different numbers of rows: {sorted(rows)}.")
    shapes = [zip(infos[key].shape, array.shape, strict=True) for key, array in inputs.items()]
    most = max((m for shape in shapes for n, m in shape if n is None), default=0)
    if most > len(body):  # An array without values may have any size.
        raise RequestError(f"{most} rows in {len(body)} bytes.")
    count, by_row = rows.pop(), query is not None or "instances" in request
    errors: list[str | None] = [None] * count
    pixels = 0
    for key, array in inputs.items():
        must_be = key.startswith("image")  # Others are texts, or pictures under another name.
        for place, data in np.ndenumerate(array) if array.dtype.kind == "O" else ():
            if not (must_be or begins_like_image(data[:18])):
                continue
            number, error = _picture(data, limits.pixels)
            pixels += number
            if error and not (by_row and count):
                raise RequestError(f"Row {place[0]}: {error}" if place else error)
            if error:
                errors[place[0]] = error
    if pixels > limits.request_pixels:
        most = limits.request_pixels
        raise RequestError(f"The pictures have {pixels} pixels together; at most {most}.")
    good = [row for row, error in enumerate(errors) if error is None]
    if errors and not good:
        raise RequestError(str(errors[0]))
    if len(good) < count:
        inputs = {key: array[good] for key, array in inputs.items()}
    return Call(model, name, inputs, len(good), by_row, errors)


def answer(call: Call, outputs: Mapping[str, np.ndarray]) -> bytes:
    """The body of the answer. An output that is the only one is given without its name."""
    if call.by_row and (call.rows or all(a.ndim and not len(a) for a in outputs.values())):
        columns = [[jsonable(np.asarray(row), n) for row in a] for n, a in outputs.items()]
        rows = zip(*columns, strict=True)
        good = (row[0] if len(row) == 1 else dict(zip(outputs, row, strict=True)) for row in rows)
        predictions: list[Any] = []
        for error in call.errors:
            predictions += [{"error": error}] if error else itertools.islice(good, 1)
        predictions += good  # Models may give more rows than they got.
        return orjson.dumps({"predictions": predictions}, option=orjson.OPT_SERIALIZE_NUMPY)
    named = {name: jsonable(array, name) for name, array in outputs.items()}
    found = next(iter(named.values())) if len(named) == 1 else named
    return orjson.dumps({"outputs": found}, option=orjson.OPT_SERIALIZE_NUMPY)


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        # orjson is fast, and refuses NaN and Infinity.
        relaxed = b"NaN" in body or b"Infinity" in body
        found = json.loads(body) if relaxed else orjson.loads(body)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"JSON Parse error: {error}.") from error
    if not isinstance(found, dict):
        raise RequestError("JSON Value: Is not object.")
    return found


def _tensor(body: bytes, info: TensorInfo, query: Mapping[str, str]) -> np.ndarray:
    if info.dtype == "string":
        return np.array([body], object)
    free = ",".join("-1" if size is None else str(size) for size in info.shape)
    try:
        name = query.get("dtype", info.dtype)
        if not name.isalnum():  # NumPy also takes descriptions of records
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
    """The values of each input. A single input may be given without its name."""
    by_row = "instances" in request
    if by_row == ("inputs" in request):
        raise RequestError("Missing 'inputs' or 'instances' key, or both are there.")
    key = "instances" if by_row else "inputs"
    found: Any = request[key]
    items: Any = found if by_row else [found]
    if not isinstance(items, list) or not items:
        raise RequestError("Expecting 'instances' to be a list with values.")
    objects = [isinstance(item, dict) and item.keys() != {"b64"} for item in items]
    if len(names) == 1 and not any(objects):
        return {names[0]: found}
    for number, item in enumerate(items):
        if not objects[number] or not set(names) - {*optional} <= item.keys() <= set(names):
            what = f"Failed to process element: {number} of '{key}'. It is to be an object whose"
            raise RequestError(f"{what} keys must be equal to: {','.join(sorted(names))}.")
    if not by_row:
        return found
    there = [name for name in names if any(name in row for row in items)]
    if any(name not in row for name in there for row in items):
        raise RequestError(f"Not all of 'instances' have the same of {', '.join(there)}.")
    return {name: [row[name] for row in items] for name in there}


def _array(value: Any, info: TensorInfo) -> np.ndarray:
    """A value as an array of an input's type: nothing is rounded, no string read as a number."""
    dtype = np.dtype(object if info.dtype == "string" else info.dtype)
    try:
        wrong = _leaf_types(value) - _ALLOWED.get(dtype.kind, {int})
        if wrong:
            raise ValueError(f"{wrong.pop().__name__} is not of expected type: {info.dtype}")
        with np.errstate(over="raise"):
            return strings_of(value) if dtype.kind == "O" else np.array(value, dtype)
    # Ragged lists, large numbers, wrong base64, lists in lists in lists.
    except (ValueError, ArithmeticError, RuntimeError) as error:
        raise RequestError(f"Input '{info.name}': {error}.") from error


def _leaf_types(value: Any) -> set[type]:
    leaves, level = set[type](), [value]
    while list in (types := set(map(type, level))):
        leaves |= types - {list}
        level = [*itertools.chain.from_iterable(i for i in level if type(i) is list)]
    return leaves | types


def _picture(data: bytes, max_pixels: int) -> tuple[int, str | None]:
    """Pixels of a picture, and why it is refused: it is none, cut off, or too large."""
    try:
        header = image_header(data, name="the picture")
        if header.format == "jpeg":  # of thousands of scans, which would take minutes
            check_contents(header, data, "the picture")
    except FormatError as error:
        return 0, f"{error.what} Got {error.got}." if error.got else error.what
    frames, height, width = 1, header.height, header.width
    if header.format == "gif":
        frames, height, width = _frames_of_gif(data, height, width)
    pixels = height * width * frames
    size = f"{height} x {width} pixels in {len(data)} bytes"
    size += f", {frames} frames" if frames > 1 else ""
    if pixels > max_pixels:
        # It is not decoded, so it does not count among those of the request.
        return 1, f"The picture is too large: {size}; at most {max_pixels} pixels."
    cut = data.rfind(_ENDS.get(header.format, b""), header.frame) < 0
    return pixels, f"The picture is cut off: {size}." if cut else None


def _frames_of_gif(data: bytes, height: int, width: int) -> tuple[int, int, int]:
    """Number and largest size of frames of a GIF file, which a decoder keeps as large all."""
    frames, at = 0, 13 + _table_bytes(data[10] if len(data) > 10 else 0)
    while at < len(data) and data[at] in _GIF_BLOCKS:
        if data[at] == _GIF_FRAME:
            frames += 1
            width = max(width, int.from_bytes(data[at + 5 : at + 7], "little"))
            height = max(height, int.from_bytes(data[at + 7 : at + 9], "little"))
            at += 11 + _table_bytes(data[at + 9] if at + 9 < len(data) else 0)
        else:
            at += 2
        while at < len(data) and data[at]:
            at += data[at] + 1
        at += 1
    return max(1, frames), height, width


def _table_bytes(flags: int) -> int:
    """Size of a GIF's table of colours, as the byte before it says."""
    return 3 << ((flags & 7) + 1) if flags & 0x80 else 0


def strings_of(value: Any) -> np.ndarray:
    """Strings in lists of lists, as an array of bytes."""
    array = np.array(value, object)
    for place, item in np.ndenumerate(array):
        match item:
            case str():
                array[place] = item.encode("utf-8", "surrogatepass")
            case {"b64": str(text)} if len(item) == 1:
                array[place] = base64.b64decode(text + "=" * (-len(text) % 4), validate=True)
            case _:
                raise ValueError('expected strings, {"b64": …}, or lists of one size of these')
    return array


def jsonable(array: np.ndarray, name: str) -> Any:
    """What orjson writes for an output, or for a row of one.

    Strings are `{"b64": …}` where the name ends in `_bytes`, or where they are no text.
    """
    if array.dtype.kind in "OSU":
        return _texts(array.tolist(), name.endswith("_bytes"))
    array = array.astype(np.float32) if array.dtype.kind == "V" else array  # bfloat16
    if array.ndim:
        plain = np.ascontiguousarray(array)
    else:  # orjson writes floats of every size, but not all of NumPy's integers (`longlong`)
        plain = array[()] if array.dtype.kind == "f" else array.item()
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return plain
    # orjson writes null for what is not finite; TensorFlow Serving writes words.
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
