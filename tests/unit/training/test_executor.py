"""Many steps in one call, on a model with one weight."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from towerpack import LayerError
from towerpack.inputs import TensorInput
from towerpack.nn import expose, summary
from towerpack.tower import TowerFunction
from towerpack.training.distribution.base import SharedVariables
from towerpack.training.loop.executor import Executor, Guard, StepParts, check_outputs
from towerpack.training.steps.step import StepSetup, SupervisedStep

SPECS = [tf.TensorSpec([None], tf.float32, "x")]


class Small:
    """An executor over batches that a function of the step gives, and its variables."""

    def __init__(self, batch: Any, **parts: Any) -> None:
        self.weight = tf.Variable(1.0, name="weight")
        self.step = tf.Variable(0, dtype=tf.int64, trainable=False)

        def build(x: tf.Tensor) -> tf.Tensor:
            out = x * self.weight
            expose("out", out)
            summary.scalar("most", tf.reduce_max(out))
            summary.histogram("spread", out)
            return tf.reduce_mean(tf.square(out))

        tower = TowerFunction(build, SPECS)
        trace = tower.trace(is_training=True)
        setup = StepSetup(tower, trace, keras.optimizers.SGD(0.1))
        step = SupervisedStep()
        step.build(setup)
        source = TensorInput(lambda step: [batch(step)], 100)
        source.setup(SPECS, seed=0)
        self.executor = Executor(
            StepParts(
                step=step,
                trained=setup.trained,
                distribution=SharedVariables(),
                tower=tower,
                trace=trace,
                source=source,
                global_step=self.step,
                **parts,
            )
        )


def rising(step: tf.Tensor) -> tf.Tensor:
    return tf.cast(tf.stack([step + 1, step + 2]), tf.float32)


@pytest.mark.parametrize("eager", [False, True])
def test_one_call_of_steps_computes_what_as_many_calls_do(eager: bool) -> None:
    many = Small(rising, fetches=["out"])
    one = Small(rising, fetches=["out"], eager=eager)
    together = many.executor.run(3, after=0)
    apart = [one.executor.run(1, after=step) for step in range(3)]
    assert together.steps == 3
    assert many.step.numpy() == one.step.numpy() == 3
    np.testing.assert_array_equal(many.weight.numpy(), one.weight.numpy())
    for name in ("cost", "out"):
        for step in range(3):
            np.testing.assert_array_equal(
                together.outputs[name][step], apart[step].outputs[name][0]
            )
    np.testing.assert_array_equal(
        together.summaries["most"], [result.summaries["most"][0] for result in apart]
    )


def test_a_call_ends_at_a_step_that_is_not_finite_and_does_not_apply_it() -> None:
    small = Small(lambda step: rising(step) / tf.cast(step != 2, tf.float32), fetches=["out"])
    result = small.executor.run(5, after=0)
    assert result.steps == small.step.numpy() == 2
    assert [len(values) for values in result.outputs.values()] == [2, 2]
    [inputs] = result.nonfinite or []
    assert np.isinf(inputs).all()
    before = small.weight.numpy()
    assert np.isfinite(before)
    assert small.executor.run(5, after=2).steps == 0
    assert small.weight.numpy() == before


def test_without_the_check_every_step_is_applied() -> None:
    small = Small(lambda step: rising(step) / tf.cast(step != 1, tf.float32), check_finite=False)
    result = small.executor.run(3, after=0)
    assert (result.steps, result.nonfinite) == (3, None)
    assert np.isnan(small.weight.numpy())


def test_histograms_come_with_heavy_steps_alone() -> None:
    small = Small(rising)
    assert small.executor.has_heavy
    assert small.executor.run(2, after=0).heavy == {}
    before = small.weight.numpy()
    result = small.executor.run_heavy(after=2)
    assert result.steps == 1
    np.testing.assert_allclose(result.heavy["spread"], before * np.float32([3.0, 4.0]))


def test_a_guard_puts_back_what_the_model_moved_unless_the_step_is_finite() -> None:
    moved = tf.Variable(1.0)
    guard = Guard([moved], [tf.int32, tf.string])
    for finite, value in [(False, 1.0), (True, 2.0)]:
        updates = tf.Variable(0)

        def step(finite: tf.Tensor, updates: tf.Variable = updates) -> tf.Tensor:
            before = guard.before()
            moved.assign(2.0)
            inputs = [tf.range(3), tf.constant("text")]
            return guard.apply(finite, before, inputs, lambda: updates.assign_add(1))

        assert bool(tf.function(step, autograph=False)(tf.constant(finite))) is finite
        assert (float(moved.numpy()), int(updates.numpy())) == (value, int(finite))
    numbers, text = guard.batch()
    assert (numbers.tolist(), text) == ([0, 1, 2], b"text")


def test_an_output_that_is_not_there_is_named_with_the_one_that_was_meant() -> None:
    check_outputs("Asks", ["fc/output"], {"fc/output": None})
    with pytest.raises(LayerError, match="Asks asks for the output 'fc/outputt'") as caught:
        check_outputs("Asks", ["fc/outputt"], {"fc/output": None})
    assert "fc/output" in str(caught.value.fix)
