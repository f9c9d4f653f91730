"""Functions of an exported model, and functions that write each format."""

from __future__ import annotations

import gc
import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf

from towerpack._core.extras import require
from towerpack._core.native_log import quiet_start
from towerpack.inference._keras_layer import as_keras_model
from towerpack.inference._runtimes import FILES
from towerpack.inference.exported import DEFAULT_SIGNATURE
from towerpack.inference.predictor import Predictor

QUANTIZATIONS: Final[Mapping[str, Sequence[str]]] = {
    "saved_model": (),
    "onnx": ("dynamic",),
    "litert": ("float16", "dynamic", "int8"),
    "keras": (),
}
_OPSET: Final = 18


class ExportModule(tf.Module):
    """Module that holds the functions of an exported model, one per signature.

    The arguments are the same as those of `export`. `plain` is the name of the signature that
    takes the model's inputs.
    """

    def __init__(
        self,
        predictor: Predictor,
        outputs: Mapping[str, str],
        class_names: Sequence[str] | None,
        preprocess: Callable[[Any], Any] | None,
        serve: Callable[[Callable[..., Any]], Any] | None = None,
    ) -> None:
        super().__init__(name="exported")

        def compute(*inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            tensors = predictor.tensors(*inputs)
            named = {name: tensors[inner] for name, inner in outputs.items()}
            if class_names is not None:
                named["class_ids"] = tf.argmax(named["probabilities"], -1)
            return named

        def classify(*inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            if preprocess is not None:
                (spec,) = predictor.specs
                example = tf.TensorSpec(spec.shape[1:], spec.dtype)
                inputs = (tf.map_fn(preprocess, inputs[0], fn_output_signature=example),)
            named = compute(*inputs)
            if class_names is not None:
                ids = named.pop("class_ids")
                named["classes"] = tf.gather(tf.constant(list(class_names)), ids)
            return named

        split = class_names is not None or preprocess is not None or serve is not None
        self.plain = "tensors" if split else DEFAULT_SIGNATURE
        self.specs = predictor.specs
        self.by_signature = {self.plain: _function(compute, self.specs)}
        if serve is not None:
            self.by_signature[DEFAULT_SIGNATURE] = serve(compute)
        elif split:
            files = [tf.TensorSpec([None], tf.string, "image_bytes")]
            specs = self.specs if preprocess is None else files
            self.by_signature[DEFAULT_SIGNATURE] = _function(classify, specs)
        self.concrete = self.by_signature[self.plain].get_concrete_function()
        # A SavedModel contains only variables and tables that are attributes of the module.
        graphs = [f.get_concrete_function().graph for f in self.by_signature.values()]
        captured = {id(outer) for graph in graphs for outer, _ in graph.captures}
        self.tables = [t for t in _tables() if id(t._resource_handle) in captured]
        self.read = [v for v in predictor.variables.values() if id(v.handle) in captured]


def _tables() -> list[Any]:
    """Return all lookup tables of this process, wherever they are referenced."""
    resource, frozen = tf.saved_model.experimental.TrackableResource, gc.get_freeze_count()
    gc.unfreeze()  # otherwise get_objects() omits objects older than gc.freeze()
    tables = [item for item in gc.get_objects() if issubclass(type(item), resource)]
    if frozen:
        gc.freeze()
    return tables


def _function(function: Callable[..., Any], specs: Sequence[tf.TensorSpec]) -> Any:
    return tf.function(function, input_signature=specs, autograph=False)


def write(
    functions: ExportModule,
    directory: Path,
    form: str,
    quantize: str | None,
    examples: Mapping[str, np.ndarray],
) -> None:
    """Write the files of an exported model. `quantize='int8'` calibrates on `examples`."""
    file = directory / FILES[form]
    with quiet_start():
        if form == "saved_model":
            # Inference needs no gradients, and TensorFlow cannot save all custom gradients.
            options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
            signatures = functions.by_signature
            tf.saved_model.save(functions, os.fspath(directory), signatures, options)
        elif form == "onnx":
            _write_onnx(functions, file, quantize)
        elif form == "litert":
            file.write_bytes(_litert(functions, quantize, examples))
        else:
            as_keras_model(functions, functions.concrete, functions.specs).save(file)


def _write_onnx(functions: ExportModule, file: Path, quantize: str | None) -> None:
    tf2onnx: Any = require("tf2onnx", extra="export", needed_for="Export to ONNX")
    tf2onnx.convert.from_function(
        functions.by_signature[functions.plain],
        input_signature=functions.specs,
        opset=_OPSET,
        custom_op_handlers={"Erfc": (_erfc, [])},
        output_path=os.fspath(file),
    )
    if quantize is not None:
        package = "onnxruntime.quantization"
        tools: Any = require(package, extra="export", needed_for="Quantization")
        shapes: Any = importlib.import_module(f"{package}.shape_inference")
        shapes.quant_pre_process(file, file, skip_symbolic_shape=True)
        tools.quantize_dynamic(file, file)


def _erfc(graph: Any, node: Any, name: str, arguments: Any) -> None:
    """Convert Erfc, which GELU uses, to 1 - Erf. tf2onnx 1.17 does not support Erfc."""
    outputs = {"outputs": node.output, "shapes": node.output_shapes, "dtypes": node.output_dtypes}
    ones = graph.make_const(f"{name}/one", np.ones([1], np.float32))
    graph.remove_node(name)
    erf = graph.make_node("Erf", node.input, op_name_scope=name)
    graph.make_node("Sub", [ones.output[0], erf.output[0]], **outputs)


def _litert(
    functions: ExportModule, quantize: str | None, examples: Mapping[str, np.ndarray]
) -> bytes:
    converter = tf.lite.TFLiteConverter.from_concrete_functions([functions.concrete], functions)
    if quantize is not None:
        converter.optimizations = [tf.lite.Optimize.DEFAULT]
    if quantize == "float16":
        converter.target_spec.supported_types = [tf.float16]
    if quantize == "int8":
        rows = len(next(iter(examples.values())))
        converter.representative_dataset = lambda: (
            [array[i : i + 1] for array in examples.values()] for i in range(rows)
        )
    return converter.convert()
