"""Formats of exported models, and functions that load each format with a runtime."""

from __future__ import annotations

import importlib.util
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from towerpack._core.errors import (
    ConfigError,
    FormatError,
    MissingExtraError,
    SpecError,
    TowerpackError,
)
from towerpack._core.extras import require
from towerpack._core.naming import did_you_mean
from towerpack._core.native_log import quiet_start
from towerpack.inference.exported import (
    DEFAULT_SIGNATURE,
    Call,
    ExportedModel,
    Functions,
    Signature,
    TensorInfo,
)

FILES: Final = {
    "saved_model": "saved_model.pb",
    "onnx": "model.onnx",
    "litert": "model.tflite",
    "keras": "model.keras",
}
"""File that identifies each format."""


def infos_of(specs: Mapping[str, Any]) -> dict[str, TensorInfo]:
    """Convert specs of TensorFlow or Keras to `TensorInfo`."""
    return _infos((name, getattr(s.dtype, "name", s.dtype), s.shape) for name, s in specs.items())


def _infos(tensors: Iterable[tuple[str, Any, Iterable[Any]]]) -> dict[str, TensorInfo]:
    """Return a `TensorInfo` by name. In shapes, unknown sizes may be names, negative or None."""

    def size(n: Any) -> int | None:
        return int(n) if isinstance(n, int | np.integer) and n >= 0 else None

    return {
        name: TensorInfo(
            name, dtype if dtype == "string" else np.dtype(dtype).name, (*map(size, shape),)
        )
        for name, dtype, shape in tensors
    }


def _saved_model(path: Path) -> Functions:
    tf: Any = require("tensorflow", extra="tf", needed_for="A SavedModel")
    loaded = tf.saved_model.load(os.fspath(path))

    def function(name: str) -> tuple[Signature, Call]:
        concrete = loaded.signatures[name]
        specs = concrete.structured_input_signature[1]

        def call(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            tensors = {n: tf.constant(value, specs[n].dtype) for n, value in inputs.items()}
            # Use `loaded`, because the variables are deleted with the loaded object.
            return {n: t.numpy() for n, t in loaded.signatures[name](**tensors).items()}

        return Signature(infos_of(specs), infos_of(concrete.structured_outputs)), call

    return {name: function(name) for name in loaded.signatures if not name.startswith("__")}


def _onnx(path: Path) -> Functions:
    onnx: Any = require("onnxruntime", extra="export", needed_for="Running an ONNX model")
    available = onnx.get_available_providers()
    providers = [p for p in ("CUDAExecutionProvider", "CPUExecutionProvider") if p in available]
    session = onnx.InferenceSession(path / FILES["onnx"], providers=providers)
    numpy_names = {"float": "float32", "double": "float64"}

    def infos(nodes: Iterable[Any]) -> dict[str, TensorInfo]:
        types = {n.name: n.type.removeprefix("tensor(").removesuffix(")") for n in nodes}
        return _infos(
            (n.name, numpy_names.get(types[n.name], types[n.name]), n.shape) for n in nodes
        )

    signature = Signature(infos(session.get_inputs()), infos(session.get_outputs()))
    names = list(signature.outputs)
    return {
        DEFAULT_SIGNATURE: (
            signature,
            lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True)),
        )
    }


def _openvino(path: Path) -> Functions:
    if importlib.util.find_spec("openvino") is None:
        raise MissingExtraError(
            "The package openvino is not installed.", fix="pip install openvino"
        )
    openvino: Any = importlib.import_module("openvino")
    # By default OpenVINO computes in bfloat16 on CPUs that support it, with errors of up to 1 %.
    hint = {"INFERENCE_PRECISION_HINT": "f32"}
    model = openvino.Core().compile_model(path / FILES["onnx"], "CPU", hint)

    def infos(ports: Iterable[Any]) -> dict[str, TensorInfo]:
        return _infos(
            (
                port.get_any_name(),
                port.get_element_type().to_dtype(),
                [n.get_length() if n.is_static else None for n in port.partial_shape],
            )
            for port in ports
        )

    signature = Signature(infos(model.inputs), infos(model.outputs))

    def call(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        results = model(dict(inputs))
        return {name: results[name].copy() for name in signature.outputs}

    return {DEFAULT_SIGNATURE: (signature, _one_at_a_time(call))}


def _litert(path: Path) -> Functions:
    name = "ai_edge_litert.interpreter"
    litert: Any = require(name, extra="export", needed_for="Running a LiteRT model")
    affinity = getattr(os, "sched_getaffinity", None)
    threads = len(affinity(0)) if affinity else os.cpu_count()
    file = os.fspath(path / FILES["litert"])
    interpreter = litert.Interpreter(file, num_threads=threads)
    interpreter.allocate_tensors()
    runner = interpreter.get_signature_runner()

    def infos(details: Mapping[str, Any]) -> dict[str, TensorInfo]:
        return _infos((name, d["dtype"], d["shape_signature"]) for name, d in details.items())

    signature = Signature(infos(runner.get_input_details()), infos(runner.get_output_details()))

    def call(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        try:
            return runner(**inputs)
        except RuntimeError as error:  # raised by LiteRT for values out of range, for example
            raise SpecError("LiteRT cannot process these inputs.", details=str(error)) from error

    return {DEFAULT_SIGNATURE: (signature, _one_at_a_time(call))}


def _keras(path: Path) -> Functions:
    keras: Any = require("keras", extra="tf", needed_for="A Keras model")
    tf: Any = require("tensorflow", extra="tf", needed_for="A Keras model")
    try:
        model = keras.saving.load_model(path / FILES["keras"], compile=False)
    except (TypeError, ValueError) as error:  # a Lambda layer, or unknown layers
        raise FormatError(
            f"Keras cannot load {path / FILES['keras']}.",
            got=" ".join(str(error).split())[:500],
            expected="only layers of Keras and registered layers of imported modules. Lambda "
            "layers are not loaded, because they contain code",
        ) from error
    function = tf.function(lambda inputs: model(inputs, training=False), autograph=False)
    specs = {name: tf.TensorSpec(t.shape, t.dtype, name) for name, t in model.input.items()}
    concrete = function.get_concrete_function(specs)

    def call(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        tensors = {name: tf.constant(array) for name, array in inputs.items()}
        return {name: t.numpy() for name, t in concrete(tensors).items()}

    return {DEFAULT_SIGNATURE: (Signature(infos_of(specs), infos_of(model.output)), call)}


def _one_at_a_time(call: Call) -> Call:
    lock = threading.Lock()

    def locked(inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        with lock:
            return call(inputs)

    return locked


_RUNTIMES: Final[Mapping[str, Mapping[str, tuple[Callable[[Path], Functions], str]]]] = {
    "saved_model": {"tensorflow": (_saved_model, "tensorflow")},
    "onnx": {"onnx": (_onnx, "onnxruntime"), "openvino": (_openvino, "openvino")},
    "litert": {"litert": (_litert, "ai_edge_litert")},
    "keras": {"keras": (_keras, "keras")},
}
"""Loading function and required package of each runtime, by format and name of the runtime."""


def load_exported(path: str | os.PathLike[str], runtime: str | None = None) -> ExportedModel:
    """Load an exported model.

    Args:
        path: Directory of the model, or of versions `1/`, `2/`, …, of which the newest is loaded.
        runtime: Name of the runtime. None for the default runtime of the format.

    Raises:
        ConfigError: There is no exported model, or the runtime does not support its format.
        FormatError: The model is damaged, or the runtime does not support one of its operations.
        MissingExtraError: The runtime is not installed.
    """
    directory, form = _find(Path(path))
    runtimes = _RUNTIMES[form]
    name = runtime or next(iter(runtimes))
    if name not in runtimes:
        raise ConfigError(
            f"The runtime '{runtime}' does not support {directory / FILES[form]}.",
            fix=did_you_mean(name, runtimes),
        )
    try:
        with quiet_start():
            functions = runtimes[name][0](directory)
    except TowerpackError:
        raise
    except Exception as error:  # each runtime has its own error classes
        raise FormatError(
            f"{name} cannot load {directory / FILES[form]}.",
            got=f"{type(error).__name__}: {' '.join(str(error).split())[:500]}",
            fix="export the model again, with library versions that match those installed here",
        ) from error
    return ExportedModel(directory, name, functions)


def installed_runtimes(path: str | os.PathLike[str]) -> list[str]:
    """Return the names of the installed runtimes for an exported model.

    Args:
        path: Directory of the model, or of its versions.

    Raises:
        ConfigError: There is no exported model.
    """
    runtimes = _RUNTIMES[_find(Path(path))[1]].items()
    return [name for name, (_, package) in runtimes if importlib.util.find_spec(package)]


def versions_in(path: Path) -> list[int]:
    """Return the numbers of the versions in a directory, in order."""
    entries = path.iterdir() if path.is_dir() else []
    return sorted(int(p.name) for p in entries if p.name.isdecimal() and p.is_dir())


def _find(path: Path) -> tuple[Path, str]:
    for directory in [path, *(path / str(n) for n in reversed(versions_in(path)))]:
        for form, file in FILES.items():
            if (directory / file).is_file():
                return directory, form
    raise ConfigError(
        f"{path} does not contain an exported model.",
        expected=", ".join(FILES.values()) + ", or a directory 1, 2, … with one of them",
    )
