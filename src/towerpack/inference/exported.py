"""Exported models as functions of NumPy arrays, in any runtime."""

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
    """Name, dtype and shape of an input or output.

    Attributes:
        name: Name of the tensor.
        dtype: Name of the NumPy dtype, or 'string'.
        shape: Size of each dimension; None if the size is variable.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...]

    def __str__(self) -> str:
        return f"{self.dtype} [{', '.join('n' if n is None else str(n) for n in self.shape)}]"


@dataclass(frozen=True)
class Signature:
    """Inputs and outputs of one function of an exported model, by name."""

    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]

    def random_inputs(self, rows: int) -> dict[str, np.ndarray]:
        """Return random inputs. Every call returns the same values.

        Floats are from 0 to 1, uint8 from 0 to 255, other integers 0 or 1.

        Args:
            rows: Batch size, if it is variable. Other variable sizes are 32.

        Raises:
            ConfigError: An input has the dtype 'string'.
        """
        rng = np.random.default_rng(0)
        return {name: _random(info, rows, rng) for name, info in self.inputs.items()}


def _random(info: TensorInfo, rows: int, rng: np.random.Generator) -> np.ndarray:
    if info.dtype == STRING:
        raise ConfigError(
            f"Random values cannot be generated for the input '{info.name}', which takes strings.",
            fix="pass example inputs",
        )
    shape = [n or (32 if axis else rows) for axis, n in enumerate(info.shape)]
    dtype = np.dtype(info.dtype)
    if dtype.kind in "biu":
        return rng.integers(0, 256 if dtype == np.uint8 else 2, shape).astype(dtype)
    return rng.random(shape).astype(dtype)


Call = Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]
Functions = Mapping[str, tuple[Signature, Call]]


class ExportedModel:
    """Exported model, loaded by `load_exported`. Thread-safe.

    Args:
        path: Directory of the model.
        runtime: Name of the runtime: 'tensorflow', 'onnx', …
        functions: Signature and function of each name.

    Attributes:
        metadata: Contents of the model's `towerpack.json`. Empty without this file.
        signatures: Signatures by name. A single signature is also named 'serving_default'.
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
            inputs: Arrays or lists by name. They are converted if that changes no value.
            signature: Name of the signature.

        Raises:
            SpecError: The signature does not exist, or the inputs do not match it.
        """
        if signature not in self.signatures:
            raise SpecError(
                f"{self.path} has no signature '{signature}'.",
                fix=did_you_mean(signature, self.signatures),
            )
        info, call = self._functions[signature]
        wanted = info.inputs
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
        by_row = all(output.shape[:1] == (None,) for output in info.outputs.values())
        if by_row and not any(len(arrays[name]) for name in free):
            # Runtimes fail or crash on an empty batch: compute a row of ones, and drop the result.
            shapes = {name: [1, *(size or 1 for size in arrays[name].shape[1:])] for name in free}
            rows = {name: np.ones(shape, arrays[name].dtype) for name, shape in shapes.items()}
            return {name: array[:0] for name, array in call({**arrays, **rows}).items()}
        if self.runtime not in ("tensorflow", "keras"):
            shape = list(arrays[empty[0]].shape)
            raise SpecError(f"The input '{empty[0]}' must not be empty, got shape {shape}.")
        return call(arrays)


def _metadata(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        metadata: Any = json.loads(file.read_text(encoding="utf-8"))
        json.dumps(metadata, ensure_ascii=False).encode()  # lone surrogates cannot be encoded
    except (ValueError, RecursionError) as error:
        raise FormatError(
            f"{file} is not valid JSON: {error}.", fix="export the model again"
        ) from error
    keys = ("optional_inputs", "class_names")
    if (
        not isinstance(metadata, dict)
        or not all(isinstance(metadata.get(k, []), list) for k in keys)
        or not all(isinstance(name, str) for name in metadata.get("optional_inputs", []))
        or not isinstance(metadata.get("signature", ""), str)
    ):
        raise FormatError(
            f"{file} does not describe an exported model.",
            expected="a JSON object in which class_names and optional_inputs are lists and "
            "signature is a string",
            fix="export the model again",
        )
    return cast("dict[str, Any]", metadata)


def without_loss(value: Any, wanted: np.dtype[Any]) -> np.ndarray:
    """Convert a value to an array of a dtype if no value changes. Floats may be rounded.

    If values would change, the array keeps its dtype. A ragged list raises ValueError.
    """
    array = np.asarray(value)
    if array.dtype == wanted or array.dtype.kind not in "biuf":
        return array
    with np.errstate(over="ignore", invalid="ignore"):
        converted = array.astype(wanted)
    # bfloat16 is of kind V for NumPy.
    return converted if wanted.kind in "fV" or np.array_equal(converted, array) else array


def fitting(value: Any, info: TensorInfo) -> np.ndarray:
    """Convert a value to an array that matches an input, or raise SpecError."""
    dtype = np.dtype(object if info.dtype == STRING else info.dtype)
    try:
        array = np.asarray(value, dtype if info.dtype == STRING else None)
        array = without_loss(array, dtype)
    except ValueError as error:
        what = f"The input '{info.name}' cannot be converted to an array: {error}."
        raise SpecError(what, expected=str(info)) from None
    same_rank = array.ndim == len(info.shape)
    sizes = zip(info.shape, array.shape, strict=False)
    if array.dtype != dtype or not same_rank or any(n not in (None, m) for n, m in sizes):
        raise SpecError(
            f"The array for the input '{info.name}' has a wrong dtype or shape.",
            got=f"{array.dtype.name} {list(array.shape)}",
            expected=str(info),
        )
    return array
