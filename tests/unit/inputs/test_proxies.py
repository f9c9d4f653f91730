"""StagingInput, remap_input_source and ZMQInput: what the laws of all inputs do not say."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from towerpack import ConfigError, SpecError
from towerpack.dataflow import DataFromList, send_dataflow_zmq
from towerpack.inputs import (
    FeedInput,
    QueueInput,
    SplitInput,
    StagingInput,
    TensorInput,
    ZMQInput,
    remap_input_source,
)
from towerpack.inputs.components import ComponentSpec

pytestmark = pytest.mark.timeout(60)

STEP = tf.constant(0, tf.int64)
SPECS = [tf.TensorSpec([], tf.int64, "n"), tf.TensorSpec([], tf.string, "text")]


def flow(n: int = 20) -> DataFromList:
    return DataFromList([(np.int64(i), str(i)) for i in range(n)], shuffle=False)


class Watched(FeedInput):
    taken = 0

    def get(self, step: Any) -> list[tf.Tensor]:
        self.taken += 1
        return super().get(step)


def test_so_many_steps_are_staged() -> None:
    inner = Watched(flow(5), infinite=False)
    source = StagingInput(inner, 2, ["CPU:0"] * 3)
    source.setup(SPECS, seed=0, replicas=1)
    source.start()
    assert source.reserve(1, lambda: None) == 1
    inner.taken = 0
    n, text = source.get(STEP)
    assert (int(n), text.numpy(), inner.taken) == (0, b"0", 1)
    assert int(inner._queue.size()) == 0, "of three that are reserved, two are staged"
    source.stop()
    source.start()
    assert source.reserve(1, lambda: None) == 1
    assert int(source.get(STEP)[0]) == 0, "what was staged is forgotten"
    source.stop()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StagingInput(QueueInput(flow()), 0), "nr_stage must be at least 1, got 0"),
        (lambda: StagingInput(flow()), "needs an InputSource, got DataFromList"),  # pyright: ignore
        (lambda: StagingInput(TensorInput(lambda: [tf.zeros([])])), "must not be a TensorInput"),
        (
            lambda: StagingInput(FeedInput(flow()), device=["CPU:0"]).setup(
                SPECS, seed=0, replicas=2
            ),
            "one device for each replica",
        ),
    ],
)
def test_what_cannot_be_staged(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_components_go_to_the_inputs_that_are_named() -> None:
    source = remap_input_source(FeedInput(flow()), ["n", "text"])
    source.setup(SPECS[::-1], seed=0, replicas=2)
    source.start()
    assert source.reserve(1, lambda: None) == 1
    assert [a.item() for a in source.read_again(0) or []] == ["0", 0, "1", 1]
    text, n = source.get(STEP)
    assert (text.numpy(), int(n)) == (b"0", 0)
    assert len(source) == 20 and source.fill() is None
    source.stop()


@pytest.mark.parametrize("names", [["n"], ["n", "texts"], ["n", "n"], ["n", "text", "more"]])
def test_names_that_are_not_the_models(names: list[str]) -> None:
    source = remap_input_source(FeedInput(flow()), names)
    with pytest.raises(SpecError, match="the model's inputs, each once"):
        source.setup(SPECS, seed=0)


def test_batches_from_another_process(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/s"
    sender = threading.Thread(
        target=send_dataflow_zmq,
        args=(flow(), address),
        kwargs={"passes": 2, "name": "a", "progress": False},
        daemon=True,
    )
    sender.start()
    source = ZMQInput(address, 5, producers=["a"], infinite=False)
    source.setup(SPECS, seed=0)
    source.start()
    found: list[int] = []
    while ready := source.reserve(7, lambda: None):
        found += [int(source.get(STEP)[0]) for _ in range(ready)]
        source.consumed(ready)
    source.stop()
    sender.join(10)
    assert found == [*range(20)] * 2 and not sender.is_alive()


def test_split_batches_are_dicts_where_the_model_needs_dicts() -> None:
    spec = ComponentSpec(tf.TensorSpec([2], tf.float32, "target_size"), alias="size", by_name=True)
    rows = np.arange(4, dtype=np.float32)
    for datapoint, error in (({"size": rows}, None), ((rows,), "in a dict")):
        source = SplitInput(FeedInput(DataFromList([datapoint], shuffle=False)))
        source.setup([spec], seed=0, replicas=2)
        source.start()
        if error is None:
            assert source.reserve(1, lambda: None) == 1
            np.testing.assert_array_equal([source.get(STEP)[0] for _ in range(2)], [[0, 1], [2, 3]])
        else:
            with pytest.raises(SpecError, match=error):
                source.reserve(1, lambda: None)
