from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError, ExportError, SpecError, TowerpackError
from towerpack._core.logs import get_logger
from towerpack._core.naming import did_you_mean
from towerpack._core.versions import NOTED, library_versions
from towerpack.checkpoint import Checkpoint
from towerpack.inference._comparison import compare_exported
from towerpack.inference._runtimes import FILES, infos_of, load_exported, versions_in
from towerpack.inference._write_formats import QUANTIZATIONS, ExportModule, write
from towerpack.inference.exported import METADATA, Signature
from towerpack.inference.predictor import Predictor
from towerpack.model import as_model

TOLERANCES: Final = {None: 1e-4, "float16": 1e-2, "dynamic": 0.1, "int8": 0.1}
"""Default tolerance for differences of outputs, by quantization."""
_logger = get_logger(__name__)
_LONGEST = 1000  # characters of a converter's message


def export(
    model: Any,
    checkpoint: str | os.PathLike[str] | Checkpoint,
    path: str | os.PathLike[str],
    *,
    format: str = "saved_model",
    inputs: Sequence[str] | None = None,
    outputs: Sequence[str] | str | Mapping[str, str] = (),
    preprocess: Callable[[Any], Any] | None = None,
    class_names: Sequence[str] | None = None,
    serve: Callable[[Callable[..., Any]], Any] | None = None,
    metadata: Mapping[str, Any] | None = None,
    tag: str | None = None,
    ema: bool = False,
    batch_examples: Any = None,
    quantize: str | None = None,
    tolerance: float | None = None,
    version: int | None = None,
    tell: Callable[[str], None] = _logger.info,
) -> Path:
    """Export a model for inference to `path/VERSION/`, for programs without Towerpack.

        export(Model(), 'runs/mnist', 'exports/mnist', outputs='prob', format='onnx')

    The exported model is loaded by its own runtime, and its outputs are compared with those of a
    `Predictor`. The directory appears only after this check has passed.

    Args:
        model: A `ModelDesc`, or the plain functions.
        checkpoint: A run directory, a checkpoint, or a loaded `Checkpoint`.
        path: Directory for the versions of the exported model.
        format: 'saved_model', 'onnx', 'litert' or 'keras'.
        inputs: Names of inputs, in order. None uses the inputs that the outputs need.
        outputs: Names of outputs, or a dict from exported names to names in the model.
        preprocess: TensorFlow function from the bytes of an image file to the input of one example,
            for a SavedModel. The signature 'serving_default' then takes `image_bytes`, and
            'tensors' takes the model's input.
        class_names: Names of the classes, if the output is probabilities [n, classes]. 'tensors'
            then returns `class_ids` and `probabilities`, 'serving_default' returns `classes` and
            `probabilities`.
        serve: Function that returns 'serving_default' as a `tf.function` with an input signature,
            for a SavedModel. Its argument is the function of 'tensors', which maps the model's
            inputs to a dict of outputs.
        metadata: Additional entries for `towerpack.json`.
        tag: Name of the checkpoint to use, for example `'best-val/error'`.
        ema: Whether to use the moving averages of the weights.
        batch_examples: Inputs for comparison and calibration: a dict, or arrays in order. None uses
            random numbers.
        quantize: 'dynamic' (ONNX, LiteRT), 'float16' or 'int8' (LiteRT; needs `batch_examples`).
        tolerance: Maximum difference of outputs. None for the default of `quantize`.
        version: Version number. None uses the next free number.
        tell: Function that gets a line of text after each action.

    Returns:
        Directory of the version.

    Raises:
        ConfigError: The format does not support an argument, or the version exists.
        ExportError: The model cannot be exported, or the exported model computes other outputs.
        CheckpointError: There is no valid checkpoint.
        LayerError: The model has no output with one of the names.
    """
    if format not in FILES:
        what = f"format={format!r} is not one of the export formats."
        raise ConfigError(what, fix=did_you_mean(format, FILES))
    if quantize is not None and quantize not in QUANTIZATIONS[format]:
        known = ", ".join(map(repr, QUANTIZATIONS[format])) or "None"
        raise ConfigError(
            f"The format '{format}' does not support quantize={quantize!r}.", expected=known
        )
    if preprocess is not None and format != "saved_model":
        raise ConfigError(
            f"preprocess= needs format='saved_model', got format={format!r}.",
            fix="remove preprocess to export a model of pixels, or use format='saved_model'",
        )
    if serve is not None and (format != "saved_model" or preprocess or class_names):
        raise ConfigError(
            "serve= needs format='saved_model', and excludes preprocess= and class_names=.",
            got=f"format={format!r}",
            fix="export as saved_model, and pass serve= alone",
        )
    if quantize == "int8" and batch_examples is None:
        raise ConfigError(
            "quantize='int8' needs real inputs for its calibration.",
            fix="pass batch_examples= with about 100 examples",
        )
    listed = [outputs] if isinstance(outputs, str) else outputs
    named = dict(listed if isinstance(listed, Mapping) else zip(listed, listed, strict=True))
    if version is not None and (Path(path) / str(version)).exists():
        raise ConfigError(
            f"Version {version} already exists in {path}.",
            fix="use version=None for the next number",
        )
    desc = as_model(model)
    predictor = Predictor(desc, checkpoint, inputs, list(named.values()), tag=tag, ema=ema)
    examples = _examples(predictor, batch_examples)
    _check(predictor, examples, format, class_names, preprocess)
    if class_names is not None:
        named = {"probabilities": predictor.output_names[0]}
    functions = ExportModule(predictor, named, class_names, preprocess, serve)
    description: dict[str, Any] = {
        "format": format,
        "quantize": quantize,
        "source": {"checkpoint": str(predictor.checkpoint), "step": predictor.step, "ema": ema},
        "signature": functions.plain,
        "outputs": named,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": library_versions((*NOTED, "tf2onnx", "onnxruntime", "ai-edge-litert")),
    }
    if class_names is not None:
        description["class_names"] = list(class_names)
    for key, value in (metadata or {}).items():
        if description.setdefault(key, value) != value:
            raise ConfigError(
                f"The metadata must not have the key {key!r}, which export() writes itself.",
                fix="rename the key",
            )

    def save() -> None:
        text = json.dumps(description, indent=2, ensure_ascii=False)
        (temporary / METADATA).write_text(text + "\n")

    Path(path).mkdir(parents=True, exist_ok=True)
    holder = Path(tempfile.mkdtemp(prefix=".export-", dir=path))
    temporary = holder / "model"  # mkdtemp makes its own directory unreadable for other users
    try:
        temporary.mkdir()
        save()
        try:
            write(functions, temporary, format, quantize, examples)
            size = sum(f.stat().st_size for f in temporary.rglob("*") if f.is_file())
            tell(f"converted to {format}, {size / 1e6:.2f} MB")
            exported = load_exported(temporary)
            tell(f"loaded by {exported.runtime}")
            differences = compare_exported(exported, predictor, examples, preprocess)
        except TowerpackError:
            raise
        except Exception as error:
            fix = None if format == "saved_model" else "export with format='saved_model'"
            if "untracked" in str(error):
                fix = "create layers with lookup tables outside build_graph, such as in __init__"
            raise ExportError(
                f"The model cannot be exported as {format}.", details=f"{error}"[:_LONGEST], fix=fix
            ) from error
        name, greatest = max(differences.items(), key=lambda item: item[1])
        rows = len(next(iter(examples.values()), ()))
        description["compared"] = {
            "examples": rows,
            "random": batch_examples is None,
            "greatest_difference": greatest,
            "differences": differences,
        }
        limit = TOLERANCES[quantize] if tolerance is None else tolerance
        tell(f"compared: greatest difference {greatest:.1e} on {rows} examples")
        if not greatest <= limit:
            raise ExportError(
                f"The outputs of the exported {format} differ too much from those of the model.",
                got=f"a difference of {greatest:.2g} in '{name}'",
                expected=f"at most {limit:g}",
                fix="compare with real inputs (batch_examples=), or pass tolerance=",
            )
        save()
        return _in_place(temporary, Path(path), version)
    finally:
        shutil.rmtree(holder)
        with contextlib.suppress(OSError):
            Path(path).rmdir()  # succeeds only if the directory is empty


def _in_place(temporary: Path, path: Path, version: int | None) -> Path:
    while True:
        number = version if version is not None else max(versions_in(path), default=0) + 1
        try:
            return temporary.rename(path / str(number))
        except OSError:
            if version is not None or not (path / str(number)).exists():
                raise


def _examples(predictor: Predictor, inputs: Any) -> dict[str, np.ndarray]:
    """Return example inputs by name, or random numbers if `inputs` is None."""
    names = predictor.input_names
    if inputs is None:
        return Signature(infos_of({str(s.name): s for s in predictor.specs}), {}).random_inputs(8)
    if not isinstance(inputs, Mapping):
        listed = [inputs] if isinstance(inputs, np.ndarray) else inputs
        inputs = dict(zip(names, listed, strict=True))
    missing = [name for name in names if name not in inputs]
    if missing:
        got = ", ".join(map(str, inputs))
        expected = ", ".join(names)
        raise ConfigError(f"batch_examples has no input {missing}.", got=got, expected=expected)
    return {name: np.asarray(inputs[name]) for name in names}


def _check(
    predictor: Predictor,
    examples: Mapping[str, np.ndarray],
    format: str,
    class_names: Sequence[str] | None,
    preprocess: Any,
) -> None:
    """Check that the model, the format and the arguments of `export` are compatible."""
    odd = [name for name in predictor.input_names if not re.fullmatch(r"[a-zA-Z]\w*", name, re.A)]
    if odd:
        wanted = "a letter, then letters, digits or _"
        raise ConfigError(f"The input names {odd} cannot be exported.", expected=wanted)
    try:
        results = predictor(**examples)
    except tf.errors.OpError as error:
        what = "The model fails on the example inputs, which are random by default."
        fix = "pass real inputs as batch_examples="
        raise ExportError(what, fix=fix, details=error.message) from error
    strings = [str(s.name) for s in predictor.specs if s.dtype == tf.string]
    strings += [n for n, r in zip(predictor.output_names, results, strict=True) if r.dtype == "O"]
    if strings and format != "saved_model":
        raise ConfigError(f"'{format}' does not support strings.", got=", ".join(strings))
    if preprocess is not None and [spec.dtype for spec in predictor.specs] != [tf.uint8]:
        got = ", ".join(f"{spec.dtype.name} {spec.name}" for spec in predictor.specs)
        fix = "remove preprocess, or read other files in a function for serve="
        what = "preprocess= needs a model with a single input of dtype uint8."
        raise ConfigError(what, got=got, fix=fix)
    shapes = [list(result.shape) for result in results]
    if class_names is not None and [shape[1:] for shape in shapes] != [[len(class_names)]]:
        raise SpecError(
            f"With {len(class_names)} class names, the model must have one output of shape "
            f"[n, {len(class_names)}].",
            got=", ".join(map(str, shapes)),
        )
