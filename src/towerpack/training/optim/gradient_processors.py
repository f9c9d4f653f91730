"""Gradient processors, with the names of Tensorpack.

    ProcessGradients(keras.optimizers.Adam(1e-3), [GlobalNormClip(5.0)])

Processors run once per step on gradients that are averaged over replicas and, in float16, unscaled.
Regular expressions must match a full name (`'conv0/kernel'`) of at least one variable.
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
    """Base class of gradient processors, which change or observe gradients before the update.

    Gradients are mappings from names of variables to tensors, or to `tf.IndexedSlices` without
    repeated indices. Variables on which the cost does not depend are left out.

    Attributes:
        checks: Whether `check` may forbid a step.
        trained: Trained variables by name.
    """

    checks: ClassVar[bool] = False
    trained: Mapping[str, tf.Variable]

    def build(self, variables: Mapping[str, tf.Variable]) -> None:
        """Create the processor's variables eagerly, before the first step.

        Args:
            variables: Trained variables by name.
        """
        self.trained = variables

    def process(self, gradients: Gradients) -> Gradients:
        """Return the processed gradients, in the graph. Variables without one are not updated.

        If replicas have copies of the variables, this method is called once for each replica. It
        must not change variables.

        Args:
            gradients: Gradients by names of variables.
        """
        return gradients

    def observe(self, gradients: Gradients) -> None:
        """Observe the gradients in each step before `process`, in the graph. Default: do nothing.

        Args:
            gradients: Gradients by names of variables.
        """

    def variables(self) -> dict[str, tf.Variable]:
        """Return the processor's variables for checkpoints, by names of your choice."""
        return {}

    def numbers(self) -> dict[str, float]:
        """Return numbers for the monitors by name. Called at the end of each epoch."""
        return {}

    def histograms(self, gradients: Gradients) -> dict[str, Any]:
        """Return tensors of an epoch's last step to plot as histograms, by name, in the graph.

        Args:
            gradients: Gradients by names of variables.
        """
        return {}

    def check(self, gradients: Gradients) -> tf.Tensor:
        """Return a scalar bool tensor in the graph: whether the update may be applied.

        Args:
            gradients: Gradients by names of variables.
        """
        return tf.constant(True)

    def nonfinite(self) -> list[str]:
        """Return names of variables whose NaN or infinite gradients made `check` skip a step."""
        return []

    def __repr__(self) -> str:
        values = [v for n, v in vars(self).items() if n[0] != "_" and n != "trained"]
        texts = (getattr(value, "__qualname__", repr(value)) for value in values)
        return f"{type(self).__name__}({', '.join(texts)})"


class FilterNoneGrad(GradientProcessor):
    """Processor without effect, because variables without a gradient are always left out.

    Args:
        verbose: Not used.
    """

    def __init__(self, verbose: bool = True) -> None:
        del verbose


class GlobalNormClip(GradientProcessor):
    """Processor that limits the global norm of the gradients by scaling all with the same factor.

    It does not report the norm. `docs/callbacks.md` has a processor that does.

    Args:
        global_norm: Largest global norm: the square root of the sum of all squared gradients.
    """

    def __init__(self, global_norm: float) -> None:
        self.global_norm = float(global_norm)

    def process(self, gradients: Gradients) -> Gradients:
        clipped, _ = tf.clip_by_global_norm(list(gradients.values()), self.global_norm)
        return dict(zip(gradients, clipped, strict=True))


class _Matching(GradientProcessor):
    """Base class of processors that change only variables whose full names match `regex`."""

    def __init__(self, regex: str = ".*") -> None:
        self.regex = regex

    def build(self, variables: Mapping[str, tf.Variable]) -> None:
        super().build(variables)
        self._matching = list(
            find_matching(type(self).__name__, self.regex, variables, re.fullmatch)
        )


class MapGradient(_Matching):
    """Processor that applies a function to the gradients of matching variables.

    Args:
        func: Function of a dense gradient, or of a gradient and its variable. It returns the new
        gradient, or None to skip the update of the variable.
        regex: Regular expression for full names of variables.

    Raises:
        ConfigError: `func` does not take one or two arguments.
        LayerError: No name of a variable matches (raised when training starts).
    """

    def __init__(self, func: Callable[..., Any], regex: str = ".*") -> None:
        parameters = inspect.signature(func).parameters.values()
        needed = [p for p in parameters if p.default is p.empty and p.kind is not p.KEYWORD_ONLY]
        if len(needed) not in (1, 2):
            raise ConfigError(
                f"The function of {type(self).__name__} must take a gradient, or a gradient and "
                f"its variable, got a function of {len(needed)} arguments."
            )
        super().__init__(regex)
        self.func = func
        self._with_variable = len(needed) == 2

    def process(self, gradients: Gradients) -> Gradients:
        processed = dict(gradients)
        for name in self._matching:
            if name in processed:
                gradient = tf.convert_to_tensor(processed.pop(name))
                extra = [self.trained[name]] if self._with_variable else []
                result = self.func(gradient, *extra)
                if result is not None:
                    processed[name] = result
        return processed


class ValueClip(MapGradient):
    """Processor that clips each element of the gradients to [-max_value, max_value].

    Args:
        max_value: Largest absolute value.
        regex: Regular expression for full names of variables.
    """

    def __init__(self, max_value: float, regex: str = ".*") -> None:
        super().__init__(lambda g: tf.clip_by_value(g, -self.max_value, self.max_value), regex)
        self.max_value = float(max_value)


class ScaleGradient(GradientProcessor):
    """Processor that multiplies gradients by factors. With factor 0, a variable is not updated.

        ScaleGradient([("conv.*", 0.1), (".*/bias", 2.0)])

    Args:
        multipliers: Pairs of a regular expression and a factor, or one pair. The factor of the
            first expression that matches a variable's full name is used.
        verbose: Whether to log the factors.

    Raises:
        LayerError: An expression matches no name of a variable (raised when training starts).
    """

    def __init__(
        self, multipliers: tuple[str, float] | Sequence[tuple[str, float]], verbose: bool = True
    ) -> None:
        is_pair = isinstance(multipliers, tuple)
        self.multipliers: list[Any] = [multipliers] if is_pair else list(multipliers)
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
    """Processor that ends training with an error if a gradient is NaN or infinite.

    The error names the variables. The update is skipped and the inputs of the step are saved. This
    needs the callback `CheckNumerics`, a default of `TrainConfig(extra_callbacks=…)`. Gradients are
    checked before all other processors. In float16, steps that overflow are skipped without an
    error.
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
    """Processor that reports the moving average of each gradient's RMS, and an epoch's histogram.

    The names are `'gradient-summary/NAME-rms'` and `'gradient-summary/NAME-histogram'`, where
    `NAME` is the name of the variable.

    Args:
        regex: Regular expression for full names of variables.
        decay: Weight of the previous average in each step, from 0 to 1.
    """

    def __init__(self, regex: str = ".*", *, decay: float = 0.95) -> None:
        super().__init__(regex)
        self.decay = decay

    def build(self, variables: Mapping[str, tf.Variable]) -> None:
        super().build(variables)
        self._rms = {n: tf.Variable(tf.zeros([]), trainable=False) for n in self._matching}
        # Moving average of ones, which corrects the bias of averages that start at 0.
        self._weight = tf.Variable(tf.zeros([]), trainable=False)

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
    """Processor that prints shape, mean and RMS of each gradient to stderr in every step.

    Args:
        regex: Regular expression for full names of variables.
    """

    def observe(self, gradients: Gradients) -> None:
        for name in self._matching:
            if name in gradients:
                g = tf.convert_to_tensor(gradients[name])
                values = "shape", tf.shape(g), "mean", tf.reduce_mean(g), "rms", _rms(g)
                tf.print(f"{name}-grad:", *values, output_stream=sys.stderr)


def _rms(gradient: Any) -> tf.Tensor:
    return tf.sqrt(tf.reduce_mean(tf.square(tf.cast(tf.convert_to_tensor(gradient), tf.float32))))
