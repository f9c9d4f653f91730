"""Exported models, in whatever runtime: named arrays in, named arrays out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import numpy as np

from towerpack._core.errors import ConfigError, FormatError, SpecError
from towerpack._core.naming import did_you_mean

METADATA: Final = "towerpack.json"
DEFAULT_SIGNATURE: Final = "serving_default"
STRING: Final = "string"


@dataclass(frozen=True)
class TensorInfo:
    """An input or output: dtype by NumPy's name or 'string', None where a size is free."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        return f"{self.dtype} [{', '.join('n' if n is None else str(n) for n in self.shape)}]"


@dataclass(frozen=True)
class Signature:
    """What a call takes and gives, by name."""

    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]

    def random_inputs(self, rows: int) -> dict[str, np.ndarray]:
        """Make up inputs, the same each time: floats from 0 to 1, any bytes, other integers 0 or 1.

        A first size that is free is `rows`, others are 32.

        Raises:
            ConfigError: One is a string.
        """
        rng = np.random.default_rng(0)
        return {name: _random(info, rows, rng) for name, info in self.inputs.items()}


def _random(info: TensorInfo, rows: int, rng: np.random.Generator) -> np.ndarray:
    if info.dtype == STRING:
        raise ConfigError(f"No strings can be made up for '{info.name}'.", fix="give examples")
    shape = [n or (32 if axis else rows) for axis, n in enumerate(info.shape)]
    dtype = np.dtype(info.dtype)
    if dtype.kind in "biu":
        return rng.integers(0, 256 if dtype == np.uint8 else 2, shape).astype(dtype)
    return rng.random(shape).astype(dtype)


Call = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]
Functions = Mapping[str, tuple[Signature, Call]]


class ExportedModel:
    """An exported model that is loaded; calls may come from several threads.

    Attributes:
        path: Where it lies.
        runtime: What runs it: 'tensorflow', 'onnx', …
        metadata: What its `towerpack.json` says; empty without one.
        signatures: By name. A model with a single one has it as 'serving_default' too.
    """

    def __init__(self, path: Path, runtime: str, functions: Functions) -> None:
        self.path = path
        self.runtime = runtime
        self.metadata = _metadata(path / METADATA)
        self._functions = dict(functions)
        if len(functions) == 1:
            (function,) = functions.values()
            also = self.metadata.get("signature", DEFAULT_SIGNATURE)
            self._functions |= {DEFAULT_SIGNATURE: function, also: function}
        self.signatures = {name: signature for name, (signature, _) in self._functions.items()}

    def run(
        self, inputs: Mapping[str, Any], signature: str = DEFAULT_SIGNATURE
    ) -> dict[str, np.ndarray]:
        """Compute the outputs of a signature.

        Args:
            inputs: Arrays, or lists, by name. They are converted where that changes no value.
            signature: Its name.

        Raises:
            SpecError: There is no such signature, or its inputs have other names, dtypes, shapes.
        """
        if signature not in self.signatures:
            raise SpecError(
                f"{self.path} has no signature '{signature}'.",
                fix=did_you_mean(signature, self.signatures),
            )
        found, call = self._functions[signature]
        wanted = found.inputs
        if inputs.keys() != wanted.keys():
            raise SpecError(
                f"The signature '{signature}' takes other inputs.",
                got=", ".join(sorted(inputs)) or "none",
                expected=", ".join(f"{name} ({info})" for name, info in wanted.items()),
            )
        arrays = {name: fitting(inputs[name], info) for name, info in wanted.items()}
        empty = [name for name, array in arrays.items() if not array.size]
        if not empty or STRING in {info.dtype for info in wanted.values()}:
            return call(arrays)
        free = [name for name, info in wanted.items() if info.shape[:1] == (None,)]
        by_row = all(info.shape[:1] == (None,) for info in found.outputs.values())
        if by_row and not any(len(arrays[name]) for name in free):
            # Runtimes fail on zero rows, or end the process: compute a made-up row and drop it.
            shapes = {name: [1, *(size or 1 for size in arrays[name].shape[1:])] for name in free}
            rows = {name: np.ones(shape, arrays[name].dtype) for name, shape in shapes.items()}
            return {name: array[:0] for name, array in call({**arrays, **rows}).items()}
        if self.runtime not in ("tensorflow", "keras"):
            got = f"shape {list(arrays[empty[0]].shape)}"
            raise SpecError(f"The input '{empty[0]}' is empty.", got=got)
        return call(arrays)


def _metadata(file: Path) -> dict[str, Any]:
    """What a `towerpack.json` says; nothing without one."""
    if not file.is_file():
        return {}
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
        json.dumps(found, ensure_ascii=False).encode()  # half a character cannot be sent
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{file} is no JSON: {error}.", fix="export the model again") from error
    keys = ("optional_inputs", "class_names")
    if (
        not isinstance(found, dict)
        or not all(isinstance(found.get(k, []), list) for k in keys)
        or not all(isinstance(name, str) for name in found.get("optional_inputs", []))
        or not isinstance(found.get("signature", ""), str)
    ):
        raise FormatError(
            f"{file} does not describe an exported model.",
            expected="a JSON object, in which class_names and optional_inputs are lists, and "
            "signature is a text",
            fix="export the model again",
        )
    return cast("dict[str, Any]", found)


def without_loss(value: Any, wanted: np.dtype[Any]) -> np.ndarray:
    """Convert lists, numbers and arrays where that changes no value; floats may be rounded.

    What cannot be converted so keeps its own dtype. A ragged list is a ValueError.
    """
    array = np.asarray(value)
    if array.dtype == wanted or array.dtype.kind not in "biuf":
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        converted = array.astype(wanted)
    # bfloat16 is of kind V for NumPy.
    return converted if wanted.kind in "fV" or np.array_equal(converted, array) else array


def fitting(value: Any, info: TensorInfo) -> np.ndarray:
    """A value as an array of an input's dtype and shape."""
    dtype = np.dtype(object if info.dtype == STRING else info.dtype)
    try:
        array = np.asarray(value, dtype if info.dtype == STRING else None)
        array = without_loss(array, dtype)
    except ValueError as error:
        what = f"The input '{info.name}' is no array: {error}."
        raise SpecError(what, expected=str(info)) from None
    same_rank = array.ndim == len(info.shape)
    sizes = zip(info.shape, array.shape, strict=False)
    if array.dtype != dtype or not same_rank or any(n not in (None, m) for n, m in sizes):
        raise SpecError(
            f"The input '{info.name}' does not fit the exported model.",
            got=f"{array.dtype.name} {list(array.shape)}",
            expected=str(info),
        )
    return array
