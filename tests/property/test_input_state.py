"""The law of an input's state: where the last consumed batch stands, however steps were split."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from towerpack.dataflow import BatchData, DataFlow, DataFromList, ShuffleData
from towerpack.inputs import FeedInput, QueueInput

SPECS = [tf.TensorSpec([None], tf.int64, "n")]
STEP = tf.constant(0, tf.int64)


def flow() -> DataFlow:
    points = [(np.int64(i),) for i in range(13)]
    return BatchData(ShuffleData(DataFromList(points, shuffle=False)), 3, remainder=True)


def expected(number: int) -> list[Any]:
    source = flow()
    found: list[Any] = []
    epoch = 0
    while len(found) < number:
        found += [dp[0].tolist() for dp in source.iterate(seed=5, epoch=epoch)]
        epoch += 1
    return found[:number]


@settings(max_examples=25)
@given(
    splits=st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), max_size=6),
    restarts=st.sets(st.integers(0, 5)),
    kind=st.sampled_from([FeedInput, QueueInput]),
    replicas=st.integers(1, 3),
    queue_size=st.integers(1, 5),
)
def test_any_split_and_any_restart_give_the_flow_exactly_once(
    splits: list[tuple[int, int]],
    restarts: set[int],
    kind: type,
    replicas: int,
    queue_size: int,
) -> None:
    def fresh(state: Any = None) -> Any:
        size = (queue_size,) if kind is QueueInput else ()
        source = kind(flow(), *size)
        source.setup(SPECS, seed=5, replicas=replicas)
        source.start(state)
        return source

    source = fresh()
    found: list[Any] = []
    try:
        for i, (wanted, most) in enumerate(splits):
            ready = source.reserve(wanted, lambda: None)
            assert 1 <= ready <= wanted
            # A call may consume fewer steps than were reserved; the rest stays reserved.
            used = min(ready, most)
            for _ in range(used * replicas):
                found.append(source.get(STEP)[0].numpy().tolist())
            source.consumed(used)
            if i in restarts:
                state = source.state()
                source.stop()
                source = fresh(state)
    finally:
        source.stop()
    assert found == expected(len(found))
