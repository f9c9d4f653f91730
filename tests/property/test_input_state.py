"""The law of inputs: each batch once and in order, however steps were split and sources restarted.

Every source obeys it, and gives exactly what there is where the data end.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf

from scaling import only_in_full, scaled
from towerpack.dataflow import BatchData, DataFlow, DataFromList, ShuffleData
from towerpack.inputs import (
    FeedInput,
    InputSource,
    QueueInput,
    StagingInput,
    TFDatasetInput,
    remap_input_source,
)

SPECS = [tf.TensorSpec([None], tf.int64, "n")]
STEP = tf.constant(0, tf.int64)
# Batches of more passes than any example takes.
MOST = 200


def flow() -> DataFlow:
    points = [(np.int64(i),) for i in range(13)]
    return BatchData(ShuffleData(DataFromList(points, shuffle=False)), 3, remainder=True)


def dataset() -> tf.data.Dataset:
    """Of unknown length, with buffers that are part of its position."""
    numbers = tf.data.Dataset.range(20).filter(lambda x: tf.math.floormod(x, 3) != 2)
    return numbers.shuffle(5, seed=3).map(lambda x: x * 2, num_parallel_calls=2).batch(3)


def of_flow() -> list[Any]:
    each = (flow().iterate(seed=5, epoch=epoch) for epoch in range(MOST // 5))
    return [dp[0].tolist() for one in each for dp in one]


def of_dataset() -> list[Any]:
    """Computed anew in each test: trainings of other tests set TensorFlow's global seed."""
    return [batch.numpy().tolist() for batch in dataset().repeat().take(MOST)]


class Kind(NamedTuple):
    make: Callable[..., InputSource]
    expected: Callable[[], list[Any]]


def staged(source: InputSource, stages: int = 1) -> InputSource:
    return StagingInput(source, stages, "CPU:0")


KINDS = {
    "feed": Kind(lambda size, **kw: FeedInput(flow(), **kw), of_flow),
    "queue": Kind(lambda size, **kw: QueueInput(flow(), size, **kw), of_flow),
    "dataset": Kind(lambda size, **kw: TFDatasetInput(dataset(), **kw), of_dataset),
    "dataset of a flow": Kind(lambda size, **kw: TFDatasetInput(flow(), **kw), of_flow),
    "staged": Kind(lambda size, **kw: staged(QueueInput(flow(), size, **kw)), of_flow),
    "staged twice": Kind(lambda size, **kw: staged(FeedInput(flow(), **kw), 2), of_flow),
    "staged dataset": Kind(lambda size, **kw: staged(TFDatasetInput(dataset(), **kw)), of_dataset),
    "nothing to stage on": Kind(lambda size, **kw: StagingInput(FeedInput(flow(), **kw)), of_flow),
    "remapped": Kind(
        lambda size, **kw: remap_input_source(QueueInput(flow(), size, **kw), ["n"]), of_flow
    ),
}


# A dataset and what stages are tested apart from each other.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=only_in_full) if name == "staged dataset" else name
        for name in KINDS
    ],
)
@pytest.mark.parametrize("seed", range(scaled(100, at_least=4)))
def test_any_split_and_any_restart_give_the_data_exactly_once(name: str, seed: int) -> None:
    rng = random.Random(seed)
    splits = [(rng.randint(1, 9), rng.randint(0, 9)) for _ in range(rng.randint(0, 6))]
    restarts = rng.sample(range(6), rng.randint(0, 6))
    replicas, size, infinite = rng.randint(1, 3), rng.randint(1, 5), bool(rng.randrange(2))
    kind = KINDS[name]

    def fresh(state: Any = None) -> InputSource:
        source = kind.make(size, infinite=infinite)
        source.setup(SPECS, seed=5, replicas=replicas)
        source.start(state)
        return source

    source = fresh()
    found: list[Any] = []

    def step_of(wanted: int, most: int) -> int:
        ready = source.reserve(wanted, lambda: None)
        assert 0 <= ready <= wanted
        # A call may consume fewer steps than were reserved; the rest stays reserved.
        used = min(ready, most)
        for _ in range(used * replicas):
            found.append(source.get(STEP)[0].numpy().tolist())
        source.consumed(used)
        return ready

    try:
        for i, (wanted, most) in enumerate(splits):
            assert step_of(wanted, most) or not infinite
            if i in restarts:
                state = source.state()
                source.stop()
                source = fresh(state)
        while not infinite and step_of(3, 3):
            pass
    finally:
        source.stop()
    one_pass = 5  # batches, of either
    end = len(found) if infinite else one_pass // replicas * replicas
    assert found == kind.expected()[:end]
