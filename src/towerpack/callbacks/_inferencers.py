"""Base of inferencers, which make numbers of outputs over a whole dataset, and the usual ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from towerpack._core import old_hooks
from towerpack._core.arguments import KeepsArguments
from towerpack._core.errors import CallbackError

if TYPE_CHECKING:
    from towerpack.callbacks._host import TrainerHost
    from towerpack.callbacks.watch import Mode

_NO_HOOKS = {
    "_before_inference": "begin(self)",
    "_get_fetches": "outputs(self)",
    "_on_fetches": "update(self, outputs, batch_size); outputs is a dict by name",
    "_after_inference": "finish(self), and names(self) for the names of what it gives",
}


class Inferencer(KeepsArguments, ABC):
    """Gather outputs of the tower over all batches of an evaluation, and give numbers at its end.

    Subclass it with `outputs`, `names`, `begin`, `update` and `finish`, and hand it to
    `InferenceRunner`.

    Attributes:
        better: `'min'` if smaller numbers are better, `'max'` if larger ones are. With None,
            `BestSaver`, `EarlyStopping` and `train.best` need an explicit mode. A subclass with
            other `names` declares it anew.
    """

    better: Mode | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "names" in vars(cls) and "better" not in vars(cls):
            cls.better = None
        old_hooks.adopt(cls, {}, _NO_HOOKS)

    @abstractmethod
    def outputs(self) -> Sequence[str]:
        """Names of the outputs of the tower that `update` wants."""

    @abstractmethod
    def names(self) -> Sequence[str]:
        """Names of the numbers that `finish` gives, always the same."""

    def masked(self) -> Sequence[str]:
        return ()

    def directions(self) -> Mapping[str, Mode]:
        return dict.fromkeys(self.names(), self.better) if self.better else {}

    def begin(self) -> None:
        """Before the first batch of each evaluation."""

    @abstractmethod
    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        """After each batch.

        Args:
            outputs: By name, at least those asked for.
            batch_size: How many datapoints the batch holds; the last batch may be smaller.
        """

    @abstractmethod
    def finish(self) -> Mapping[str, float]:
        """After the last batch: a number for each of `names`."""

    def show(self, trainer: TrainerHost, prefix: str) -> None:
        """After `finish`: files in the run directory, pictures for the monitors.

        Args:
            trainer: The host.
            prefix: The runner's, such as `'val'`.
        """


class ScalarStats(Inferencer):
    """Means of scalars over all datapoints.

    A scalar of a batch is taken for the mean of its datapoints and weighs as many, so the result is
    exact for such scalars, a smaller last batch included.

    Args:
        names: Name or names of scalar outputs, such as `'cost'`.
        prefix: Put before the names of the results, with a slash.
        mode: `'min'` if smaller scalars are better, `'max'` if larger are. Without a mode, only
            `cost` has a direction: a smaller cost is better.
    """

    def __init__(
        self, names: str | Sequence[str], prefix: str | None = None, *, mode: Mode | None = None
    ) -> None:
        self.better = mode or self.better
        given = [names] if isinstance(names, str) else names
        self._outputs = [name.removesuffix(":0") for name in given]
        self._prefix = f"{prefix}/" if prefix else ""
        self._sums, self._count = dict.fromkeys(self._outputs, 0.0), 0

    def outputs(self) -> Sequence[str]:
        return self._outputs

    def names(self) -> Sequence[str]:
        return [self._prefix + name for name in self._outputs]

    def directions(self) -> Mapping[str, Mode]:
        """Return the mode by name. Without a mode, a smaller `cost` is better."""
        cost = self._prefix + "cost"
        return super().directions() or ({cost: "min"} if cost in self.names() else {})

    def begin(self) -> None:
        self._sums, self._count = dict.fromkeys(self._outputs, 0.0), 0

    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        """Add a batch. Raise `CallbackError` if an output is not a scalar."""
        for name in self._outputs:
            value = np.asarray(outputs[name])
            if value.ndim:
                raise CallbackError(
                    f"ScalarStats: the output '{name}' is no scalar.",
                    got=f"{value.dtype.name} {list(value.shape)}",
                    expected="the mean over the batch, of shape []",
                    fix=f"expose a scalar: expose('mean_{name}', tf.reduce_mean({name}))",
                )
            self._sums[name] += float(value) * batch_size
        self._count += batch_size

    def finish(self) -> Mapping[str, float]:
        return {self._prefix + name: self._sums[name] / self._count for name in self._outputs}


class ClassificationError(ScalarStats):
    """The share of datapoints that are classified wrongly. Exact.

    Args:
        wrong: Name of an output of shape [batch]: 1 or True where a datapoint is wrong, otherwise
            0. For example `expose('incorrect', tf.math.logical_not(correct))`.
        name: Name of the result.
    """

    better = "min"

    def __init__(self, wrong: str = "incorrect", name: str = "error") -> None:
        super().__init__(wrong)
        self._wrong, self._name = wrong, name

    def names(self) -> Sequence[str]:
        return [self._name]

    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        """Count. Raise `CallbackError` if the output is not one 0 or 1 for each datapoint."""
        wrong = flags(self._wrong, outputs[self._wrong], (batch_size,), repr(self))
        self._sums[self._wrong] += int(wrong.sum())
        self._count += batch_size

    def finish(self) -> Mapping[str, float]:
        return {self._name: self._sums[self._wrong] / self._count}

    def __repr__(self) -> str:
        return f"ClassificationError({self._wrong!r})"


class BinaryClassificationStats(Inferencer):
    """Precision and recall of a yes-or-no classification, over all datapoints.

    Precision is the share of yes among what was called yes; recall is the share that was called
    yes among what is. Both are 0 where there is nothing to share.

    Args:
        prediction: Name of an output of 0 and 1, what the model says: of shape [batch], or of any
            shape that begins with it, such as [batch, height, width].
        label: Name of an output of the same shape: what is true, as 0 and 1. An input of the model
            becomes an output by `expose('label', label)`.
        prefix: Put before `precision` and `recall`, with a slash.
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
        """Count. Raise `CallbackError` if shapes differ or values are not 0 or 1."""
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

    def __repr__(self) -> str:
        return f"BinaryClassificationStats({self._prediction!r}, {self._label!r})"


def flags(name: str, value: np.ndarray, shape: tuple[int, ...], who: str) -> np.ndarray:
    """Return an array of 0 and 1, of any dtype, as booleans.

    Raises:
        CallbackError: It is something else.
    """
    array = np.asarray(value)
    if array.shape != shape:
        each = "datapoint" if len(shape) == 1 else "label"
        raise CallbackError(
            f"{who}: the output '{name}' does not have one value for each {each}.",
            got=f"{array.dtype.name} {list(array.shape)}",
            expected=f"{list(shape)}, one for each {each}",
            fix=f"do not reduce it before exposing it: expose('{name}', "
            "tf.not_equal(tf.argmax(logits, 1), label))",
        )
    true = array.astype(bool)
    if not np.array_equal(true, array):
        odd = array[true != array][0]
        raise CallbackError(
            f"{who}: the output '{name}' holds other values than 0 and 1.",
            got=f"{array.dtype.name} with the value {odd}",
            expected="0 or 1 (or booleans), one for each datapoint",
        )
    return true
