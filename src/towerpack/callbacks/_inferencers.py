"""Inferencers: metrics computed from the model's outputs over a whole dataset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from towerpack._core import old_hooks
from towerpack._core.arguments import KeepsArguments
from towerpack._core.errors import CallbackError
from towerpack.callbacks._host import TrainerHost
from towerpack.callbacks.watch import Mode

_NO_HOOKS = {
    "_before_inference": "begin(self)",
    "_get_fetches": "outputs(self)",
    "_on_fetches": "update(self, outputs, batch_size); outputs is a dict by name",
    "_after_inference": "finish(self), and names(self) for the names of its results",
}


class Inferencer(KeepsArguments, ABC):
    """Base class of metrics that `InferenceRunner` computes over all batches of an evaluation.

    Override `outputs`, `names`, `begin`, `update` and `finish`.

    Attributes:
        better: `'min'` if smaller numbers are better, `'max'` if larger ones are. With None,
            `BestSaver`, `EarlyStopping` and `train.best` need an explicit mode. A subclass that
            overrides `names` must set `better` again.
    """

    better: Mode | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "names" in vars(cls) and "better" not in vars(cls):
            cls.better = None
        old_hooks.adopt(cls, {}, _NO_HOOKS)

    @abstractmethod
    def outputs(self) -> Sequence[str]:
        """Return the names of the tower's outputs that `update` needs."""

    @abstractmethod
    def names(self) -> Sequence[str]:
        """Return the names of the results of `finish`, which never change."""

    def masked(self) -> Sequence[str]:
        return ()

    def directions(self) -> Mapping[str, Mode]:
        return dict.fromkeys(self.names(), self.better) if self.better else {}

    def begin(self) -> None:
        """Reset the metric before the first batch of each evaluation."""

    @abstractmethod
    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        """Add the outputs of one batch to the metric.

        Args:
            outputs: Outputs of the batch by name.
            batch_size: Number of datapoints; the last batch may be smaller.

        Raises:
            CallbackError: An output has a wrong shape or wrong values.
        """

    @abstractmethod
    def finish(self) -> Mapping[str, float]:
        """Return a number for each of `names`, after the last batch."""

    def show(self, trainer: TrainerHost, prefix: str) -> None:
        """Write files and send images to the monitors. Called after `finish`; default: nothing.

        Args:
            trainer: The trainer.
            prefix: Prefix of the runner's results, such as `'val'`.
        """

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(repr, self.outputs()))})"


class ScalarStats(Inferencer):
    """Means of scalar outputs over all datapoints.

    Each batch is weighted by its number of datapoints. The result is exact if the output is a mean
    over the datapoints of a batch.

    Args:
        names: Name or names of scalar outputs, such as `'cost'`.
        prefix: Prefix of the names of the results, followed by a slash.
        mode: `'min'` if smaller scalars are better, `'max'` if larger are. Without a mode, only
            `cost` has a direction: a smaller cost is better.
    """

    def __init__(
        self, names: str | Sequence[str], prefix: str | None = None, *, mode: Mode | None = None
    ) -> None:
        self.better = mode or self.better
        names = [names] if isinstance(names, str) else names
        self._outputs = [name.removesuffix(":0") for name in names]
        self._prefix = f"{prefix}/" if prefix else ""
        self._sums, self._count = dict.fromkeys(self._outputs, 0.0), 0

    def outputs(self) -> Sequence[str]:
        return self._outputs

    def names(self) -> Sequence[str]:
        return [self._prefix + name for name in self._outputs]

    def directions(self) -> Mapping[str, Mode]:
        cost = self._prefix + "cost"
        return super().directions() or ({cost: "min"} if cost in self.names() else {})

    def begin(self) -> None:
        self._sums, self._count = dict.fromkeys(self._outputs, 0.0), 0

    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        for name in self._outputs:
            value = np.asarray(outputs[name])
            if value.ndim:
                raise CallbackError(
                    f"ScalarStats: the output '{name}' must be a scalar (the mean over the batch), "
                    f"got {value.dtype.name} {list(value.shape)}.",
                    fix=f"add expose('mean_{name}', tf.reduce_mean({name})), and pass "
                    f"'mean_{name}' to ScalarStats",
                )
            self._sums[name] += float(value) * batch_size
        self._count += batch_size

    def finish(self) -> Mapping[str, float]:
        return {self._prefix + name: self._sums[name] / self._count for name in self._outputs}


class ClassificationError(ScalarStats):
    """Fraction of datapoints that are classified wrongly.

    Args:
        wrong: Name of an output [batch]: 1 or True for a wrong datapoint, 0 for a correct one. For
            example `expose('incorrect', tf.math.logical_not(correct))`.
        name: Name of the result.
    """

    better = "min"

    def __init__(self, wrong: str = "incorrect", name: str = "error") -> None:
        super().__init__(wrong)
        self._wrong, self._name = wrong, name

    def names(self) -> Sequence[str]:
        return [self._name]

    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        wrong = flags(self._wrong, outputs[self._wrong], (batch_size,), repr(self))
        self._sums[self._wrong] += int(wrong.sum())
        self._count += batch_size

    def finish(self) -> Mapping[str, float]:
        return {self._name: self._sums[self._wrong] / self._count}


class BinaryClassificationStats(Inferencer):
    """Precision and recall of a binary classification, over all datapoints.

    Precision is the fraction of true positives among predicted positives, recall the fraction among
    true labels. Both are 0 if there are no positives.

    Args:
        prediction, label: Names of outputs of 0 and 1 of one shape, such as [batch]: predictions
            and true labels. Inputs of the model need `expose('label', label)`.
        prefix: Prefix of `precision` and `recall`, followed by a slash.
    """

    better = "max"

    def __init__(
        self, prediction: str = "prediction", label: str = "label", prefix: str | None = None
    ) -> None:
        self._prediction = prediction
        self._label = label
        self._prefix = f"{prefix}/" if prefix else ""
        self._called_yes = self._is_yes = self._both = 0

    def outputs(self) -> Sequence[str]:
        return [self._prediction, self._label]

    def names(self) -> Sequence[str]:
        return [self._prefix + "precision", self._prefix + "recall"]

    def begin(self) -> None:
        self._called_yes = self._is_yes = self._both = 0

    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        shape = np.shape(outputs[self._label])
        shape = shape if shape[:1] == (batch_size,) else (batch_size,)
        called, is_yes = (flags(name, outputs[name], shape, repr(self)) for name in self.outputs())
        self._called_yes += int(called.sum())
        self._is_yes += int(is_yes.sum())
        self._both += int((called & is_yes).sum())

    def finish(self) -> Mapping[str, float]:
        precision = self._both / self._called_yes if self._called_yes else 0.0
        recall = self._both / self._is_yes if self._is_yes else 0.0
        return dict(zip(self.names(), [precision, recall], strict=True))


def flags(name: str, value: np.ndarray, shape: tuple[int, ...], owner: str) -> np.ndarray:
    """Convert an array of 0 and 1 to bool. Raise `CallbackError` for other values or shapes."""
    array = np.asarray(value)
    if array.shape != shape:
        item = "datapoint" if len(shape) == 1 else "label"
        raise CallbackError(
            f"{owner}: the output '{name}' must have one value for each {item}, {list(shape)}, got "
            f"{array.dtype.name} {list(array.shape)}.",
            fix=f"expose the output without reducing it: expose('{name}', "
            "tf.not_equal(tf.argmax(logits, 1), label))",
        )
    true = array.astype(bool)
    if not np.array_equal(true, array):
        raise CallbackError(
            f"{owner}: values of the output '{name}' must be 0 or 1 (or booleans), got "
            f"{array[true != array][0]} ({array.dtype.name})."
        )
    return true
