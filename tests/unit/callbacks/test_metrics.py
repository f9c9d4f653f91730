"""Numbers of an evaluation, against scikit-learn's; any split into batches gives the same."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import sklearn.metrics as sk
from PIL import Image

from small_host import SmallHost
from towerpack import CallbackError, ConfigError
from towerpack.callbacks import (
    ConfusionMatrix,
    Inferencer,
    KerasMetric,
    MeanIoU,
    Perplexity,
    TopKError,
)
from towerpack.callbacks.monitors import Monitor, Monitors

RNG = np.random.default_rng(3)
LABEL = RNG.integers(0, 4, 50)
LOGITS = RNG.normal(size=(50, 5)).astype(np.float32)
LOGITS[np.arange(50), LABEL] += 1
PREDICTION = LOGITS.argmax(axis=1)
MASK = RNG.integers(0, 3, (50, 6, 7))
SEEN = np.where(RNG.random(MASK.shape) < 0.7, MASK, RNG.integers(0, 3, MASK.shape))
ALL = {"logits": LOGITS, "label": LABEL, "prediction": PREDICTION, "mask": MASK, "seen": SEEN}


def over(inferencer: Inferencer, data: dict[str, Any] = ALL, size: int = 50) -> dict[str, float]:
    inferencer.begin()
    for i in range(0, 50, size):
        batch = {name: data[name][i : i + size] for name in inferencer.outputs()}
        inferencer.update(batch, len(next(iter(batch.values()))))
    results = dict(inferencer.finish())
    assert list(results) == list(inferencer.names())
    return results


def sk_top(k: int) -> float:
    return 1 - sk.top_k_accuracy_score(LABEL, LOGITS, k=k, labels=range(5))


@pytest.mark.parametrize(
    ("inferencer", "expected"),
    [
        (TopKError(1), [sk_top(1)]),
        (TopKError(2, name="second"), [sk_top(2)]),
        (TopKError(9), [0.0]),
        (
            ConfusionMatrix(5, draw=False),
            [
                sk.accuracy_score(LABEL, PREDICTION),
                sk.recall_score(LABEL, PREDICTION, labels=range(4), average="macro"),
                sk.f1_score(LABEL, PREDICTION, labels=range(4), average="macro"),
            ],
        ),
        (
            MeanIoU(["a", "b", "c"], "seen", "mask"),
            [
                sk.jaccard_score(MASK.ravel(), SEEN.ravel(), average="macro"),
                *sk.jaccard_score(MASK.ravel(), SEEN.ravel(), average=None),
            ],
        ),
        (
            MeanIoU(7, "seen", "mask"),
            [sk.jaccard_score(MASK.ravel(), SEEN.ravel(), average="macro")],
        ),
        (
            MeanIoU(3, "seen", "mask", ignore=2),
            [sk.jaccard_score(MASK[MASK < 2], SEEN[MASK < 2], labels=range(3), average="macro")],
        ),
        (
            KerasMetric(keras.metrics.SparseTopKCategoricalAccuracy(2), ["label", "logits"]),
            [1 - sk_top(2)],
        ),
        (KerasMetric(keras.metrics.MeanIoU(3), ["mask", "seen"], name="iou"), None),
    ],
)
def test_they_agree_with_others_in_any_batches(inferencer: Inferencer, expected: Any) -> None:
    whole = list(over(inferencer).values())
    if expected is not None:
        np.testing.assert_allclose(whole, expected, rtol=1e-6, atol=1e-7)
    for size in (7, 1):
        np.testing.assert_allclose(list(over(inferencer, size=size).values()), whole, rtol=1e-6)


def test_equal_scores_and_nan() -> None:
    scores = np.array([[1, 1, 1], [np.nan, 0, 0], [np.nan, 5, 0]])
    one = {"logits": scores, "label": np.array([1, 0, 1])}
    error = TopKError(1)
    error.begin()
    error.update(one, 3)
    assert error.finish() == {"top1_error": pytest.approx(2 / 3)}


def test_perplexity_weighs_tokens() -> None:
    perplexity = Perplexity(tokens="n")
    batches = [(math.log(4), 3), (math.log(9), 1), (0.0, 0)]
    perplexity.begin()
    for cost, n in batches:
        perplexity.update({"cost": np.asarray(cost), "n": np.asarray(n)}, 2)
    assert perplexity.finish()["perplexity"] == pytest.approx(math.exp(np.log([4, 4, 4, 9]).mean()))
    perplexity.begin()
    assert math.isnan(perplexity.finish()["perplexity"])
    perplexity.update({"cost": np.asarray(5000.0), "n": np.asarray(1)}, 1)
    assert perplexity.finish()["perplexity"] == math.inf


class Pictures(Monitor):
    def __init__(self) -> None:
        self.seen: dict[str, np.ndarray] = {}

    def put_image(self, name: str, image: np.ndarray, step: int) -> None:
        self.seen[name] = image


def test_the_matrix_is_drawn_and_written(tmp_path: Path) -> None:
    host, pictures = SmallHost(tmp_path), Pictures()
    host.monitors = Monitors([pictures])
    matrix = ConfusionMatrix(["cat", "dog", "bird", "fish", "none"])
    over(matrix)
    over(matrix, size=20)  # anew
    matrix.show(host, "val")
    np.testing.assert_array_equal(
        matrix.matrix, sk.confusion_matrix(LABEL, PREDICTION, labels=range(5))
    )
    table = (tmp_path / "val-confusion.csv").read_text().splitlines()
    assert table[0] == "true \\ predicted,cat,dog,bird,fish,none"
    assert table[2] == "dog," + ",".join(map(str, matrix.matrix[1]))
    drawn = Image.open(io.BytesIO((tmp_path / "val-confusion.png").read_bytes()))
    assert pictures.seen["val/confusion"].shape == (drawn.height, drawn.width, 3)


@pytest.mark.parametrize(
    ("inferencer", "wrong"),
    [
        (ConfusionMatrix(3, draw=False), {}),
        (ConfusionMatrix(5, draw=False), {"prediction": LOGITS}),
        (ConfusionMatrix(5, draw=False), {"prediction": LABEL / 2}),
        (MeanIoU(3, "seen", "mask"), {"mask": MASK - 1}),
        (TopKError(1), {"label": LABEL + 2}),
        (TopKError(1), {"logits": LOGITS[:, 0]}),
        (KerasMetric(keras.metrics.F1Score(), ["hot", "logits"]), {"hot": np.eye(5)[LABEL]}),
    ],
)
def test_outputs_that_do_not_fit(inferencer: Inferencer, wrong: dict[str, Any]) -> None:
    with pytest.raises(CallbackError):
        over(inferencer, {**ALL, **wrong})


@pytest.mark.parametrize(
    "make",
    [
        lambda: TopKError(0),
        lambda: ConfusionMatrix(1),
        lambda: MeanIoU(3, "label", "label"),
        lambda: KerasMetric(keras.metrics.AUC),
    ],
)
def test_what_makes_no_sense(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()
