from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack.inference.exported import DEFAULT_SIGNATURE, ExportedModel, Signature
from towerpack.inference.predictor import Predictor


def compare_exported(
    exported: ExportedModel,
    predictor: Predictor,
    examples: Mapping[str, np.ndarray],
    preprocess: Callable[[Any], Any] | None = None,
) -> dict[str, float]:
    """Return the largest difference between each output of an exported model and a predictor.

    Compares all examples in one batch, and the first example alone. Differences of floats are
    relative to the output's largest magnitude. For other dtypes, the difference is the fraction of
    elements that differ. For class ids or names, it is half of the distance between the class's
    probability and the largest probability. Signatures with other inputs are skipped.

    Args:
        exported: Model written by `export`, whose metadata names the outputs.
        predictor: Predictor of the same outputs.
        examples: Inputs by name.
        preprocess: Function from the bytes of an image file to the input of one example. The
            default signature then gets the examples as PNG files.

    Returns:
        Differences by `signature/output`. Infinite if shapes or the positions of non-finite values
        differ.
    """
    outputs, class_names = (exported.metadata.get(key, ()) for key in ("outputs", "class_names"))
    batches = [examples]
    if all(spec.shape.rank and spec.shape[0] is None for spec in predictor.specs):
        batches.append({name: array[:1] for name, array in examples.items()})
    differences: dict[str, float] = {}
    seen: list[Signature] = []
    for name, signature in exported.signatures.items():
        other = preprocess is None and signature.inputs.keys() != examples.keys()
        if signature in seen or other:
            continue
        seen.append(signature)
        for batch in batches:
            inputs: Mapping[str, Any] = batch
            if preprocess is not None and name == DEFAULT_SIGNATURE:
                ((argument, pictures),) = batch.items()
                files = [tf.io.encode_png(picture).numpy() for picture in pictures]
                batch = {argument: np.stack([np.asarray(preprocess(file)) for file in files])}
                inputs = {"image_bytes": files}
            results = dict(zip(predictor.output_names, predictor(**batch), strict=True))
            for output, value in exported.run(inputs, name).items():
                if output in outputs:
                    difference = _difference(value, results[outputs[output]])
                else:
                    (probabilities,) = results.values()
                    difference = _class_difference(value, probabilities, class_names)
                key = f"{name}/{output}"
                differences[key] = max(differences.get(key, 0.0), difference)
    return differences


def _class_difference(chosen: Any, probabilities: np.ndarray, class_names: Sequence[str]) -> float:
    if chosen.dtype.kind not in "iu":
        chosen = np.array([class_names.index(name.decode()) for name in chosen])
    of_chosen = np.take_along_axis(probabilities, chosen[:, None].astype(np.int64), 1)[:, 0]
    return float(np.max(probabilities.max(1) - of_chosen)) / 2


def _difference(got: np.ndarray, expected: np.ndarray) -> float:
    if got.shape != expected.shape:
        return np.inf
    if expected.dtype.kind not in "fV":  # bfloat16 is of kind V for NumPy
        return float(np.mean(got != expected)) if expected.size else 0.0
    a, b = (np.asarray(array, np.float64) for array in (got, expected))
    finite = np.isfinite(b)
    if not np.array_equal(np.where(finite, 0, a), np.where(finite, 0, b), equal_nan=True):
        return np.inf
    scale = np.abs(b[finite]).max(initial=0.0) or 1.0
    difference = np.abs(a[finite] - b[finite]).max(initial=0.0) / scale
    return float(difference) if np.isfinite(difference) else np.inf
