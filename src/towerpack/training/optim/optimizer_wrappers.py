"""Optimizers around optimizers.

They nest, and the order says what is meant: `WeightEMA(AccumulateGradients(adam, 4))` averages
after each step, `AccumulateGradients(WeightEMA(adam), 4)` after each fourth, when weights move.
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
    """Process gradients before an optimizer takes them, once they are averaged over replicas.

    Args:
        optimizer: The optimizer.
        processors: Applied in order, for example `[GlobalNormClip(5.0)]`; or one.

    Raises:
        ConfigError: One of them is no `GradientProcessor`.
    """

    def __init__(
        self, optimizer: Any, processors: GradientProcessor | Sequence[GradientProcessor]
    ) -> None:
        super().__init__(optimizer)
        one = isinstance(processors, GradientProcessor)
        self.processors = [processors] if one else list(processors)
        for processor in self.processors:
            if not isinstance(processor, GradientProcessor):
                raise ConfigError(
                    f"{processor!r} is not a gradient processor.",
                    expected="instances such as GlobalNormClip(5.0)",
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
        found = super().scheduled()
        for processor in self.processors:
            found.update(processor.numbers())
        return found

    def check(self, gradients: Sequence[Any]) -> tf.Tensor:
        checks = [p.check(_firsts(self._named(gradients))) for p in self.processors]
        return tf.reduce_all([super().check(gradients), *checks])

    def checks(self) -> bool:
        return super().checks() or any(processor.checks for processor in self.processors)

    def nonfinite(self) -> list[str]:
        return super().nonfinite() + [n for p in self.processors for n in p.nonfinite()]

    def histograms(self, gradients: Sequence[Any]) -> dict[str, Any]:
        found = super().histograms(gradients)
        for processor in self.processors:
            found.update(processor.histograms(_firsts(self._named(gradients))))
        return found

    def _named(self, gradients: Sequence[Any]) -> dict[str, Any]:
        pairs = zip(self.trained, gradients, strict=True)
        return {name: gradient for name, gradient in pairs if gradient is not None}


def _firsts(gradients: Mapping[str, Any]) -> dict[str, Any]:
    return {name: first(gradient) for name, gradient in gradients.items()}


def apply_grad_processors(
    opt: Any, gradprocs: GradientProcessor | Sequence[GradientProcessor]
) -> ProcessGradients:
    """`ProcessGradients` by the predecessor's name."""
    return ProcessGradients(opt, gradprocs)


class AccumulateGradients(ProxyOptimizer):
    """Give an optimizer the average gradient of several steps, at each last one of them.

    It is as one step on a batch that is as many times larger: the wrapped optimizer, its count of
    steps, its schedule and its weight decay move only then. What is computed for a batch as a whole
    (batch normalisation) is still for the small ones. The trainer's step counts the small ones too,
    and so do callbacks and schedules over it.

    The sums are in checkpoints. What has not reached `steps` when training ends is not applied.

    Args:
        optimizer: The optimizer.
        steps: How many.

    Raises:
        ConfigError: Fewer than one step.
    """

    def __init__(self, optimizer: Any, steps: int) -> None:
        super().__init__(optimizer)
        if steps < 1:
            raise ConfigError(f"AccumulateGradients(steps={steps}).", expected="at least 1")
        self.steps = int(steps)

    def make_variables(self) -> dict[str, tf.Variable]:
        self._count = tf.Variable(tf.zeros([], tf.int64), trainable=False)
        self._sums = [
            tf.Variable(tf.zeros(v.shape, v.dtype), trainable=False) for v in self.trained.values()
        ]
        sums = zip(self.trained, self._sums, strict=True)
        return {"accumulated_steps": self._count, **{f"accumulated/{n}": v for n, v in sums}}

    def apply(self, gradients: Sequence[Any]) -> None:
        places = [i for i, gradient in enumerate(gradients) if gradient is not None]
        sums, given = [self._sums[i] for i in places], [gradients[i] for i in places]

        def last() -> None:
            means: list[Any] = [None] * len(gradients)
            for i, mean in zip(
                places, on_replicas(self.strategy, self._means, sums, given), strict=True
            ):
                means[i] = mean
            self.inner.apply(means)
            for total in sums:
                update(total, lambda own: own.assign(tf.zeros_like(own)))
            self._count.assign(tf.zeros_like(self._count))

        def earlier() -> None:
            for total, gradient in zip(sums, given, strict=True):
                update(total, lambda own, g: own.assign_add(tf.convert_to_tensor(g)), gradient)
            self._count.assign_add(1)

        tf.cond(self._count + 1 >= self.steps, last, earlier)

    def _means(self, sums: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
        pairs = zip(sums, gradients, strict=True)
        return [(total + tf.convert_to_tensor(gradient)) / self.steps for total, gradient in pairs]


class PostProcess(ProxyOptimizer):
    """Call a function on each variable after the update.

    Args:
        optimizer: The optimizer.
        func: Takes a variable and changes it in the graph: `lambda v: v.assign(tf.round(v))`.
        regex: For the whole name of the variables that it is called on.

    Raises:
        LayerError: When training starts: no variable's name matches.
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
    """Set each variable to a function of it after the update, for example to clip or quantize it.

    Args:
        optimizer: The optimizer.
        func: Takes a variable and gives its new value, or None to leave it:
            `lambda v: tf.clip_by_value(v, -1.0, 1.0)`.
        regex: As for `PostProcess`.
    """

    def _process(self, variable: Any) -> None:
        value = self.func(variable)
        if value is not None:
            variable.assign(value)


class WeightEMA(ProxyOptimizer):
    """Keep exponential moving averages of the weights beside them.

    Training goes on with the weights themselves, and checkpoints hold both. The averages are used
    where they are asked for: `InferenceRunner(…, ema=True)`, `trainer.get_weights(ema=True)`,
    `Predictor(…, ema=True)`. Nothing is ever swapped, so no interruption can mix them up. Variables
    that are not trained, such as the statistics of batch normalisation, have no averages.

    Args:
        optimizer: The optimizer.
        decay: Share of the old average that is kept in each step.

    Raises:
        ConfigError: `decay` is no share.
    """

    def __init__(self, optimizer: Any, decay: float = 0.999) -> None:
        super().__init__(optimizer)
        if not 0.0 <= decay < 1.0:
            raise ConfigError(f"WeightEMA(decay={decay}).", expected="at least 0, less than 1")
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
