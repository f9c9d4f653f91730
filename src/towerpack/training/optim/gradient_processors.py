"""Gradient processors, by the predecessor's names.

    ProcessGradients(keras.optimizers.Adam(1e-3), [GlobalNormClip(5.0)])

They act once a step, on gradients that have been averaged over the replicas and, in float16,
unscaled. An expression is for the whole name of a variable (`'conv0/kernel'`); one that matches
nothing is an error.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import tensorflow as tf

from towerpack._core.arguments import KeepsArguments
from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack.nn import find_matching
from towerpack.training.optim.proxy_and_loss_scale import is_finite, mapped

_LOG = get_logger(__name__)

Gradients = Mapping[str, Any]


class GradientProcessor(KeepsArguments):
    """Change gradients, or look at them, before an optimizer takes them. It does neither itself.

    Gradients are tensors or `tf.IndexedSlices` by the names of the variables. Those on which the
    cost does not depend are not there. No index of a `tf.IndexedSlices` is repeated.

    Attributes:
        checks: `check` may forbid a step.
        trained: The variables that are trained, by name.
    """

    checks: ClassVar[bool] = False
    trained: Mapping[str, tf.Variable]

    def build(self, variables: Mapping[str, tf.Variable]) -> None:
        """Eagerly, before the first step: see the variables that are trained."""
        self.trained = variables

    def process(self, gradients: Gradients) -> Gradients:
        """In the graph: other gradients. A variable that is left out is not updated.

        Where replicas have copies of the variables, it is called for each of them; it must not
        change variables.
        """
        return gradients

    def observe(self, gradients: Gradients) -> None:
        """In the graph, once a step: look at the gradients that `process` will get."""

    def variables(self) -> dict[str, tf.Variable]:
        """What checkpoints are to hold, by names of its own."""
        return {}

    def numbers(self) -> dict[str, float]:
        """For the monitors, at the end of an epoch."""
        return {}

    def histograms(self, gradients: Gradients) -> dict[str, Any]:
        """In the graph, at the last step of an epoch: for the monitors."""
        return {}

    def check(self, gradients: Gradients) -> tf.Tensor:
        """In the graph, before the update: whether it may take place."""
        return tf.constant(True)

    def nonfinite(self) -> list[str]:
        """Variables for whose gradients `check` has forbidden the last step."""
        return []

    def __repr__(self) -> str:
        values = [v for n, v in vars(self).items() if n[0] != "_" and n != "trained"]
        told = (getattr(value, "__qualname__", repr(value)) for value in values)
        return f"{type(self).__name__}({', '.join(told)})"


class FilterNoneGrad(GradientProcessor):
    """Do nothing: variables without a gradient are left out, with a warning, in any case.

    Args:
        verbose: Has no effect.
    """

    def __init__(self, verbose: bool = True) -> None:
        del verbose


class GlobalNormClip(GradientProcessor):
    """Scale all gradients together, so that their global norm is at most a threshold.

    Args:
        global_norm: The threshold, for the root of the sum of all squares.
    """

    def __init__(self, global_norm: float) -> None:
        self.global_norm = float(global_norm)

    def process(self, gradients: Gradients) -> Gradients:
        clipped, _ = tf.clip_by_global_norm(list(gradients.values()), self.global_norm)
        return dict(zip(gradients, clipped, strict=True))


class _Matching(GradientProcessor):
    """Of some variables: those whose whole names match `regex`."""

    def __init__(self, regex: str) -> None:
        self.regex = regex

    def build(self, variables: Mapping[str, tf.Variable]) -> None:
        super().build(variables)
        found = find_matching(type(self).__name__, self.regex, variables, re.fullmatch)
        self._matching = list(found)


class MapGradient(_Matching):
    """Apply a function to the gradients of some variables, and leave the others as they are.

    Args:
        func: Takes a dense gradient, or gradient and variable. With None from it the variable is
            not updated.
        regex: For the whole name of a variable.

    Raises:
        ConfigError: `func` takes another number of arguments.
        LayerError: When training starts: no variable's name matches.
    """

    def __init__(self, func: Callable[..., Any], regex: str = ".*") -> None:
        parameters = inspect.signature(func).parameters.values()
        needed = [p for p in parameters if p.default is p.empty and p.kind is not p.KEYWORD_ONLY]
        if len(needed) not in (1, 2):
            raise ConfigError(
                f"{type(self).__name__} got a function that takes {len(needed)} arguments.",
                expected="one of a gradient, or of a gradient and its variable",
            )
        super().__init__(regex)
        self.func = func
        self._with_variable = len(needed) == 2

    def process(self, gradients: Gradients) -> Gradients:
        found = dict(gradients)
        for name in self._matching:
            if name in found:
                gradient = tf.convert_to_tensor(found.pop(name))
                extra = [self.trained[name]] if self._with_variable else []
                result = self.func(gradient, *extra)
                if result is not None:
                    found[name] = result
        return found


class ValueClip(MapGradient):
    """Clip each number of the gradients.

    Args:
        max_value: To between this and its negative.
        regex: As for `MapGradient`.
    """

    def __init__(self, max_value: float, regex: str = ".*") -> None:
        super().__init__(lambda g: tf.clip_by_value(g, -self.max_value, self.max_value), regex)
        self.max_value = float(max_value)


class ScaleGradient(GradientProcessor):
    """Multiply gradients by factors; a factor of 0 leaves the variables out of the update.

        ScaleGradient([("conv.*", 0.1), (".*/bias", 2.0)])

    Args:
        multipliers: Expressions and factors, the first that matches counts; or one pair.
        verbose: Log what is scaled.

    Raises:
        LayerError: When training starts: an expression matches no variable's name.
    """

    def __init__(
        self,
        multipliers: tuple[str, float] | Sequence[tuple[str, float]],
        verbose: bool = True,
    ) -> None:
        one = isinstance(multipliers, tuple)
        self.multipliers: list[Any] = [multipliers] if one else list(multipliers)
        self._verbose = verbose

    def build(self, variables: Mapping[str, tf.Variable]) -> None:
        super().build(variables)
        self._factors: dict[str, float] = {}
        for regex, factor in self.multipliers:
            for name in find_matching("ScaleGradient", regex, variables, re.fullmatch):
                self._factors.setdefault(name, factor)
        if self._verbose:
            for name, factor in self._factors.items():
                _LOG.info("The gradient of %s is multiplied by %g.", name, factor)

    def process(self, gradients: Gradients) -> Gradients:
        factors = {name: self._factors.get(name, 1.0) for name in gradients}
        return {
            name: g if factors[name] == 1 else mapped(lambda x, by=factors[name]: x * by, g)
            for name, g in gradients.items()
            if factors[name] != 0
        }


class CheckGradient(GradientProcessor):
    """End training at a gradient that is NaN or infinite, with an error that names its variables.

    The step is not applied and its inputs are saved, as with a cost that is not finite; it needs
    the callback `CheckNumerics`, which is there by default. It looks at the gradients as they come,
    before other processors. In float16 steps that overflow are left out before.
    """

    checks: ClassVar[bool] = True

    def build(self, variables: Mapping[str, tf.Variable]) -> None:
        super().build(variables)
        self._names = list(variables)
        self._finite = tf.Variable(tf.ones([len(variables)], tf.bool), trainable=False)

    def check(self, gradients: Gradients) -> tf.Tensor:
        finite = tf.stack(
            [is_finite(gradients[n]) if n in gradients else tf.constant(True) for n in self._names]
        )
        self._finite.assign(finite)
        return tf.reduce_all(finite)

    def nonfinite(self) -> list[str]:
        return [n for n, ok in zip(self._names, self._finite.numpy(), strict=True) if not ok]


class SummaryGradient(_Matching):
    """Report gradients: a moving average of their RMS, and a histogram at the end of each epoch.

    They are called `'gradient-summary/NAME-rms'` and `'gradient-summary/NAME-histogram'`.

    Args:
        regex: As for `MapGradient`.
        decay: Share of the old average that is kept in each step.
    """

    def __init__(self, regex: str = ".*", *, decay: float = 0.95) -> None:
        super().__init__(regex)
        self.decay = decay

    def build(self, variables: Mapping[str, tf.Variable]) -> None:
        super().build(variables)
        self._rms = {n: tf.Variable(tf.zeros([]), trainable=False) for n in self._matching}
        self._weight = tf.Variable(
            tf.zeros([]), trainable=False
        )  # What the averages would be of ones

    def observe(self, gradients: Gradients) -> None:
        keep = self.decay
        for name, average in self._rms.items():
            if name in gradients:
                average.assign(keep * average + (1.0 - keep) * _rms(gradients[name]))
        self._weight.assign(keep * self._weight + (1.0 - keep))

    def variables(self) -> dict[str, tf.Variable]:
        rms = {f"gradient-summary/{n}-rms": v for n, v in self._rms.items()}
        return {**rms, "gradient-summary/weight": self._weight}

    def numbers(self) -> dict[str, float]:
        weight = float(self._weight.numpy()) or 1.0
        return {
            f"gradient-summary/{n}-rms": float(v.numpy()) / weight for n, v in self._rms.items()
        }

    def histograms(self, gradients: Gradients) -> dict[str, Any]:
        return {
            f"gradient-summary/{name}-histogram": tf.convert_to_tensor(gradients[name])
            for name in self._rms
            if name in gradients
        }


class PrintGradient(_Matching):
    """Print shape, mean and RMS of gradients to stderr, at every step.

    Args:
        regex: As for `MapGradient`.
    """

    def __init__(self, regex: str = ".*") -> None:
        super().__init__(regex)

    def observe(self, gradients: Gradients) -> None:
        for name in self._matching:
            if name in gradients:
                g = tf.convert_to_tensor(gradients[name])
                told = "shape", tf.shape(g), "mean", tf.reduce_mean(g), "rms", _rms(g)
                tf.print(f"{name}-grad:", *told, output_stream=sys.stderr)


def _rms(gradient: Any) -> tf.Tensor:
    return tf.sqrt(tf.reduce_mean(tf.square(tf.cast(tf.convert_to_tensor(gradient), tf.float32))))
