"""Trained models for other programs, compared with the original before they are there."""

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
"""By quantization: what `compare_exported` may find."""
_logger = get_logger(__name__)
_LONGEST = 1000  # of what a converter says


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
    """Write a model's inference part as `path/VERSION/`, for programs without Towerpack.

        export(Model(), 'runs/mnist', 'exports/mnist', outputs='prob', format='onnx')

    The files are loaded by their own runtime and compared with a `Predictor` first. They appear
    whole, or not at all.

    Args:
        model: A `ModelDesc`, or the plain functions.
        checkpoint: A run directory, one checkpoint, or a loaded one.
        path: Holds the versions.
        format: 'saved_model', 'onnx', 'litert' or 'keras'.
        inputs: Names of inputs, in order; None for those that are needed.
        outputs: Names of outputs, or a dict: name outside -> name in the model.
        preprocess: Makes the one input of one example of the bytes of a picture's file, in
            TensorFlow operations. Then 'serving_default' takes `image_bytes`, and 'tensors' what
            the model takes. A SavedModel alone can hold it.
        class_names: Of a classifier whose output are probabilities [n, classes]. Then 'tensors'
            gives `class_ids` and `probabilities`, 'serving_default' `classes` and `probabilities`.
        serve: Makes 'serving_default' of a model that is no classifier: takes the function that
            'tensors' is, from the model's inputs to its outputs by name, and gives a `tf.function`
            with an input signature, such as from files to files. For a SavedModel alone.
        metadata: For `towerpack.json`, besides what is written there by itself.
        tag: Take the checkpoint kept under this name.
        ema: Take the averages of the weights.
        batch_examples: Inputs to compare with, and to calibrate by: a dict, or arrays in order.
            None for random numbers.
        quantize: 'dynamic' (ONNX, LiteRT), 'float16' or 'int8' (LiteRT; needs `batch_examples`).
        tolerance: What the comparison may find; None for what is usual.
        version: A number; None for the next.
        tell: Takes a line for each thing that was done.

    Returns:
        The version's directory.

    Raises:
        ConfigError: Something that the format cannot do was asked for, or the version exists.
        ExportError: The model cannot be written so, or it computes something else.
        CheckpointError: There is no valid checkpoint.
        LayerError: The model has no output of some name.
    """
    if format not in FILES:
        raise ConfigError(f"format={format!r}.", fix=did_you_mean(format, FILES))
    if quantize is not None and quantize not in QUANTIZATIONS[format]:
        known = ", ".join(map(repr, QUANTIZATIONS[format])) or "None"
        raise ConfigError(f"{format} with quantize={quantize!r}.", expected=known)
    if preprocess is not None and format != "saved_model":
        raise ConfigError(
            f"{format} does not read pictures' files.",
            fix="leave preprocess out, and give the model pixels; or format='saved_model'",
        )
    if serve is not None and (format != "saved_model" or preprocess or class_names):
        raise ConfigError(
            "serve= is a SavedModel's signature instead of preprocess= and class_names=.",
            got=f"format={format!r}",
        )
    if quantize == "int8" and batch_examples is None:
        raise ConfigError("quantize='int8' calibrates by real inputs.", fix="batch_examples=…")
    listed = [outputs] if isinstance(outputs, str) else outputs
    named = dict(listed if isinstance(listed, Mapping) else zip(listed, listed, strict=True))
    if version is not None and (Path(path) / str(version)).exists():
        raise ConfigError(f"There is a version {version} in {path}.", fix="version=None")
    desc = as_model(model)
    predictor = Predictor(desc, checkpoint, inputs, list(named.values()), tag=tag, ema=ema)
    examples = _examples(predictor, batch_examples)
    _check(predictor, examples, format, class_names, preprocess)
    if class_names is not None:
        named = {"probabilities": predictor.output_names[0]}
    functions = ExportModule(predictor, named, class_names, preprocess, serve)
    told: dict[str, Any] = {
        "format": format,
        "quantize": quantize,
        "source": {"checkpoint": str(predictor.checkpoint), "step": predictor.step, "ema": ema},
        "signature": functions.plain,
        "outputs": named,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "versions": library_versions((*NOTED, "tf2onnx", "onnxruntime", "ai-edge-litert")),
    }
    if class_names is not None:
        told["class_names"] = list(class_names)
    for key, value in (metadata or {}).items():
        if told.setdefault(key, value) != value:
            raise ConfigError(f"metadata[{key!r}] is written by export itself.", fix="rename it")

    def save() -> None:
        (temporary / METADATA).write_text(json.dumps(told, indent=2, ensure_ascii=False) + "\n")

    Path(path).mkdir(parents=True, exist_ok=True)
    holder = Path(tempfile.mkdtemp(prefix=".export-", dir=path))
    temporary = holder / "model"  # which, unlike its holder, others may read
    try:
        temporary.mkdir()
        save()
        try:
            write(functions, temporary, format, quantize, examples)
            size = sum(f.stat().st_size for f in temporary.rglob("*") if f.is_file())
            tell(f"converted to {format}, {size / 1e6:.2f} MB")
            exported = load_exported(temporary)
            tell(f"loaded by {exported.runtime}")
            found = compare_exported(exported, predictor, examples, preprocess)
        except TowerpackError:
            raise
        except Exception as error:
            fix = None if format == "saved_model" else "export with format='saved_model'"
            if "untracked" in str(error):
                fix = "create layers with lookup tables outside build_graph, such as in __init__"
            raise ExportError(
                f"The model cannot be exported as {format}.",
                details=f"{error}"[:_LONGEST],
                fix=fix,
            ) from error
        greatest = max(found, key=lambda key: found[key])
        rows = len(next(iter(examples.values()), ()))
        told["compared"] = {
            "examples": rows,
            "random": batch_examples is None,
            "greatest_difference": found[greatest],
            "differences": found,
        }
        limit = TOLERANCES[quantize] if tolerance is None else tolerance
        tell(f"compared: greatest difference {found[greatest]:.1e} on {rows} examples")
        if not found[greatest] <= limit:
            raise ExportError(
                f"The exported {format} computes something else than the model.",
                got=f"a difference of {found[greatest]:.2g} in '{greatest}'",
                expected=f"at most {limit:g}",
                fix="compare by real inputs (batch_examples=), or give tolerance=",
            )
        save()
        return _in_place(temporary, Path(path), version)
    finally:
        shutil.rmtree(holder)
        with contextlib.suppress(OSError):
            Path(path).rmdir()  # only if there is nothing in it


def _in_place(temporary: Path, path: Path, version: int | None) -> Path:
    while True:
        number = version if version is not None else max(versions_in(path), default=0) + 1
        try:
            return temporary.rename(path / str(number))
        except OSError:
            if version is not None or not (path / str(number)).exists():
                raise


def _examples(predictor: Predictor, given: Any) -> dict[str, np.ndarray]:
    """What was given by name, or random numbers."""
    names = predictor.input_names
    if given is None:
        return Signature(infos_of({str(s.name): s for s in predictor.specs}), {}).random_inputs(8)
    if not isinstance(given, Mapping):
        listed = [given] if isinstance(given, np.ndarray) else given
        given = dict(zip(names, listed, strict=True))
    missing = [name for name in names if name not in given]
    if missing:
        got = ", ".join(map(str, given))
        raise ConfigError(f"batch_examples lacks {missing}.", got=got, expected=", ".join(names))
    return {name: np.asarray(given[name]) for name in names}


def _check(
    predictor: Predictor,
    examples: Mapping[str, np.ndarray],
    format: str,
    class_names: Sequence[str] | None,
    preprocess: Any,
) -> None:
    """What was asked for fits the model and the format."""
    odd = [name for name in predictor.input_names if not re.fullmatch(r"[a-zA-Z]\w*", name, re.A)]
    if odd:
        wanted = "a letter, then letters, digits or _"
        raise ConfigError(f"Not all formats keep the inputs' names {odd}.", expected=wanted)
    try:
        results = predictor(**examples)
    except tf.errors.OpError as error:
        what = "The model fails on the examples, which are random where none are given."
        raise ExportError(what, fix="batch_examples=…", details=error.message) from error
    strings = [str(s.name) for s in predictor.specs if s.dtype == tf.string]
    strings += [n for n, r in zip(predictor.output_names, results, strict=True) if r.dtype == "O"]
    if strings and format != "saved_model":
        raise ConfigError(f"{format} has no strings.", got=", ".join(strings))
    if preprocess is not None and [spec.dtype for spec in predictor.specs] != [tf.uint8]:
        got = ", ".join(f"{spec.dtype.name} {spec.name}" for spec in predictor.specs)
        fix = "leave preprocess out, or read other files in a function for serve="
        raise ConfigError("preprocess is for a single input of uint8.", got=got, fix=fix)
    shapes = [list(result.shape) for result in results]
    if class_names is not None and [shape[1:] for shape in shapes] != [[len(class_names)]]:
        raise SpecError(
            f"{len(class_names)} class names do not fit the outputs.",
            got=", ".join(map(str, shapes)),
            expected=f"one output [n, {len(class_names)}]",
        )
