"""TensorInput and DummyConstantInput."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from towerpack import SpecError
from towerpack.inputs import DummyConstantInput, InputSource, TensorInput

SPECS = [tf.TensorSpec([None, 3], tf.float32, "x"), tf.TensorSpec([None], tf.int64, "label")]
STEP = tf.constant(7, tf.int64)


def ready(source: InputSource, specs: list[tf.TensorSpec] = SPECS) -> InputSource:
    source.setup(specs, seed=0)
    source.start()
    return source


def batch(scale: Any = 1.0) -> list[tf.Tensor]:
    return [tf.ones([2, 3]) * scale, tf.zeros([2], tf.int64)]


def with_step(step: tf.Tensor) -> list[tf.Tensor]:
    return batch(tf.cast(step, tf.float32))


@pytest.mark.parametrize(
    ("func", "wanted"),
    [
        (batch, 1),
        (with_step, 7),
        (lambda step: with_step(step), 7),
        (functools.partial(batch, 2.0), 2),
        (functools.partial(batch, scale=3.0), 3),
        (lambda *, scale=4.0: batch(scale), 4),
    ],
)
def test_the_function_gets_the_step_if_it_takes_an_argument(func: Any, wanted: float) -> None:
    source = ready(TensorInput(func))
    for get in (source.get, tf.function(source.get, autograph=False)):
        assert float(get(STEP)[0][0, 0]) == wanted


def test_it_always_has_as_many_steps_as_are_wanted() -> None:
    source = ready(TensorInput(batch, size=10))
    assert source.reserve(50, lambda: None) == 50
    source.consumed(50)
    assert source.state() is None
    assert source.fill() is None
    assert len(source) == 10
    source.stop()
    with pytest.raises(TypeError, match="TensorInput has no known length"):
        len(TensorInput(batch))


def test_one_tensor_needs_no_list() -> None:
    source = ready(TensorInput(lambda: tf.ones([2, 3])), SPECS[:1])
    assert tf.function(source.get)(STEP)[0].shape == [2, 3]


@pytest.mark.parametrize(
    ("func", "message"),
    [
        (lambda: batch()[:1], "must provide one tensor for each input.*\n.*1 tensors"),
        (lambda: [tf.ones([2, 4]), batch()[1]], "matches the input 'x'"),
        (lambda: [tf.ones([2, 3], tf.float64), batch()[1]], "got       float64"),
        (lambda: [batch()[0], tf.zeros([2], tf.int32)], "the input 'label'"),
    ],
)
def test_tensors_that_do_not_fit(func: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        ready(TensorInput(func)).get(STEP)


def test_sizes_that_show_only_at_run_time_are_checked_then() -> None:
    width = tf.Variable(3)
    source = ready(TensorInput(lambda: [tf.ones(tf.stack([2, width])), batch()[1]]))
    get = tf.function(source.get, autograph=False)
    assert get.get_concrete_function(STEP).structured_outputs[0].shape.as_list() == [2, 3]
    get(STEP)
    width.assign(4)
    with pytest.raises(tf.errors.InvalidArgumentError):
        get(STEP)


DTYPES = [
    "float32",
    "bfloat16",
    "float16",
    "uint8",
    "int32",
    "int64",
    "bool",
    "string",
    "complex64",
]


def test_constants_of_every_dtype() -> None:
    specs = [tf.TensorSpec([4, 2], tf.as_dtype(d), d) for d in DTYPES]
    source = ready(DummyConstantInput(), specs)
    first = source.get(STEP)
    assert [t.dtype for t in first] == [spec.dtype for spec in specs]
    assert all(t.shape == [4, 2] for t in first)
    floats = first[0].numpy()
    assert 0 <= floats.min() < floats.max() <= 1
    assert set(np.unique(first[5].numpy())) == {0, 1}
    again = ready(DummyConstantInput(), specs).get(STEP + 1)
    assert all((a.numpy() == b.numpy()).all() for a, b in zip(first, again, strict=True))


def test_given_shapes_fill_the_gaps_of_the_specs() -> None:
    source = ready(DummyConstantInput([[5, 3], (5,)]))
    assert [t.shape.as_list() for t in source.get(STEP)] == [[5, 3], [5]]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (None, "needs the full shape of the input 'x'"),
        ([[5, 3]], "one shape for each input"),
        ([[5, 4], [5]], "needs the full shape of the input 'x'.*\n.*\\(5, 4\\)"),
        ([[5, 3], [None]], "needs the full shape of the input 'label'"),
    ],
)
def test_shapes_that_do_not_fit(shapes: Any, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        ready(DummyConstantInput(shapes))
