"""How far an exported model's numbers are from a predictor's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack.inference._exported import DEFAULT_SIGNATURE, ExportedModel, Signature
from towerpack.inference._predictor import Predictor


def compare_exported(
    exported: ExportedModel,
    predictor: Predictor,
    examples: Mapping[str, np.ndarray],
    preprocess: Callable[[Any], Any] | None = None,
) -> dict[str, float]:
    """The greatest difference of each output, over all examples at once and the first alone.

    Of floats it is relative to the output's greatest magnitude; of other dtypes, the share of
    elements that differ; of a class, half of what its probability is below the greatest (at most
    the difference of probabilities, where classes are taken by them).

    Args:
        exported: Written by `export`, whose metadata say which output is which.
        predictor: Of the same outputs.
        examples: Inputs by name.
        preprocess: What makes inputs of the signature's `image_bytes`, which are then PNG files of
            the examples.

    Returns:
        By `signature/output`; infinite where shapes differ, or what is finite.
    """
    outputs: Mapping[str, str] = exported.metadata["outputs"]
    class_names: Sequence[str] | None = exported.metadata.get("class_names")
    differences: dict[str, float] = {}
    seen: list[Signature] = []
    for name, signature in exported.signatures.items():
        if signature in seen:
            continue
        seen.append(signature)
        for batch in _batches(predictor, examples):
            given: Mapping[str, Any] = batch
            if preprocess is not None and name == DEFAULT_SIGNATURE:
                ((argument, pictures),) = batch.items()
                files = [tf.io.encode_png(picture).numpy() for picture in pictures]
                batch = {argument: np.stack([np.asarray(preprocess(file)) for file in files])}
                given = {"image_bytes": files}
            results = dict(zip(predictor.output_names, predictor(**batch), strict=True))
            got = exported.run(given, name)
            for output, value in got.items():
                if class_names is None:
                    difference = _difference(value, results[outputs[output]])
                else:
                    (expected,) = results.values()
                    if output == "probabilities":
                        difference = _difference(value, expected)
                    else:
                        difference = _class_difference(value, expected, class_names)
                key = f"{name}/{output}"
                differences[key] = max(differences.get(key, 0.0), difference)
    return differences


def _batches(
    predictor: Predictor, examples: Mapping[str, np.ndarray]
) -> list[Mapping[str, np.ndarray]]:
    if any(not spec.shape.rank or spec.shape[0] is not None for spec in predictor.specs):
        return [examples]
    return [examples, {name: array[:1] for name, array in examples.items()}]


def _class_difference(
    chosen: np.ndarray, probabilities: np.ndarray, class_names: Sequence[str]
) -> float:
    if chosen.dtype.kind not in "iu":
        chosen = np.array([class_names.index(name.decode()) for name in chosen])
    taken = np.take_along_axis(probabilities, chosen[:, None].astype(np.int64), 1)[:, 0]
    return float(np.max(probabilities.max(1) - taken)) / 2


def _difference(got: np.ndarray, expected: np.ndarray) -> float:
    if got.shape != expected.shape:
        return np.inf
    if expected.dtype.kind not in "fV":  # NumPy does not count bfloat16 as a float
        return float(np.mean(got != expected)) if expected.size else 0.0
    a, b = (np.asarray(array, np.float64) for array in (got, expected))
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return np.inf
    scale = np.abs(b[finite]).max(initial=0.0) or 1.0
    difference = np.abs(a[finite] - b[finite]).max(initial=0.0) / scale
    return float(difference) if np.isfinite(difference) else np.inf
