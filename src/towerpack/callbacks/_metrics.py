"""Evaluation metrics: top-k error, perplexity, and any Keras metric."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from towerpack._core.errors import CallbackError, ConfigError
from towerpack._core.naming import MASK
from towerpack.callbacks._inferencers import ClassificationError, Inferencer, ScalarStats
from towerpack.callbacks.watch import keras_direction


class TopKError(ClassificationError):
    """Fraction of datapoints whose class is not among the k classes with the highest scores.

    Among equal scores, smaller class numbers rank first. A class with score NaN is not among them.

    Args:
        k: Number of classes considered; at least 1.
        scores: Name of an output [batch, classes], such as logits.
        label: Name of an integer output [batch], the true classes.
        name: Name of the result; None for `top<k>_error`.

    Raises:
        ConfigError: `k` is not positive.
    """

    def __init__(
        self, k: int = 5, scores: str = "logits", label: str = "label", name: str | None = None
    ) -> None:
        super().__init__("wrong", name or f"top{k}_error")
        if k < 1:
            raise ConfigError(f"TopKError: k must be at least 1, got {k}.")
        self._k, self._scores, self._label = k, scores, label

    def outputs(self) -> Sequence[str]:
        return [self._scores, self._label]

    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        scores, label = (np.asarray(outputs[name]) for name in self.outputs())
        fits = scores.ndim == 2 and label.shape == scores.shape[:1] and label.dtype.kind in "iub"
        if not fits or (label.size and not 0 <= label.min() <= label.max() < scores.shape[1]):
            range_ = f" from {label.min()} to {label.max()}" if label.size else ""
            raise CallbackError(
                f"{self!r}: '{self._scores}' and '{self._label}' must have matching shapes.",
                got=f"{scores.dtype.name} {list(scores.shape)}, "
                f"{label.dtype.name} {list(label.shape)}{range_}",
                expected="scores [batch, classes], and class numbers [batch]",
            )
        label = label.astype(np.int64)[:, None]
        scores = scores.astype(np.float64)
        true_score = np.take_along_axis(scores, label, axis=1)
        before = np.arange(scores.shape[1]) < label
        rank = ((scores > true_score) | ((scores == true_score) & before)).sum(axis=1)
        super().update({"wrong": (rank >= self._k) | np.isnan(true_score[:, 0])}, batch_size)


class Perplexity(ScalarStats):
    """Perplexity: `exp` of the mean negative log-likelihood.

    The result is infinite if it is too large for a float, and NaN without tokens.

    Args:
        cost: Name of a scalar output, the mean over the tokens of a batch, in nats.
        tokens: Name of a scalar output, the weight of a batch: its number of tokens. None if all
            datapoints have the same number of tokens.
        name: Name of the result.
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
        weight: Any = batch_size if self._tokens is None else float(outputs[self._tokens])
        if weight:
            super().update(outputs, weight)

    def finish(self) -> Mapping[str, float]:
        if not self._count:
            return {self._name: math.nan}
        (mean,) = super().finish().values()
        return {self._name: math.exp(mean) if mean < 700 else math.inf}


class KerasMetric(Inferencer):
    """A Keras metric, computed over all batches of an evaluation.

        KerasMetric(keras.metrics.AUC(), ["label", "probability"])

    Args:
        metric: Metric with a scalar `result`.
        outputs: Names of the outputs passed to `update_state`, in order. Most metrics take true
            values first.
        weight: Name of the output passed as `sample_weight`.
        name: Name of the result; None for the metric's name.

    Raises:
        ConfigError: `metric` is not a metric.
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
                f"KerasMetric needs a metric such as keras.metrics.AUC(), got {metric!r}."
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
        from towerpack._keras.adapter import masked  # loads TensorFlow

        weight = {} if self._weight is None else {"sample_weight": outputs[self._weight]}
        try:
            values = [masked(outputs[n], outputs.get(n + MASK)) for n in self._outputs]
            self._metric.update_state(*values, **weight)
        except Exception as error:
            shapes = ", ".join(f"{name} {list(outputs[name].shape)}" for name in self._outputs)
            error.add_note(f"Raised by the metric '{self._name}', with inputs {shapes}.")
            raise

    def finish(self) -> Mapping[str, float]:
        result: Any = self._metric.result()
        if isinstance(result, dict) or np.ndim(result):
            raise CallbackError(
                f"The metric '{self._name}' must return one number, got {result}.",
                fix="choose a metric with a scalar result, such as one with average='macro'",
            )
        return {self._name: float(result)}
