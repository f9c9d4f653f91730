"""Optimizer wrappers.

Wrappers can be nested. `WeightEMA(AccumulateGradients(adam, 4))` averages the weights after each
step, `AccumulateGradients(WeightEMA(adam), 4)` after each fourth step, when the weights change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack.checkpoint import AVERAGED
from towerpack.nn import find_matching
from towerpack.training.distribution.replicas import first, on_replicas, update
from towerpack.training.optim.gradient_processors import GradientProcessor
from towerpack.training.optim.proxy_and_loss_scale import ProxyOptimizer


class ProcessGradients(ProxyOptimizer):
    """Optimizer wrapper that applies gradient processors to the averaged gradients.

    Args:
        optimizer: Optimizer to wrap.
        processors: One processor, or a list that is applied in order: `[GlobalNormClip(5.0)]`.

    Raises:
        ConfigError: A processor is not a `GradientProcessor`.
    """

    def __init__(
        self, optimizer: Any, processors: GradientProcessor | Sequence[GradientProcessor]
    ) -> None:
        super().__init__(optimizer)
        if isinstance(processors, GradientProcessor):
            processors = [processors]
        self.processors = list(processors)
        for processor in self.processors:
            if not isinstance(processor, GradientProcessor):
                raise ConfigError(
                    "Each of the processors must be a GradientProcessor, such as "
                    f"GlobalNormClip(5.0), got {processor!r}."
                )

    def make_variables(self) -> dict[str, tf.Variable]:
        for processor in self.processors:
            processor.build(self.trained)
        return {n: v for processor in self.processors for n, v in processor.variables().items()}

    def apply(self, gradients: Sequence[Any]) -> None:
        named = self._named(gradients)
        for processor in self.processors:
            processor.observe(_firsts(named))
            named = on_replicas(self.strategy, processor.process, named)
        self.inner.apply([named.get(name) for name in self.trained])

    def scheduled(self) -> dict[str, float]:
        numbers = super().scheduled()
        for processor in self.processors:
            numbers.update(processor.numbers())
        return numbers

    def check(self, gradients: Sequence[Any]) -> tf.Tensor:
        checks = [p.check(_firsts(self._named(gradients))) for p in self.processors]
        return tf.reduce_all([super().check(gradients), *checks])

    def checks(self) -> bool:
        return super().checks() or any(processor.checks for processor in self.processors)

    def nonfinite(self) -> list[str]:
        return super().nonfinite() + [n for p in self.processors for n in p.nonfinite()]

    def histograms(self, gradients: Sequence[Any]) -> dict[str, Any]:
        tensors = super().histograms(gradients)
        for processor in self.processors:
            tensors.update(processor.histograms(_firsts(self._named(gradients))))
        return tensors

    def _named(self, gradients: Sequence[Any]) -> dict[str, Any]:
        pairs = zip(self.trained, gradients, strict=True)
        return {name: gradient for name, gradient in pairs if gradient is not None}


def _firsts(gradients: Mapping[str, Any]) -> dict[str, Any]:
    return {name: first(gradient) for name, gradient in gradients.items()}


def apply_grad_processors(
    opt: Any, gradprocs: GradientProcessor | Sequence[GradientProcessor]
) -> ProcessGradients:
    """Wrap an optimizer in `ProcessGradients`, under the name of Tensorpack.

    Args:
        opt, gradprocs: Optimizer to wrap, and one processor or a list.
    """
    return ProcessGradients(opt, gradprocs)


class AccumulateGradients(ProxyOptimizer):
    """Optimizer wrapper that updates the weights once per `steps` steps, with the average gradient.

    The update equals one step on a batch that is `steps` times larger: the optimizer's step count,
    its schedule and its weight decay advance once per `steps` steps. Batch normalization still uses
    the small batches. The trainer's step, callbacks and the trainer's schedules count every step.

    Checkpoints contain the sums of gradients. At the end of training, gradients of an incomplete
    group are dropped.

    Args:
        optimizer: Optimizer to wrap.
        steps: Number of steps to average.

    Raises:
        ConfigError: `steps` is less than 1.
    """

    def __init__(self, optimizer: Any, steps: int) -> None:
        super().__init__(optimizer)
        if steps < 1:
            raise ConfigError(f"The steps of AccumulateGradients must be at least 1, got {steps}.")
        self.steps = int(steps)

    def make_variables(self) -> dict[str, tf.Variable]:
        with tf.device("CPU:0"):  # Conditions run on the host.
            self._count = tf.Variable(tf.zeros([], tf.int64), trainable=False)
        self._sums = [
            tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False) for v in self.trained.values()
        ]
        sums = zip(self.trained, self._sums, strict=True)
        return {"accumulated_steps": self._count, **{f"accumulated/{n}": v for n, v in sums}}

    def apply(self, gradients: Sequence[Any]) -> None:
        positions = [i for i, gradient in enumerate(gradients) if gradient is not None]
        sums, present = [self._sums[i] for i in positions], [gradients[i] for i in positions]

        def last() -> None:
            means: list[Any] = [None] * len(gradients)
            results = on_replicas(self.strategy, self._means, sums, present)
            for i, mean in zip(positions, results, strict=True):
                means[i] = mean
            self.inner.apply(means)
            for total in sums:
                update(total, lambda copy: copy.assign(tf.zeros_like(copy)))
            self._count.assign(tf.zeros_like(self._count))

        def earlier() -> None:
            for total, gradient in zip(sums, present, strict=True):
                update(total, lambda copy, g: copy.assign_add(tf.convert_to_tensor(g)), gradient)
            self._count.assign_add(1)

        with tf.device("CPU:0"):
            is_last = self._count + 1 >= self.steps
        tf.cond(is_last, last, earlier)

    def skip(self, steps: int, after: int) -> None:
        groups_after = after // self.steps
        self.inner.skip((after + steps) // self.steps - groups_after, groups_after)

    def _means(self, sums: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        pairs = zip(sums, gradients, strict=True)
        return [(total + tf.convert_to_tensor(gradient)) / self.steps for total, gradient in pairs]


class PostProcess(ProxyOptimizer):
    """Optimizer wrapper that calls a function on each matching variable after each update.

    Args:
        optimizer: Optimizer to wrap.
        func: Function that takes a variable and changes it in the graph: `lambda v:
            v.assign(tf.round(v))`.
        regex: Regular expression for full names of variables.

    Raises:
        LayerError: No name of a variable matches (raised when training starts).
    """

    def __init__(self, optimizer: Any, func: Callable[[Any], Any], regex: str = ".*") -> None:
        super().__init__(optimizer)
        self.func, self.regex = func, regex

    def make_variables(self) -> dict[str, tf.Variable]:
        matching = find_matching(type(self).__name__, self.regex, self.trained, re.fullmatch)
        self._processed = list(matching.values())
        return {}

    def apply(self, gradients: Sequence[Any]) -> None:
        self.inner.apply(gradients)
        for variable in self._processed:
            update(variable, self._process)

    def _process(self, variable: Any) -> None:
        self.func(variable)


class VariableAssignment(PostProcess):
    """Optimizer wrapper that replaces each matching variable by a function of it after each update.

    Args:
        optimizer: Optimizer to wrap.
        func: Function that takes a variable and returns its new value, or None to keep the value:
            `lambda v: tf.clip_by_value(v, -1.0, 1.0)`.
        regex: Regular expression for full names of variables.
    """

    def _process(self, variable: Any) -> None:
        value = self.func(variable)
        if value is not None:
            variable.assign(value)


class WeightEMA(ProxyOptimizer):
    """Optimizer wrapper that computes exponential moving averages of the weights.

    Training uses the weights themselves, and checkpoints contain both. To use the averages, pass
    `ema=True`: `InferenceRunner(…, ema=True)`, `trainer.get_weights(ema=True)`, `Predictor(…,
    ema=True)`. Variables that are not trained, such as the statistics of batch normalization, have
    no averages.

    Args:
        optimizer: Optimizer to wrap.
        decay: Weight of the previous average in each step; at least 0 and less than 1.

    Raises:
        ConfigError: `decay` is out of range.
    """

    def __init__(self, optimizer: Any, decay: float = 0.999) -> None:
        super().__init__(optimizer)
        if not 0.0 <= decay < 1.0:
            raise ConfigError(
                f"The decay of WeightEMA must be at least 0 and less than 1, got {decay}."
            )
        self.decay = float(decay)

    def make_variables(self) -> dict[str, tf.Variable]:
        self._averages = {
            n: tf.Variable(v.read_value(), trainable=False) for n, v in self.trained.items()
        }
        return {AVERAGED + name: average for name, average in self._averages.items()}

    def apply(self, gradients: Sequence[Any]) -> None:
        self.inner.apply(gradients)
        for name, average in self._averages.items():
            update(average, self._move, self.trained[name])

    def _move(self, average: Any, weights: Any) -> None:
        average.assign_sub((1.0 - self.decay) * (average - weights))

    def averages(self) -> dict[str, tf.Variable]:
        return {**super().averages(), **self._averages}
