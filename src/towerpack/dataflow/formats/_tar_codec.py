"""What the extension of a file says about its bytes."""

from __future__ import annotations

import io
import json
from typing import Any, cast

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.dataflow._opening import reading
from towerpack.dataflow.formats._npy import parse_npy
from towerpack.dataflow.images._decode import decode_image

_INTEGERS = ("cls", "index", "id")
_IMAGES = ("jpg", "jpeg", "png", "webp", "bmp", "gif", "tif", "tiff")


def decode_file(extension: str, data: bytes, where: str) -> Any:
    """The content of one file, by the last part of its extension; unknown ones stay bytes.

    Raises:
        FormatError: The bytes are not what the extension says.
    """
    kind = extension.rpartition(".")[2].lower()
    with reading(where, f"{kind} content"):
        if kind in _IMAGES:
            return decode_image(data, name=where)
        if kind == "npy":
            return parse_npy(data, where).copy()
        if kind in _INTEGERS:
            return int(data)
        if kind == "json":
            return json.loads(data)
        return data.decode("utf-8") if kind == "txt" else data


def encode_file(extension: str, value: Any) -> bytes:
    """The bytes of one file: `decode_file` gives the value back.

    Raises:
        ConfigError: The extension says nothing about how to write this value.
    """
    kind = extension.rpartition(".")[2].lower()
    reason = None
    try:
        if isinstance(value, (bytes, bytearray, memoryview)):
            return bytes(cast("bytes", value))
        if kind == "npy":
            buffer = io.BytesIO()
            np.save(buffer, np.asarray(value), allow_pickle=False)
            return buffer.getvalue()
        if kind == "json":
            return json.dumps(value, default=_plain).encode()
        if kind in _INTEGERS and isinstance(value, (int, np.integer)):
            return str(int(cast("int", value))).encode()
        if kind == "txt" and isinstance(value, str):
            return value.encode()
    # Of json also what refers to itself (ValueError) or is too deep (RecursionError).
    except (TypeError, ValueError, RecursionError) as error:
        reason = error
    raise ConfigError(
        f"A {type(cast('object', value)).__name__} cannot be written as a .{extension} file.",
        got=None if reason is None else f"{type(reason).__name__}: {reason}",
        expected="bytes; str for txt; int for cls, index, id; arrays for npy; what json takes",
        fix="encode it first (images: cv2.imencode), or use another extension",
    ) from reason


def _plain(value: Any) -> Any:
    """What json takes for a value that it does not."""
    if isinstance(value, np.generic):
        return cast("Any", value).item()
    raise TypeError(f"{type(value).__name__} is nothing that json takes")
