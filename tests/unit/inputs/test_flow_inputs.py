"""FeedInput and QueueInput: what the law in tests/property/test_input_state.py does not say."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from own_threads import own_threads, threads
from processes import stopwatch, wait_until
from scaling import only_in_full
from towerpack import DataFlowError, SpecError
from towerpack.dataflow import (
    BatchData,
    DataFlow,
    DataFromArrays,
    DataFromGenerator,
    DataFromList,
    MapData,
    PrefetchData,
    ShuffleData,
)
from towerpack.inputs import FeedInput, InputSource, QueueInput, StagingInput, as_input

pytestmark = pytest.mark.timeout(60)

SCALAR = [tf.TensorSpec([], tf.int64, "n")]


def nothing() -> None:
    pass


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    wait_until(lambda: not threads(), 5)
    assert threads() == []


class Staged(StagingInput):
    """Obeys every law of what it stages."""

    def __init__(self, flow: DataFlow, *args: Any, **kwargs: Any) -> None:
        super().__init__(QueueInput(flow, *args, **kwargs), device="CPU:0")


@pytest.fixture(params=[FeedInput, QueueInput, pytest.param(Staged, marks=only_in_full)])
def kind(request: pytest.FixtureRequest) -> type[FeedInput | QueueInput]:
    return request.param


@contextmanager
def running(
    source: InputSource,
    specs: list[tf.TensorSpec] | None = None,
    *,
    state: Any = None,
    replicas: int = 1,
    seed: int = 0,
) -> Iterator[InputSource]:
    source.setup(specs or SCALAR, seed=seed, replicas=replicas)
    source.start(state)
    try:
        yield source
    finally:
        source.stop()


def take(source: InputSource, steps: int, *, replicas: int = 1) -> list[Any]:
    """The batches of one reservation, consumed; the first component of each as NumPy."""
    ready = source.reserve(steps, nothing)
    assert 0 <= ready <= steps
    taken = [source.get(tf.constant(0, tf.int64)) for _ in range(ready * replicas)]
    source.consumed(ready)
    return [tensors[0].numpy() for tensors in taken]


def take_all(source: InputSource, number: int, *, replicas: int = 1) -> list[Any]:
    """At least `number` batches, or all there are."""
    found: list[Any] = []
    while len(found) < number:
        got = take(source, 7, replicas=replicas)
        if not got:
            break
        found += got
    return found


def count(n: int) -> DataFlow:
    return DataFromList([(np.int64(i),) for i in range(n)], shuffle=False)


# ------------------------------------------------------------------ order and content


def test_every_dtype_arrives_as_it_was_sent(kind) -> None:
    dtypes = ["bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "complex64"]
    specs = [tf.TensorSpec([None, 2], tf.as_dtype(d), d) for d in dtypes]
    specs += [tf.TensorSpec([None], tf.string, "s"), tf.TensorSpec([], tf.float32, "scalar")]
    rng = np.random.default_rng(0)
    sent = []
    for size in (3, 3, 2):  # the last batch is ragged
        arrays = [(rng.random((size, 2)) * 5).astype(tf.as_dtype(d).as_numpy_dtype) for d in dtypes]
        sent.append((*arrays, [b"a\0\0", b"", "é".encode()][:size], np.float32(1.5)))
    with running(kind(DataFromList(sent, shuffle=False), infinite=False), specs) as source:
        received = []
        while ready := source.reserve(5, nothing):
            received += [source.get(tf.constant(0)) for _ in range(ready)]
            source.consumed(ready)
    assert len(received) == 3
    for datapoint, tensors in zip(sent, received, strict=True):
        for component, tensor in zip(datapoint, tensors, strict=True):
            assert tensor.numpy().tolist() == np.asarray(component, object).tolist()


def test_strings_and_numbers_in_any_form(kind) -> None:
    specs = [tf.TensorSpec([2], tf.string, "s"), tf.TensorSpec([2], tf.float32, "x")]
    rows = [(text, np.array([1, 2], ">f4")) for text in (np.array(["a", "bc"]), [b"a", b"bc"])]
    with running(kind(DataFromList(rows, shuffle=False)), specs) as source:
        assert source.reserve(2, nothing) == 2
        for _ in range(2):
            text, x = source.get(tf.constant(0, tf.int64))
            assert (text.numpy().tolist(), x.numpy().tolist()) == ([b"a", b"bc"], [1, 2])
        source.consumed(2)


def test_dicts_go_by_name_and_may_hold_more(kind) -> None:
    points = [{"b": np.float32(i), "unused": None, "a": np.int64(i)} for i in range(3)]
    specs = [tf.TensorSpec([], tf.int64, "a"), tf.TensorSpec([], tf.float32, "b")]
    with running(kind(DataFromList(points, shuffle=False)), specs) as source:
        assert take(source, 1) == [0]


def test_steps_of_one_call_have_equal_shapes(kind) -> None:
    sizes = [3, 3, 1, 1, 1, 2, 3]
    flow = DataFromList([(np.zeros(n),) for n in sizes], shuffle=False)
    found = []
    with running(kind(flow, infinite=False), [tf.TensorSpec([None], tf.float64, "x")]) as source:
        while True:
            got = [len(x) for x in take(source, 4)]
            if not got:
                break
            assert len(set(got)) == 1
            found += got
    assert found == sizes


def test_the_graph_knows_the_shapes_of_the_specs(kind) -> None:
    specs = [tf.TensorSpec([None, 4], tf.float32, "x")]
    with running(kind(DataFromList([(np.zeros([3, 4], "f4"),)])), specs) as source:
        get = tf.function(source.get, autograph=False)
        seen = get.get_concrete_function(tf.constant(0)).structured_outputs[0].shape
    assert seen.as_list() == [None, 4]


# ------------------------------------------------------------------ ends


@pytest.mark.parametrize("n", [0, 8])
def test_the_end_of_the_data_is_zero_for_ever(kind, n: int) -> None:
    with running(kind(count(n), infinite=False)) as source:
        assert source.state() is None and len(source) == n
        assert take_all(source, n + 1) == list(range(n))
        assert take(source, 3) == take(source, 3) == []


def test_an_empty_flow_that_repeats_is_an_error(kind) -> None:
    for flow in (count(0), DataFromGenerator(lambda: iter(()))):
        with pytest.raises(DataFlowError, match="no datapoints"), running(kind(flow)) as source:
            take(source, 1)


def test_replicas_with_unlike_batches_run_alone(kind) -> None:
    sizes = [1, 2, 2, 2, 1, 1]
    flow = DataFromList([(np.zeros(n),) for n in sizes], shuffle=False)
    specs = [tf.TensorSpec([None], tf.float64, "x")]
    with running(kind(flow, infinite=False), specs, replicas=2) as source:
        found = [[len(x) for x in take(source, 3, replicas=2)] for _ in range(4)]
    assert found == [[1, 2], [2, 2], [1, 1], []]


# ------------------------------------------------------------------ state


def shuffled() -> DataFlow:
    return BatchData(ShuffleData(count(11)), 2, remainder=True)


@pytest.mark.parametrize("infinite", [True, False])
def test_start_after_stop_begins_again(kind, infinite: bool) -> None:
    source = kind(shuffled(), infinite=infinite)
    specs = [tf.TensorSpec([None], tf.int64, "n")]
    runs = []
    for _ in range(2):
        with running(source, specs, seed=3):
            runs.append([x.tolist() for x in take_all(source, 6)[:6]])
    assert runs[0] == runs[1]
    with running(kind(shuffled()), specs, seed=4) as other:
        assert [x.tolist() for x in take_all(other, 6)[:6]] != runs[0]


# ------------------------------------------------------------------ failures


def failing(at: int) -> DataFlow:
    def fail(datapoint: tuple[np.int64]) -> tuple[np.int64]:
        if datapoint[0] == at:
            raise ZeroDivisionError("in the user's function")
        return datapoint

    return MapData(count(20), fail)


@pytest.mark.parametrize("at", [0, 3])
def test_an_exception_in_the_flow_comes_out_of_reserve(kind, at: int) -> None:
    with running(kind(failing(at))) as source:
        with pytest.raises(DataFlowError) as caught:
            for _ in range(20):
                take(source, 1)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        text = "".join(traceback.format_exception(caught.value))
        assert "in the user's function" in text and "def fail" not in text
        assert "in fail" in text


class Own(DataFlow):
    """A flow that raises an exception of its own."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __iter__(self) -> Iterator[Any]:
        yield (np.int64(0),)
        raise self.error


@pytest.mark.parametrize("error", [KeyError("k"), KeyboardInterrupt()])
def test_it_is_the_same_exception(kind, error: BaseException) -> None:
    with running(kind(Own(error))) as source:
        with pytest.raises((DataFlowError, SystemExit, KeyboardInterrupt)) as caught:
            for _ in range(3):
                take(source, 1)
    # The flow says where it happened; what is no `Exception` comes through as it is.
    wrapped = isinstance(error, Exception)
    assert (caught.value.__cause__ if wrapped else caught.value) is error


def test_poll_is_called_while_waiting_and_may_raise() -> None:
    gate = threading.Event()

    def slow() -> Iterator[Any]:
        gate.wait(20)
        yield (np.int64(1),)

    calls: list[float] = []

    def poll() -> None:
        calls.append(time.monotonic())
        if len(calls) == 2:
            raise InterruptedError("SIGTERM, say")

    with running(QueueInput(DataFromGenerator(slow))) as source:
        with stopwatch() as watch, pytest.raises(InterruptedError):
            source.reserve(1, poll)
        assert watch.seconds < 4
        gate.set()
        assert take(source, 1) == [1]


def test_a_batch_does_not_wait_for_the_next_one() -> None:
    """A flow may wait for the model, as simulators do: what it has given must reach the step."""
    asked, gate = threading.Event(), threading.Event()

    def answers() -> Iterator[Any]:
        for i in range(3):
            yield (np.int64(i),)
            asked.set()
            gate.wait(20)
            gate.clear()

    with running(QueueInput(DataFromGenerator(answers), infinite=False)) as source:
        asked.wait(20)  # the thread has the first batch, and asks for the second
        with stopwatch() as watch:
            for i in range(3):
                assert take(source, 5) == [i]
                gate.set()
        assert watch.seconds < 10
        assert take(source, 1) == []


def test_feed_input_polls_between_batches() -> None:
    calls: list[int] = []

    def poll() -> None:
        calls.append(1)
        if len(calls) == 3:
            raise InterruptedError

    with running(FeedInput(count(5))) as source:
        with pytest.raises(InterruptedError):
            source.reserve(5, poll)
        # What had been taken from the flow by then is not lost.
        assert take_all(source, 5)[:5] == list(range(5))


def test_stop_does_not_wait_for_ever_for_a_flow_that_hangs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from towerpack.inputs import _queue

    monkeypatch.setattr(_queue, "_JOIN_S", 0.2)
    gate = threading.Event()

    def hangs() -> Iterator[Any]:
        yield (np.int64(7),)
        if not gate.is_set():
            gate.wait(20)
        yield (np.int64(8),)

    source = QueueInput(DataFromGenerator(hangs), infinite=False)
    with stopwatch() as watch, running(source):
        assert take(source, 1) == [7]
    assert watch.seconds < 5
    # The old thread wakes up in the middle of a later pass, and must not meet it.
    hung = own_threads()
    assert len(hung) == 1
    source.setup(SCALAR, seed=0)
    source.start()
    gate.set()
    assert take_all(source, 9) == [7, 8]
    hung[0].join(5)
    assert take(source, 1) == []
    source.stop()


def test_stop_before_start_is_allowed(kind) -> None:
    kind(count(3)).stop()


# ------------------------------------------------------------------ memory


class Watched(DataFlow):
    """Counts how far ahead of the consumer it was read."""

    def __init__(self, nbytes: int) -> None:
        self.given = 0
        self.nbytes = nbytes

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, i: int) -> Any:
        self.given += 1
        return (np.full(self.nbytes, i % 256, np.uint8),)


@pytest.mark.parametrize(("nbytes", "most"), [(2 << 20, 4 + 2), (300_000, 27 + 8)])
def test_the_queue_keeps_its_limit(nbytes: int, most: int) -> None:
    """`queue_size` batches or 8 MiB, and one chunk on its way."""
    flow = Watched(nbytes)
    with running(QueueInput(flow, 4), [tf.TensorSpec([None], tf.uint8, "x")]) as source:
        for consumed in (0, 1, 3):
            before = -1
            while before != flow.given:
                before = flow.given
                time.sleep(0.05)
            assert flow.given - consumed <= most
            if consumed < 3:
                taken = len(take(source, 1 + consumed))
                assert taken == 1 + consumed


def test_strings_count_as_their_bytes() -> None:
    given: list[int] = []

    def images() -> Iterator[Any]:
        for i in range(10_000):
            given.append(i)
            yield ([b"x" * (1 << 20)],)

    specs = [tf.TensorSpec([None], tf.string, "jpeg")]
    with running(QueueInput(DataFromGenerator(images), 3), specs) as source:
        take(source, 1)
        before = -1
        while before != len(given):
            before = len(given)
            time.sleep(0.05)
        assert before < 16


def test_looking_at_the_queue_while_the_thread_fills_it() -> None:
    """It once failed with 'deque mutated during iteration', about one time in a thousand."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(2):
            with running(QueueInput(count(4000), 4000)) as source:
                while (source.fill() or 0) < 0.9:
                    assert source.reserve(4000, lambda: None) >= 1
                    time.sleep(1e-5)  # locks are not fair: let the thread have its turn
    finally:
        sys.setswitchinterval(before)


def test_a_large_reservation_of_tiny_batches_does_not_block(kind) -> None:
    found: list[Any] = []
    with running(kind(count(10))) as source:
        while len(found) < 2000:
            found += take(source, 2000 - len(found))
    assert found == [i % 10 for i in range(2000)]


def test_fill_tells_the_bottleneck() -> None:
    source = QueueInput(count(10), infinite=False)
    assert FeedInput(count(3)).fill() is None
    with running(source):
        assert 0 <= source.fill() <= 1
        take_all(source, 10)
        assert source.fill() == 0


# ------------------------------------------------------------------ wrong data

PAIR = [tf.TensorSpec([None, 2], tf.float32, "x"), tf.TensorSpec([None], tf.int64, "label")]
GOOD = (np.zeros([3, 2], "f4"), np.zeros(3, "i8"))
WRONG: dict[str, tuple[Any, str]] = {
    "too few": ((GOOD[0],), "one component for each input.*\n.*tuple of 1\n.*2 components"),
    "no datapoint": (GOOD[0], "got       ndarray"),
    "missing name": (
        {"x": GOOD[0], "labels": GOOD[1]},
        "must have the component 'label'.*\n.*\n.*\n.*'labels'",
    ),
    "floats": ((GOOD[0], GOOD[1].astype("f4")), r"component 1 \('label'\) has the wrong dtype"),
    "large integers": (
        (np.full([3, 2], 2**24 + 1), GOOD[1]),
        r"values that float32 cannot hold.*\n.*got       int64 \[3, 2\]",
    ),
    "unsigned integers": ((GOOD[0], np.full(3, 2**63, "u8")), "values that int64 cannot hold"),
    "unbatched": ((GOOD[0][0], GOOD[1]), "wrong shape.*\n.*\n.*\n.*BatchData"),
    "rank": ((GOOD[0][None], GOOD[1]), r"expected  float32 \[None, 2\]"),
    "ragged": (([[1.0], [1.0, 2.0]], GOOD[1]), "component 0 .* cannot be converted to an array"),
    "None": ((GOOD[0], None), "wrong dtype"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_datapoint_that_does_not_fit(case: str) -> None:
    wrong, message = WRONG[case]
    kind = FeedInput if len(case) % 2 else QueueInput
    with running(kind(DataFromList([GOOD, wrong], shuffle=False)), PAIR) as source:
        with pytest.raises(SpecError, match=message) as caught:
            for _ in range(3):
                take(source, 1)
        assert caught.value.what.startswith("Datapoint 1")
        assert "DataFromList" in str(caught.value)


TO_INT32 = [tf.TensorSpec([None], tf.int32, "n")]
TO_FLOATS = [tf.TensorSpec([None], tf.float32, "x")]


@pytest.mark.parametrize(
    ("given", "specs"),
    [
        (np.array([-1, 2**31 - 1]), TO_INT32),
        ([1, 2], TO_INT32),
        (np.array([1, 255], "u1"), TO_FLOATS),
        (np.array([True, False]), TO_FLOATS),
        (np.array([1, -(2**24)]), TO_FLOATS),
        ([1, 2.5], TO_FLOATS),
        (np.array([1, 2.5], "f2"), TO_FLOATS),
    ],
)
def test_what_loses_nothing_is_converted(
    given: Any, specs: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with running(FeedInput(DataFromList([(given,)] * 3, shuffle=False)), specs) as source:
        got = take_all(source, 3)
    assert got[0].dtype == specs[0].dtype.as_numpy_dtype
    assert [x.tolist() for x in got[:3]] == [np.asarray(given).tolist()] * 3
    assert caplog.records == []


@pytest.mark.parametrize(
    ("given", "dtype", "message"),
    [
        (np.array([2**31]), tf.int32, "values that int32 cannot hold"),
        (np.array([-1]), tf.uint64, "values that uint64 cannot hold"),
        (np.array(["a"], object), tf.int32, "wrong dtype"),
        (np.array([3, "a"], object), tf.string, "wrong dtype"),
    ],
)
def test_what_would_lose_something_is_not(given: Any, dtype: tf.DType, message: str) -> None:
    with running(FeedInput(DataFromList([(given,)])), [tf.TensorSpec([None], dtype)]) as source:
        with pytest.raises(SpecError, match=message):
            take(source, 1)


@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
def test_floats_become_shorter_ones_and_that_is_told_once(
    kind, dtype: tf.DType, caplog: pytest.LogCaptureFixture
) -> None:
    flow = DataFromList([(np.array([0.1, np.nan, 3.0]),)] * 5, shuffle=False)
    with running(kind(flow), [tf.TensorSpec([None], dtype, "x")]) as source:
        got = take_all(source, 7)[0]
    assert got.tobytes() == np.array([0.1, np.nan, 3.0]).astype(dtype.as_numpy_dtype).tobytes()
    (record,) = caplog.records
    assert "'x') has dtype float64, so each batch of it is converted" in record.message


class Shorter(DataFlow):
    """Its length is no promise."""

    def __init__(self, says: int, gives: int) -> None:
        self.says, self.gives = says, gives

    def __len__(self) -> int:
        return self.says

    def __iter__(self) -> Iterator[Any]:
        for i in range(self.gives):
            yield (np.int64(i),)


@pytest.mark.parametrize("infinite", [True, False])
def test_a_flow_that_ends_before_its_length_is_told_once(
    kind, infinite: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with running(kind(Shorter(320, 99), infinite=infinite)) as source:
        take_all(source, 300)
        take(source, 1)
    (record,) = caplog.records
    assert "is 320" in record.message and "after 99 datapoints" in record.message


def test_lengths_that_hold_and_passes_that_are_gone_on_with_are_not_told(
    kind, caplog: pytest.LogCaptureFixture
) -> None:
    for flow in (Shorter(9, 9), Shorter(8, 9)):
        with running(kind(flow)) as source:
            take_all(source, 5)
            state = source.state()
        for infinite in (True, False):
            with running(kind(flow, infinite=infinite)) as source:
                take_all(source, 30)
        with running(kind(flow), state=state) as source:
            take_all(source, 30)
    assert caplog.records == []


# ------------------------------------------------------------------ as_input


def test_as_input() -> None:
    source = FeedInput(count(1))
    assert as_input(source) is source
    made = as_input(count(3))
    assert isinstance(made, QueueInput)
    assert len(made) == 3
    with pytest.raises(
        DataFlowError, match=r"an InputSource, a DataFlow or a tf.data.Dataset, got list"
    ):
        as_input([1, 2])
    with pytest.raises(DataFlowError, match=r"BatchData\(DataFromArrays\(x, y\), 32\)"):
        as_input((np.zeros([4, 2]), np.zeros(4)))


def test_length_of_a_flow_without_one(kind) -> None:
    with pytest.raises(TypeError):
        len(kind(DataFromGenerator(lambda: iter([]))))


def test_arrays_in_batches(kind) -> None:
    x = np.arange(24, dtype="f4").reshape(12, 2)
    flow = BatchData(DataFromArrays(x, np.arange(12)), 5, remainder=True)
    with running(kind(flow, infinite=False), PAIR) as source:
        np.testing.assert_array_equal(np.concatenate(take_all(source, 9)), x)


# What workers made is not copied.

IMAGES = [tf.TensorSpec([None, 64, 64, 3], tf.uint8, "image"), tf.TensorSpec([None], tf.int64, "n")]


def images(count: int, **options: Any) -> DataFlow:
    def image(dp: Any) -> Any:
        return np.full((64, 64, 3), dp[0] % 251, np.uint8), dp[0]

    flow = BatchData(MapData(DataFromArrays(np.arange(count * 96)), image), 96)
    return PrefetchData(flow, num_proc=1, **options)


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the arrays that TensorFlow took as they are."""
    sizes: list[int] = []
    take_over = tf.experimental.dlpack.from_dlpack

    def counted(capsule: Any) -> tf.Tensor:
        tensor = take_over(capsule)
        sizes.append(int(tf.size(tensor)))
        return tensor

    monkeypatch.setattr(tf.experimental.dlpack, "from_dlpack", counted)
    return sizes


@pytest.mark.parametrize("backend", ["process", "thread"])
def test_slots_become_tensors(
    kind: type[FeedInput | QueueInput], handed_over: list[int], backend: str
) -> None:
    kept = []
    with running(kind(images(12, backend=backend), infinite=False), IMAGES) as source:
        while source.reserve(1, nothing):
            image, n = source.get(tf.constant(0, tf.int64))
            source.consumed(1)
            kept.append((image, n))
    assert len(kept) == 12
    for index, (image, n) in enumerate(kept):
        expected = np.arange(index * 96, index * 96 + 96)
        assert (n.numpy() == expected).all()
        assert (image.numpy() == (expected % 251)[:, None, None, None]).all()
    # Threads need not copy what was larger than a slot, at the beginning.
    assert handed_over.count(96 * 64 * 64 * 3) >= 8


def test_the_tensor_lies_where_the_worker_made_it(kind: type[FeedInput | QueueInput]) -> None:
    made: list[int] = []

    def seen(dp: Any) -> Any:
        made.append(dp[0].ctypes.data)
        return dp

    # One batch at a time is waiting, so that the slots that come back are seen again.
    source = kind(MapData(images(40), seen), infinite=False)
    if isinstance(source, QueueInput):
        source = QueueInput(source.dataflow, 1, infinite=False)
    found = []
    with running(source, IMAGES):
        for _ in range(40):
            assert source.reserve(1, nothing) == 1
            image, _ = source.get(tf.constant(0, tf.int64))
            source.consumed(1)
            found.append(np.asarray(memoryview(image)).ctypes.data)
            del image
    assert found == made
    assert len(set(made)) < 20, "slots are used again"


def test_what_is_not_a_workers_is_copied(
    kind: type[FeedInput | QueueInput], handed_over: list[int]
) -> None:
    data = np.zeros((4, 96, 64, 64, 3), np.uint8)
    flow = DataFromList([(part, np.arange(96)) for part in data])
    with running(kind(flow, infinite=False), IMAGES) as source:
        assert source.reserve(1, nothing) == 1
        image, _ = source.get(tf.constant(0, tf.int64))
        source.consumed(1)
    data[:] = 1
    assert not image.numpy().any()
    assert handed_over == []
