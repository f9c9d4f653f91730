"""Exported models, in whatever runtime: named arrays in, named arrays out."""

from __future__ import annotations

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from towerpack._core.errors import ConfigError, SpecError
from towerpack._core.extras import require
from towerpack._core.naming import did_you_mean

METADATA: Final = "towerpack.json"
DEFAULT_SIGNATURE: Final = "serving_default"


@dataclass(frozen=True)
class TensorInfo:
    """An input or output: dtype by NumPy's name or 'string', None where a size is free."""

    name: str
    dtype: str
    shape: tuple[int | None, ...]


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
        signatures: By name.
    """

    runtime: str
    signatures: Mapping[str, Signature]

    def __init__(self, path: Path) -> None:
        self.path = path
        file = path / METADATA
        self.metadata: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}

    def run(
        self, inputs: Mapping[str, np.ndarray], signature: str = DEFAULT_SIGNATURE
    ) -> dict[str, np.ndarray]:
        """Compute the outputs of a signature.

        Raises:
            SpecError: There is no such signature, or its inputs have other names.
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
                expected=", ".join(sorted(wanted)),
            )
        return self._run(inputs, signature)

    @abstractmethod
    def _run(self, inputs: Mapping[str, np.ndarray], signature: str) -> dict[str, np.ndarray]: ...


class _SavedModel(ExportedModel):
    runtime = "tensorflow"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._tf: Any = require("tensorflow", extra="tf", needed_for="A SavedModel")
        self._loaded = self._tf.saved_model.load(os.fspath(path))
        self._functions: dict[str, Any] = {
            name: function
            for name, function in self._loaded.signatures.items()
            if not name.startswith("__")
        }
        self.signatures = {name: _signature_of(f) for name, f in self._functions.items()}

    def _run(self, inputs: Mapping[str, np.ndarray], signature: str) -> dict[str, np.ndarray]:
        infos = self.signatures[signature].inputs
        tensors = {
            name: self._tf.constant(value, self._tf.as_dtype(infos[name].dtype))
            for name, value in inputs.items()
        }
        return {name: t.numpy() for name, t in self._functions[signature](**tensors).items()}


def _signature_of(function: Any) -> Signature:
    def infos(specs: Mapping[str, Any]) -> dict[str, TensorInfo]:
        return {
            name: TensorInfo(name, spec.dtype.name, tuple(spec.shape))
            for name, spec in specs.items()
        }

    return Signature(
        infos(function.structured_input_signature[1]), infos(function.structured_outputs)
    )


def load_exported(path: str | os.PathLike[str], runtime: str | None = None) -> ExportedModel:
    """Load an exported model.

    Args:
        path: Its directory.
        runtime: What is to run it; None for what its format is made for.

    Raises:
        ConfigError: There is no exported model.
    """
    found = Path(path)
    if not (found / "saved_model.pb").is_file():
        raise ConfigError(f"There is no exported model in {found}.", expected="saved_model.pb")
    return _SavedModel(found)
