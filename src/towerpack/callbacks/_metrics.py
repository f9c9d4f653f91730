"""More numbers of an evaluation: top-k, perplexity, any metric of Keras."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from towerpack._core.errors import CallbackError, ConfigError
from towerpack._core.naming import MASK
from towerpack.callbacks._inferencers import ClassificationError, Inferencer, ScalarStats
from towerpack.callbacks.watch import keras_direction

if TYPE_CHECKING:
    pass


class TopKError(ClassificationError):
    """The share of datapoints whose class is not among the k with the highest scores. Exact.

    Of equal scores, the smaller class counts as the higher one. A class whose score is NaN is never
    among the highest.

    Args:
        k: At least 1.
        scores: Name of an output of shape [batch, classes], such as logits.
        label: Name of an output of shape [batch]: the true classes, as integers.
        name: Of the result; None for `top<k>_error`.

    Raises:
        ConfigError: `k` is not positive.
    """

    def __init__(
        self, k: int = 5, scores: str = "logits", label: str = "label", name: str | None = None
    ) -> None:
        super().__init__("wrong", name or f"top{k}_error")
        if k < 1:
            raise ConfigError(f"TopKError({k}) makes no sense.", expected="at least 1")
        self._k, self._scores, self._label = k, scores, label

    def outputs(self) -> Sequence[str]:
        return [self._scores, self._label]

    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        """Count. Raise `CallbackError` if shapes do not fit or a label is not a class."""
        scores, label = (np.asarray(outputs[name]) for name in self.outputs())
        fits = scores.ndim == 2 and label.shape == scores.shape[:1] and label.dtype.kind in "iub"
        if not fits or (label.size and not 0 <= label.min() <= label.max() < scores.shape[1]):
            range_ = f" from {label.min()} to {label.max()}" if label.size else ""
            raise CallbackError(
                f"{self!r}: '{self._scores}' and '{self._label}' do not belong together.",
                got=f"{scores.dtype.name} {list(scores.shape)}, "
                f"{label.dtype.name} {list(label.shape)}{range_}",
                expected="scores [batch, classes] and the numbers of classes [batch]",
            )
        label = label.astype(np.int64)[:, None]
        scores = scores.astype(np.float64)
        own = np.take_along_axis(scores, label, axis=1)
        before = np.arange(scores.shape[1]) < label
        rank = ((scores > own) | ((scores == own) & before)).sum(axis=1)
        super().update({"wrong": (rank >= self._k) | np.isnan(own[:, 0])}, batch_size)

    def __repr__(self) -> str:
        return f"TopKError({self._k})"


class Perplexity(ScalarStats):
    """`exp` of the mean negative log-likelihood.

    Args:
        cost: Name of a scalar output: the mean over the batch's tokens, in nats.
        tokens: Name of a scalar output: the number of tokens, or the sum of their weights, by which
            the mean counts; None if each datapoint has as many.
        name: Of the result.
    """

    better = "min"

    def __init__(
        self, cost: str = "cost", tokens: str | None = None, name: str = "perplexity"
    ) -> None:
        super().__init__(cost)
        self._tokens, self._name = tokens, name

    def outputs(self) -> Sequence[str]:
        return self._outputs if self._tokens is None else [*self._outputs, self._tokens]

    def names(self) -> Sequence[str]:
        return [self._name]

    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        """Add a batch; one without tokens counts for nothing."""
        weight: Any = batch_size if self._tokens is None else float(outputs[self._tokens])
        if weight:
            super().update(outputs, weight)

    def finish(self) -> Mapping[str, float]:
        """The perplexity; infinite where it is beyond all numbers, NaN without tokens."""
        if not self._count:
            return {self._name: math.nan}
        (mean,) = super().finish().values()
        return {self._name: math.exp(mean) if mean < 700 else math.inf}


class KerasMetric(Inferencer):
    """A metric of Keras over all batches of an evaluation.

        KerasMetric(keras.metrics.AUC(), ["label", "probability"])

    Args:
        metric: Its `update_state` is given the outputs, its `result` is one number.
        outputs: Names of outputs in the order of the arguments of `update_state`; most metrics take
            true values first.
        weight: Name of an output that is its `sample_weight`.
        name: Of the result; None for the metric's own.

    Raises:
        ConfigError: It is no metric.
    """

    def __init__(
        self,
        metric: Any,
        outputs: str | Sequence[str] = ("label", "prediction"),
        *,
        weight: str | None = None,
        name: str | None = None,
    ) -> None:
        self._outputs = [outputs] if isinstance(outputs, str) else [*outputs]
        parts = ("reset_state", "update_state", "result")
        if isinstance(metric, type) or not all(hasattr(metric, part) for part in parts):
            raise ConfigError(
                f"KerasMetric: {metric!r} is no metric.",
                expected="an object such as keras.metrics.AUC()",
            )
        self._metric, self._weight = metric, weight
        self._name = name or str(metric.name)
        self.better = keras_direction(metric)

    def outputs(self) -> Sequence[str]:
        return self._outputs if self._weight is None else [*self._outputs, self._weight]

    def masked(self) -> Sequence[str]:
        return self._outputs

    def names(self) -> Sequence[str]:
        return [self._name]

    def begin(self) -> None:
        self._metric.reset_state()

    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        # Here, since it loads TensorFlow, which whoever has an evaluation has loaded already.
        from towerpack._keras.adapter import masked

        weight = {} if self._weight is None else {"sample_weight": outputs[self._weight]}
        try:
            values = [masked(outputs[n], outputs.get(n + MASK)) for n in self._outputs]
            self._metric.update_state(*values, **weight)
        except Exception as error:
            given = {name: list(outputs[name].shape) for name in self._outputs}
            got = ", ".join(f"{name} {shape}" for name, shape in given.items())
            error.add_note(f"From the metric '{self._name}', which was given {got}.")
            raise

    def finish(self) -> Mapping[str, float]:
        """Return the result. Raise `CallbackError` if the result is not one number."""
        result: Any = self._metric.result()
        if isinstance(result, dict) or np.ndim(result):
            raise CallbackError(
                f"The metric '{self._name}' gives more than one number.",
                got=str(result),
                expected="a scalar, such as with average='macro'",
            )
        return {self._name: float(result)}
