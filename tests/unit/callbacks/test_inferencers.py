from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from towerpack import CallbackError
from towerpack.callbacks import (
    BinaryClassificationStats,
    ClassificationError,
    Inferencer,
    ScalarStats,
)


def over(inferencer: Inferencer, batches: list[tuple[dict[str, Any], int]]) -> dict[str, float]:
    inferencer.begin()
    for outputs, size in batches:
        inferencer.update({n: np.asarray(v) for n, v in outputs.items()}, size)
    results = dict(inferencer.finish())
    assert list(results) == list(inferencer.names())
    return results


def test_means_weigh_batches_by_their_size() -> None:
    stats = ScalarStats(["cost", "accuracy"])
    batches = [({"cost": 1.0, "accuracy": 0.5}, 4), ({"cost": 6.0, "accuracy": 1.0}, 1)]
    assert over(stats, batches) == {"cost": 2.0, "accuracy": 0.6}
    # The next evaluation starts anew.
    assert over(stats, batches[1:]) == {"cost": 6.0, "accuracy": 1.0}


def test_names_of_scalars() -> None:
    assert ScalarStats("cost").names() == ["cost"]
    assert ScalarStats(["cost"], prefix="ema").names() == ["ema/cost"]
    assert ScalarStats(["cost"], prefix="ema").outputs() == ["cost"]


def test_scalars_must_be_scalars() -> None:
    with pytest.raises(
        CallbackError, match=r"(?s)'cost' must be a scalar.*float64 \[2\].*reduce_mean"
    ):
        over(ScalarStats("cost"), [({"cost": [1.0, 2.0]}, 2)])


@pytest.mark.parametrize("dtype", [bool, np.float32, np.int64, np.uint8])
def test_classification_error_is_exact(dtype: Any) -> None:
    wrong = [np.array([1, 0, 0, 0], dtype), np.array([1], dtype)]
    error = ClassificationError("wrong", "top1")
    batches = [({"wrong": w}, len(w)) for w in wrong]
    assert over(error, batches) == {"top1": 0.4}
    assert over(error, batches[:1]) == {"top1": 0.25}


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (0.25, r"(?s)float64 \[\].*without reducing it.*expose\('incorrect'"),
        ([0, 1, 1], r"int64 \[3\]"),
        ([[0], [1]], r"int64 \[2, 1\]"),
        ([0.0, 0.5], r"must be 0 or 1 \(or booleans\), got 0.5"),
        ([0.0, np.nan], r"must be 0 or 1 \(or booleans\), got nan"),
        ([0, -1], r"must be 0 or 1 \(or booleans\), got -1"),
    ],
)
def test_wrong_ones_must_be_flags(value: Any, complaint: str) -> None:
    with pytest.raises(CallbackError, match=complaint):
        over(ClassificationError(), [({"incorrect": value}, 2)])


def test_precision_and_recall() -> None:
    stats = BinaryClassificationStats()
    batches = [
        ({"prediction": [1, 1, 0], "label": [1, 0, 1]}, 3),
        ({"prediction": [True], "label": [1.0]}, 1),
    ]
    assert over(stats, batches) == {"precision": pytest.approx(2 / 3), "recall": 2 / 3}
    pixels = np.arange(12).reshape(2, 3, 2)
    of_pixels = [({"prediction": pixels > 5, "label": pixels % 2}, 2)]
    assert over(stats, of_pixels) == {"precision": 0.5, "recall": 0.5}
    with pytest.raises(CallbackError, match="'prediction' must have one value for each label"):
        over(stats, [({"prediction": [0, 1], "label": pixels % 2}, 2)])
    nothing = [({"prediction": [0, 0], "label": [0, 0]}, 2)]
    assert over(stats, nothing) == {"precision": 0.0, "recall": 0.0}
