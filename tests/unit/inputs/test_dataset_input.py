"""TFDatasetInput: what the laws in tests/property/test_input_state.py do not say."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf

from scaling import sample
from towerpack import ConfigError, DataFlowError, SpecError, StateError
from towerpack.dataflow import DataFlow, DataFromList
from towerpack.inputs import TFDatasetInput, _dataset, as_input

pytestmark = pytest.mark.timeout(60)

SCALAR = [tf.TensorSpec([], tf.int64, "n")]
PAIR = [tf.TensorSpec([None, 2], tf.float32, "x"), tf.TensorSpec([None], tf.int64, "label")]
range_of = tf.data.Dataset.range


def nothing() -> None:
    pass


def started(data: Any, specs: Any = None, *, state: Any = None, replicas: int = 1, **kwargs: Any):
    source = TFDatasetInput(data, **kwargs)
    source.setup(specs or SCALAR, seed=0, replicas=replicas)
    source.start(state)
    return source


def take(source: TFDatasetInput, steps: int) -> list[Any]:
    """The first components of so many batches; in how many reservations depends on the time."""
    found: list[Any] = []
    while len(found) < steps:
        ready = source.reserve(steps - len(found), nothing)
        found += [source.get(tf.constant(0, tf.int64))[0].numpy().tolist() for _ in range(ready)]
        source.consumed(ready)
    return found


def reserve(source: TFDatasetInput, steps: int) -> int:
    """What is ready in the end."""
    while (ready := source.reserve(steps, nothing)) < steps:
        if ready == source.reserve(steps, nothing):
            break
    return ready


def shuffled() -> tf.data.Dataset:
    return range_of(7).shuffle(5, seed=3).map(lambda x: x + 1, num_parallel_calls=2)


def test_every_step_can_be_gone_on_from() -> None:
    source = started(shuffled())
    states, found = [], []
    for _ in range(18):
        states.append(source.state())
        found += take(source, 1)
    source.stop()
    assert {state["skip"] for state in states} == {0}
    assert [sorted(found[i : i + 7]) for i in (0, 7)] == [list(range(1, 8))] * 2
    other = TFDatasetInput(shuffled())
    other.setup(SCALAR, seed=1)
    for step in sample(range(18), at_least=3):
        other.start(states[step])
        assert take(other, 18 - step) == found[step:]
        other.stop()


def test_a_start_from_nothing_begins_the_same_again() -> None:
    source = started(shuffled())
    runs = [take(source, 12)]
    for _ in range(2):
        source.stop()
        source.start()
        runs.append(take(source, 12))
    source.stop()
    assert runs[0] == runs[1] == runs[2]


def test_a_step_that_was_not_applied_is_gone_on_from() -> None:
    source = started(range_of(100))
    assert reserve(source, 5) == 5
    for _ in range(3):  # The third one's cost is NaN, and the other two are left in the queue.
        source.get(tf.constant(0, tf.int64))
    source.consumed(2)
    before = source.state()
    source.consumed(1)
    after = source.state()
    assert source.read_again(1) == [4]
    assert take(source, 4) == [3, 4, 5, 6]
    source.stop()
    for state, first in ((before, 2), (after, 3)):
        source.start(state)
        assert take(source, 2) == [first, first + 1]
        source.stop()


def slow(x: tf.Tensor) -> tf.Tensor:
    busy = tf.random.stateless_normal([1200, 1200], tf.stack([x, x]))
    return x + tf.cast(tf.reduce_sum(busy @ busy @ busy) * 0, tf.int64)


def test_leaving_while_data_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_dataset, "_POLL_S", 0.001)
    source = started(range_of(100).map(slow))
    assert take(source, 1) == [0]

    def interrupted() -> None:
        raise InterruptedError("SIGTERM, say")

    with pytest.raises(InterruptedError):
        while True:
            found = source.reserve(3, interrupted)
            source.consumed(found)
    state = source.state()
    following = take(source, 1)
    source.stop()
    source.start(state)
    assert take(source, 1) == following
    source.stop()


def test_positions_are_saved_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_dataset, "_ANCHOR_S", 0.0)
    monkeypatch.setattr(_dataset, "_ANCHOR_SHARE", float("inf"))
    source = started(range_of(100))
    for _ in range(4):
        take(source, 5)
    source.reserve(5, nothing)  # The iterator is ahead of the last consumed batch now.
    assert source.state()["skip"] == 0
    source.stop()


def iterators() -> list[Any]:
    return [one for one in gc.get_objects() if issubclass(type(one), tf.data.Iterator)]


def test_python_holds_no_iterator_that_was_left() -> None:
    """With the last reference it would keep the GIL until the iterator's autotuner wakes up."""
    others = iterators()
    source = started(range_of(9))
    reserve(source, 3)
    (own,) = (one for one in iterators() if all(one is not other for other in others))
    handle = weakref.ref(tf.nest.flatten(own, expand_composites=True)[0])
    del own
    source.stop()
    assert handle() is None


def bad_at(at: int) -> tf.data.Dataset:
    texts = [str(i) if i != at else "five" for i in range(20)]
    return tf.data.Dataset.from_tensor_slices(texts).map(
        lambda text: tf.strings.to_number(text, tf.int64)
    )


@pytest.mark.parametrize("replicas", sample([2, 1]))
def test_what_came_before_a_failure_is_given(replicas: int) -> None:
    source = started(bad_at(5), replicas=replicas)
    assert reserve(source, 9) == 5 // replicas
    source.consumed(5 // replicas)
    for _ in range(2):
        with pytest.raises(DataFlowError, match="failed after batch 5: InvalidArgument") as caught:
            source.reserve(1, nothing)
        assert "correctly convert string: five" in str(caught.value)
        assert "MapDataset" in str(caught.value)
    source.stop()


def test_no_datapoints() -> None:
    empty = range_of(9).filter(lambda x: x > 10)
    source = started(empty)
    with pytest.raises(DataFlowError, match="must not be empty"):
        source.reserve(1, nothing)
    source.stop()
    ending = started(empty, infinite=False)
    assert ending.reserve(1, nothing) == ending.reserve(1, nothing) == 0
    ending.stop()


def generator() -> tf.data.Dataset:
    return tf.data.Dataset.from_generator(lambda: iter(range(5)), output_signature=SCALAR[0])


UNSAVEABLE: dict[str, Callable[[], tf.data.Dataset]] = {
    "PyFunc": generator,
    "EagerPyFunc": lambda: range_of(5).map(lambda x: tf.py_function(int, [x], tf.int64)),
    "RandomUniform": lambda: range_of(5).map(
        lambda x: x + tf.cast(tf.random.uniform([]), tf.int64)
    ),
    "a shuffle without a seed": lambda: range_of(5).shuffle(3).batch(2).unbatch(),
    "DummySeedGenerator": lambda: range_of(5).flat_map(lambda x: range_of(x).shuffle(3)),
}


@pytest.mark.parametrize("name", UNSAVEABLE)
def test_a_position_that_cannot_be_saved_is_told_at_once(name: str) -> None:
    tf.random.set_seed(cast("int", None))  # With one, a shuffle has a seed.
    source = TFDatasetInput(UNSAVEABLE[name]())
    with pytest.raises(StateError, match=f"{name}.*\n.*\n.*resumable=False"):
        source.setup(SCALAR, seed=0)


def test_without_a_position() -> None:
    source = started(generator(), resumable=False)
    assert take(source, 7) == [0, 1, 2, 3, 4, 0, 1]
    assert source.state() is source.read_again(0) is None
    source.stop()
    source.start({"iterator": b"", "skip": 3})
    assert take(source, 2) == [0, 1]
    source.stop()


@pytest.mark.parametrize("state", ["dataflow", {"epoch": 3}, {"iterator": b"x", "skip": 0}])
def test_a_foreign_position(state: Any) -> None:
    with pytest.raises(StateError, match="position belongs to another dataset"):
        started(range_of(5), state=state)


def test_the_position_in_another_dataset() -> None:
    source = started(range_of(5).shuffle(3, seed=1).batch(2), [tf.TensorSpec([None], tf.int64)])
    with pytest.raises(StateError, match="position belongs to another dataset"):
        started(range_of(5), state=source.state())
    source.stop()


def test_a_dataset_that_hangs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(_dataset, "_JOIN_S", 0.1)
    monkeypatch.setattr(_dataset, "_POLL_S", 0.01)
    gate = threading.Event()

    def wait(x: tf.Tensor) -> Any:
        gate.wait(20)
        return x

    data = range_of(5).map(lambda x: tf.py_function(wait, [x], tf.int64))
    source = started(data, resumable=False)
    calls: list[int] = []

    def poll() -> None:
        calls.append(0)
        if len(calls) == 2:
            raise InterruptedError("SIGTERM, say")

    with pytest.raises(InterruptedError):
        source.reserve(1, poll)
    source.stop()
    assert "did not return within" in caplog.text
    with pytest.raises(DataFlowError, match="earlier run"):
        source.start()
    monkeypatch.setattr(_dataset, "_JOIN_S", 20)
    gate.set()
    source.stop()
    source.start()
    assert take(source, 1) == [0]
    source.stop()


def test_large_batches_do_not_pile_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_dataset, "_MOST_S", 60.0)
    monkeypatch.setattr(_dataset, "_MOST_BYTES", 1 << 20)
    data = range_of(4000).map(lambda x: tf.fill([1 << 14], tf.cast(x, tf.float32)))
    source = started(data, [tf.TensorSpec([None], tf.float32, "x")], replicas=2)
    assert source.reserve(1000, nothing) * 2 * (4 << 14) == 1 << 20
    source.stop()


X, LABEL = np.zeros([6, 2], np.float32), np.arange(6)


@pytest.mark.parametrize(
    "elements",
    [
        (X, LABEL),
        (X.astype(np.float16), LABEL.astype(np.uint8)),
        {"label": LABEL, "x": X, "unused": LABEL},
    ],
)
def test_elements_that_fit(elements: Any) -> None:
    source = started(tf.data.Dataset.from_tensor_slices(elements).batch(4), PAIR)
    assert len(source) == 2
    assert source.reserve(1, nothing) == 1
    x, label = tf.function(source.get)(tf.constant(0, tf.int64))
    assert (x.dtype, label.dtype, x.shape, label.shape) == (tf.float32, tf.int64, [4, 2], [4])
    source.stop()


@pytest.mark.parametrize(
    ("elements", "message"),
    [
        ((X,), "must provide one tensor for each input"),
        ({"x": X, "labels": LABEL}, "must have the component 'label'.*\n.*\n.*\n.*'labels'"),
        (((X, X), LABEL), "must be dense tensors, got tuple"),
        ((X.astype(np.float64), LABEL), "matches the input 'x'.*\n.*float64"),
        ((X[:, :1], LABEL), "matches the input 'x'"),
    ],
)
def test_elements_that_do_not_fit(elements: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        started(tf.data.Dataset.from_tensor_slices(elements).batch(4), PAIR)


def test_sizes_that_show_when_they_are_read_are_checked_then() -> None:
    data = range_of(5).map(lambda x: tf.zeros(tf.stack([3, 2 + x // 2])))
    source = started(data, [tf.TensorSpec([3, 2], tf.float32, "x")])
    assert reserve(source, 5) == 2
    source.consumed(2)
    with pytest.raises(DataFlowError, match="after batch 2"):
        source.reserve(1, nothing)
    source.stop()


def test_what_becomes_a_dataset_input() -> None:
    assert isinstance(as_input(range_of(3)), TFDatasetInput)
    with pytest.raises(TypeError):
        len(TFDatasetInput(range_of(3).repeat()))
    with pytest.raises(ConfigError, match=r"must be a tf.data.Dataset or"):
        TFDatasetInput([1, 2])  # pyright: ignore[reportArgumentType]


def test_a_flow_that_fills_itself_as_a_dataset() -> None:
    class Fills(DataFlow):
        items = ()

        def reset_state(self) -> None:
            self.items = tuple([np.float32(i)] for i in range(3))

        def __iter__(self) -> Iterator[Any]:
            yield from self.items

    data = TFDatasetInput.dataflow_to_dataset(Fills(), [tf.float32])
    assert [float(x[0]) for x in data] == [0, 1, 2]


def test_a_flow_as_a_dataset() -> None:
    flow = DataFromList([(np.float32(i), [i, i]) for i in range(3)], shuffle=False)
    types = [tf.float32, tf.TensorSpec([2], tf.int64)]
    data = TFDatasetInput.dataflow_to_dataset(flow, types)
    assert [(x.numpy(), y.numpy().tolist()) for x, y in data.repeat(2)] == [
        (0, [0, 0]), (1, [1, 1]), (2, [2, 2])
    ] * 2  # fmt: skip
