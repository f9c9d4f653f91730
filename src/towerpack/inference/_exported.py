"""Exported models, in whatever runtime: named arrays in, named arrays out."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from towerpack._core.errors import SpecError
from towerpack._core.naming import did_you_mean
from towerpack.inference._arrays import without_loss

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


class ExportedModel(ABC):
    """An exported model that is loaded; calls may come from several threads.

    Attributes:
        path: Where it lies.
        runtime: What runs it: 'tensorflow', 'onnx', …
        metadata: What its `towerpack.json` says; empty without one.
        signatures: By name. A model with a single one has it as 'serving_default' too.
    """

    runtime: str
    signatures: Mapping[str, Signature]

    def __init__(self, path: Path) -> None:
        self.path = path
        file = path / METADATA
        self.metadata: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}

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
        wanted = self.signatures[signature].inputs
        if inputs.keys() != wanted.keys():
            raise SpecError(
                f"The signature '{signature}' takes other inputs.",
                got=", ".join(sorted(inputs)) or "none",
                expected=", ".join(f"{name} ({info})" for name, info in wanted.items()),
            )
        return self._run({name: _fitting(inputs[name], wanted[name]) for name in wanted}, signature)

    @abstractmethod
    def _run(self, inputs: Mapping[str, np.ndarray], signature: str) -> dict[str, np.ndarray]: ...


def _fitting(value: Any, info: TensorInfo) -> np.ndarray:
    try:
        if info.dtype == STRING:
            array, fits = np.asarray(value, object), True
        else:
            array = without_loss(value, np.dtype(info.dtype))
            fits = array.dtype == np.dtype(info.dtype)
    except ValueError as error:
        raise SpecError(
            f"The input '{info.name}' is no array: {error}.", expected=str(info)
        ) from None
    same_rank = array.ndim == len(info.shape)
    if not (fits and same_rank) or any(
        n not in (None, m) for n, m in zip(info.shape, array.shape, strict=True)
    ):
        raise SpecError(
            f"The input '{info.name}' does not fit the exported model.",
            got=f"{array.dtype.name} {list(array.shape)}",
            expected=str(info),
        )
    return array
