"""Formats of exported models, and what runs them."""

from __future__ import annotations

import importlib
import importlib.util
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack._core.extras import require
from towerpack._core.naming import did_you_mean
from towerpack._core.native_log import quiet_start
from towerpack.inference._exported import (
    DEFAULT_SIGNATURE,
    ExportedModel,
    Signature,
    TensorInfo,
)

FILES: Final = {
    "saved_model": "saved_model.pb",
    "onnx": "model.onnx",
    "litert": "model.tflite",
    "keras": "model.keras",
}
"""The file by which each format is known."""


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
        self.signatures = {
            name: Signature(_specs(f.structured_input_signature[1]), _specs(f.structured_outputs))
            for name, f in self._functions.items()
        }

    def _run(self, inputs: Mapping[str, np.ndarray], signature: str) -> dict[str, np.ndarray]:
        infos = self.signatures[signature].inputs
        tensors = {
            name: self._tf.constant(value, self._tf.as_dtype(infos[name].dtype))
            for name, value in inputs.items()
        }
        return {name: t.numpy() for name, t in self._functions[signature](**tensors).items()}


class _OneFunction(ExportedModel):
    """A file with one function, under the name that the metadata give it."""

    def _is(self, inputs: Mapping[str, TensorInfo], outputs: Mapping[str, TensorInfo]) -> None:
        signature = Signature(inputs, outputs)
        name = self.metadata.get("signature", DEFAULT_SIGNATURE)
        self.signatures = {DEFAULT_SIGNATURE: signature, name: signature}
        self._lock = threading.Lock()


class _OnnxModel(_OneFunction):
    runtime = "onnx"
    _types: Final[dict[str, str]] = {"float": "float32", "double": "float64"}

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        runtime: Any = require("onnxruntime", extra="export", needed_for="Running an ONNX model")
        there = runtime.get_available_providers()
        wanted = [p for p in ("CUDAExecutionProvider", "CPUExecutionProvider") if p in there]
        self._session = runtime.InferenceSession(path / FILES["onnx"], providers=wanted)
        self._is(self._infos(self._session.get_inputs()), self._infos(self._session.get_outputs()))

    def _infos(self, nodes: Iterable[Any]) -> dict[str, TensorInfo]:
        def dtype(node: Any) -> str:
            found: str = node.type.removeprefix("tensor(").removesuffix(")")
            return self._types.get(found, found)

        return {n.name: TensorInfo(n.name, dtype(n), _sizes(n.shape)) for n in nodes}

    def _run(self, inputs: Mapping[str, np.ndarray], signature: str) -> dict[str, np.ndarray]:
        names = list(self.signatures[signature].outputs)
        return dict(zip(names, self._session.run(names, dict(inputs)), strict=True))


class _OpenvinoModel(_OneFunction):
    runtime = "openvino"
    _types: Final[dict[str, str]] = {
        "f16": "float16",
        "f32": "float32",
        "f64": "float64",
        "boolean": "bool",
    }

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            openvino: Any = importlib.import_module("openvino")
        except ImportError as error:
            raise ConfigError(
                f"OpenVINO cannot be imported: {error}.", fix="pip install openvino"
            ) from error
        core = openvino.Core()
        self._model = core.compile_model(path / FILES["onnx"], "CPU")
        self._is(self._infos(self._model.inputs), self._infos(self._model.outputs))

    def _infos(self, ports: Iterable[Any]) -> dict[str, TensorInfo]:
        def dtype(port: Any) -> str:
            name: str = port.get_element_type().get_type_name()
            return self._types.get(name, name.replace("i", "int").replace("u", "uint"))

        def sizes(port: Any) -> tuple[int | None, ...]:
            return _sizes([n.get_length() if n.is_static else None for n in port.partial_shape])

        return {
            (name := port.get_any_name()): TensorInfo(name, dtype(port), sizes(port))
            for port in ports
        }

    def _run(self, inputs: Mapping[str, np.ndarray], signature: str) -> dict[str, np.ndarray]:
        with self._lock:
            results = self._model(dict(inputs))
            return {name: results[name].copy() for name in self.signatures[signature].outputs}


class _LitertModel(_OneFunction):
    runtime = "litert"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        litert: Any = require(
            "ai_edge_litert.interpreter", extra="export", needed_for="Running a LiteRT model"
        )
        threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
        with quiet_start():
            self._interpreter = litert.Interpreter(
                model_path=os.fspath(path / FILES["litert"]), num_threads=threads or os.cpu_count()
            )
            self._call = self._interpreter.get_signature_runner()
        self._is(
            self._infos(self._call.get_input_details()),
            self._infos(self._call.get_output_details()),
        )

    def _infos(self, details: Mapping[str, Any]) -> dict[str, TensorInfo]:
        return {
            name: TensorInfo(name, np.dtype(d["dtype"]).name, _sizes(d["shape_signature"]))
            for name, d in details.items()
        }

    def _run(self, inputs: Mapping[str, np.ndarray], signature: str) -> dict[str, np.ndarray]:
        with self._lock:
            return self._call(**inputs)


class _KerasModel(_OneFunction):
    runtime = "keras"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        keras: Any = require("keras", extra="tf", needed_for="A Keras model")
        tf: Any = require("tensorflow", extra="tf", needed_for="A Keras model")
        model = keras.saving.load_model(path / FILES["keras"], compile=False)
        self._call = tf.function(
            lambda inputs: model(inputs, training=False), autograph=False, reduce_retracing=True
        )
        self._is(_specs(model.input), _specs(model.output))

    def _run(self, inputs: Mapping[str, np.ndarray], signature: str) -> dict[str, np.ndarray]:
        return {name: t.numpy() for name, t in self._call(dict(inputs)).items()}


_RUNTIMES: Final[Mapping[str, Mapping[str, tuple[type[ExportedModel], str]]]] = {
    "saved_model": {"tensorflow": (_SavedModel, "tensorflow")},
    "onnx": {"onnx": (_OnnxModel, "onnxruntime"), "openvino": (_OpenvinoModel, "openvino")},
    "litert": {"litert": (_LitertModel, "ai_edge_litert")},
    "keras": {"keras": (_KerasModel, "keras")},
}
"""By format and name: the class, and the package that it needs."""


def load_exported(path: str | os.PathLike[str], runtime: str | None = None) -> ExportedModel:
    """Load an exported model.

    Args:
        path: Its directory, or one that holds versions, `1/`, `2/`, …: the newest.
        runtime: What is to run it; None for what its format is made for.

    Raises:
        ConfigError: There is no exported model, or that runtime does not read its format.
        MissingExtraError: The runtime is not installed.
    """
    found, form = find_exported(path)
    runtimes = _RUNTIMES[form]
    if runtime is not None and runtime not in runtimes:
        raise ConfigError(
            f"'{runtime}' does not run {FILES[form]} of {found}.",
            fix=did_you_mean(runtime, runtimes),
        )
    return runtimes[runtime or next(iter(runtimes))][0](found)


def find_exported(path: str | os.PathLike[str]) -> tuple[Path, str]:
    """The directory of an exported model, and its format.

    Raises:
        ConfigError: There is none.
    """
    found = Path(path)
    for directory in [found, *(found / str(n) for n in reversed(versions_in(found)))]:
        for form, file in FILES.items():
            if (directory / file).is_file():
                return directory, form
    raise ConfigError(
        f"There is no exported model in {found}.",
        expected=", ".join(FILES.values()) + ", or a directory 1, 2, … with one of them",
    )


def versions_in(path: Path) -> list[int]:
    """The versions that a directory holds, in order."""
    there = path.iterdir() if path.is_dir() else []
    return sorted(int(p.name) for p in there if p.name.isdecimal() and p.is_dir())


def installed_runtimes(path: str | os.PathLike[str]) -> list[str]:
    """The runtimes that can run an exported model here.

    Raises:
        ConfigError: There is no exported model.
    """
    _, form = find_exported(path)
    return [
        name
        for name, (_, package) in _RUNTIMES[form].items()
        if importlib.util.find_spec(package) is not None
    ]


def _specs(specs: Mapping[str, Any]) -> dict[str, TensorInfo]:
    """Of TensorFlow's specs, or Keras's, whose dtype is a name."""
    return {
        name: TensorInfo(name, getattr(spec.dtype, "name", spec.dtype), _sizes(spec.shape))
        for name, spec in specs.items()
    }


def _sizes(shape: Iterable[Any]) -> tuple[int | None, ...]:
    """None for sizes that are names, negative, or None."""
    return tuple(int(n) if isinstance(n, int | np.integer) and n >= 0 else None for n in shape)
