"""Numbers and pictures of an epoch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from small_training import (
    SPECS,
    Do,
    Model,
    Recorded,
    Y,
    assert_same,
    train,
)
from towerpack.callbacks import (
    ScheduledHyperParamSetter,
)
from towerpack.callbacks.monitors import Monitor
from towerpack.nn import (
    FullyConnected,
    expose,
    summary,
)

pytestmark = pytest.mark.usefixtures("nothing_to_collect", "no_thread_is_left")


def test_numbers_of_an_epoch_are_exact(paced: Any, tmp_path: Path) -> None:
    paced(4)
    recorded = Recorded("cost", "out")
    trainer = train(tmp_path, [recorded])
    costs = [float(step["cost"]) for step in recorded.outputs]
    assert trainer.monitors.history("cost") == [(6, sum(costs[:6]) / 6), (12, sum(costs[6:]) / 6)]
    total = weight = 0.0
    for cost in costs:
        total, weight = 0.9 * total + (1 - 0.9) * cost, 0.9 * weight + (1 - 0.9)
    assert trainer.monitors.latest("mean") == pytest.approx(total / weight, rel=1e-12)
    worst = np.max((recorded.outputs[-1]["out"] - Y[-8:]) ** 2)
    assert trainer.monitors.latest("last") == pytest.approx(float(worst), rel=1e-6)


class Pictures(Monitor):
    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.values: list[np.ndarray] = []

    def put_image(self, name: str, image: np.ndarray, step: int) -> None:
        self.seen.append((name, step))

    def put_histogram(self, name: str, values: np.ndarray, step: int) -> None:
        self.seen.append((name, step))
        self.values.append(values)


def drawing(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    out = tf.squeeze(FullyConnected("fc", x, 1), -1)
    expose("out", out)
    summary.histogram("spread", out)
    summary.image("picture", tf.reshape(tf.sigmoid(x), [-1, 3, 1, 1]), max_images=2)
    return tf.reduce_mean(tf.square(out - y))


def test_pictures_only_at_the_end_of_an_epoch(paced: Any, tmp_path: Path) -> None:
    paced(4)
    pictures, recorded = Pictures(), Recorded("out")
    model = (SPECS, drawing, lambda: keras.optimizers.SGD(0.1))
    train(tmp_path, [recorded], model=model, monitors=[pictures])
    assert pictures.seen == [
        (name, step) for step in (6, 12) for name in ("spread", "picture/0", "picture/1")
    ]
    np.testing.assert_array_equal(pictures.values[0], recorded.outputs[5]["out"])
    calls = [step for hook, _, step in recorded.log if hook == "after_call"]
    assert calls == [4, 5, 6, 10, 11, 12]


def test_the_scheduled_rate_is_used(paced: Any, tmp_path: Path) -> None:
    paced(4)
    schedule = ScheduledHyperParamSetter("learning_rate", [(0, 0.125), (3, 0.0)], step_based=True)
    model = Model(lambda: keras.optimizers.SGD(1.0))
    weights: list[dict[str, np.ndarray]] = []
    keep = [
        Do(hook, lambda self: weights.append(self.trainer.get_weights()))
        for hook in ("before_train", "after_call")
    ]
    train(tmp_path, [schedule, *keep], model=model, max_epoch=1)
    # A call ends at step 3; with a rate of 0 nothing changes after it.
    before, third, last = weights
    assert_same(last, third)
    assert not np.array_equal(before["fc1/kernel"], last["fc1/kernel"])
