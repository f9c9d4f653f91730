"""Evaluation over a dataset while training goes on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from towerpack._core.errors import CallbackError, ConfigError, DataFlowError, SpecError
from towerpack._core.randomness import derive_seed
from towerpack.callbacks._base import Callback
from towerpack.callbacks._inferencers import Inferencer
from towerpack.callbacks._read_ahead import ReadAhead
from towerpack.callbacks._terminal import task
from towerpack.dataflow import DataFlow
from towerpack.dataflow.stages._repeat import tell_if_short

if TYPE_CHECKING:
    import tensorflow as tf

    from towerpack.callbacks._host import TrainerHost


@dataclass(frozen=True)
class _Batch:
    inputs: list[np.ndarray]
    size: int


class InferenceRunner(Callback):
    """Runs the model in inference mode over a whole dataflow; inferencers make numbers of it.

    Results are monitored as `'<prefix>/<name>'`. All of the flow counts, a smaller last batch
    included, and each evaluation sees the same data: the flow's first pass, with a seed that
    depends on the run's seed and the prefix alone. Training's own data are not touched. The next
    batch is read by a thread while the model works on one.

    Args:
        dataflow: Finite; its datapoints are batches with a component for each input of the model,
            in order, or dicts. A dict may lack inputs on which the wanted outputs do not depend.
        inferencers: What to make of the outputs.
        prefix: For the names of the results. Two runners need different ones.
        ema: Evaluate the averages that `WeightEMA` keeps instead of the weights.

    Raises:
        ConfigError: `dataflow` can be iterated only once, or not at all, or there are no
            inferencers.
        CallbackError: Two results have the same name.
    """

    def __init__(
        self,
        dataflow: Iterable[Any],
        inferencers: Inferencer | Sequence[Inferencer],
        prefix: str = "val",
        *,
        ema: bool = False,
    ) -> None:
        self._prefix = prefix
        self._ema = ema
        _check_flow(dataflow, repr(self))
        self.dataflow = dataflow
        self._told = False
        self.inferencers = [inferencers] if isinstance(inferencers, Inferencer) else [*inferencers]
        for inferencer in self.inferencers:
            if not isinstance(inferencer, Inferencer):
                raise ConfigError(
                    f"{self!r}: {inferencer!r} is not an inferencer.",
                    expected="instances of Inferencer, such as ScalarStats('cost')",
                )
        if not self.inferencers:
            raise ConfigError(f"{self!r} has no inferencers.", fix="[ScalarStats('cost')]")

    _outputs: list[str]
    _function: Callable[..., Sequence[Any]]
    _feeder: Feeder

    def produces(self) -> Sequence[str]:
        """The inferencers' names with the prefix."""
        return [f"{self._prefix}/{n}" for i in self.inferencers for n in i.names()]

    def setup(self, trainer: TrainerHost) -> None:
        """Check that no result overwrites another."""
        names = self.produces()
        for name in names:
            if names.count(name) > 1:
                raise CallbackError(
                    f"{self!r}: two inferencers both give '{name}'.",
                    fix="give one of them another name or prefix",
                )

    def before_train(self) -> None:
        """Cut the tower to the outputs now, so that a wrong name does not wait for an epoch."""
        self._outputs = list(dict.fromkeys(n for i in self.inferencers for n in i.outputs()))
        self._function, input_names = self.trainer.predict_function(self._outputs, ema=self._ema)
        self._feeder = Feeder(self.trainer.tower.specs, input_names, _pipeline(self.dataflow))

    def trigger(self) -> None:
        """Evaluate.

        Raises:
            SpecError: A datapoint does not fit the model's inputs.
            DataFlowError: The flow is empty.
            CallbackError: An inferencer gave other names than it said.
            Exception: Whatever the flow raised.
        """
        for inferencer in self.inferencers:
            inferencer.begin()
        if self._run() == 0:
            raise DataFlowError(
                f"{self!r} found no data to evaluate.",
                got="a flow without datapoints",
                fix="BatchData(ds, n, remainder=True) keeps a last batch that is not full",
                pipeline=_pipeline(self.dataflow),
            )
        for inferencer in self.inferencers:
            results = inferencer.finish()
            if set(results) != set(inferencer.names()):
                raise CallbackError(
                    f"{self!r}: {inferencer!r} gave other names than it said.",
                    got=str(sorted(results)),
                    expected=str(sorted(inferencer.names())),
                )
            for name, value in results.items():
                self.trainer.monitors.put_scalar(
                    f"{self._prefix}/{name}", float(value), self.trainer.global_step
                )
            inferencer.show(self.trainer, self._prefix)

    def _run(self) -> int:
        """Hand all batches to the inferencers; gives the number of datapoints."""
        count = 0
        poll = self.trainer.check_interrupt
        reader = ReadAhead(self._iterator, self._feeder)
        with task(self._prefix, _length(self.dataflow)) as advance, reader:
            for batch in itertools.islice(reader.items(poll), self.trainer.fast_dev_run or None):
                if batch.size:
                    self._update(batch)
                count += batch.size
                advance()
        return count

    def _iterator(self) -> Iterator[Any]:
        overfitted = self.trainer.overfitted()
        if overfitted is not None:
            return iter(overfitted)
        iterate = getattr(self.dataflow, "iterate", None)
        if iterate is None:
            return iter(self.dataflow)
        seed = derive_seed(self.trainer.seed, "InferenceRunner", self._prefix)
        if isinstance(self.dataflow, DataFlow):
            return self._whole_pass(self.dataflow, seed)
        return iterate(seed=seed, epoch=0)

    def _whole_pass(self, flow: DataFlow, seed: int) -> Iterator[Any]:
        """A pass; a warning, once, if it is shorter than the flow's length says."""
        count = 0
        with closing(flow.iterate(seed=seed, epoch=0)) as iterator:
            for datapoint in iterator:
                count += 1
                yield datapoint
        if not self._told:
            self._told = tell_if_short(flow, count)

    def _update(self, batch: _Batch) -> None:
        tensors = self._function(*batch.inputs)
        arrays = {n: np.asarray(t) for n, t in zip(self._outputs, tensors, strict=True)}
        for inferencer in self.inferencers:
            inferencer.update(arrays, batch.size)

    def __repr__(self) -> str:
        return f"InferenceRunner({self._prefix!r})"


class Feeder:
    """Turns datapoints into the arrays that a cut tower wants.

    Args:
        specs: The model's inputs.
        wanted: Names of those that are fed, in order.
        pipeline: Where the datapoints come from, for messages.
    """

    def __init__(
        self, specs: Sequence[tf.TensorSpec], wanted: Sequence[str], pipeline: str
    ) -> None:
        # Here, since it loads TensorFlow, which whoever feeds a model has loaded already.
        from towerpack.inputs._check import SpecChecker

        by_name = {str(spec.name): spec for spec in specs}
        self._wanted = list(wanted)
        self._all = list(by_name)
        self._batched = [n for n in self._wanted if by_name[n].shape[:1] == [None]]
        self._check_all = SpecChecker(specs, pipeline)
        self._check_wanted = SpecChecker([by_name[n] for n in self._wanted], pipeline)
        self._pipeline = pipeline

    def __call__(self, datapoint: Any, position: int) -> _Batch:
        """The wanted components, and how many rows the first component has.

        Raises:
            SpecError: The datapoint does not fit, or has no rows.
        """
        if isinstance(datapoint, Mapping):
            arrays = self._check_wanted(dict(datapoint), position)
            named = dict(zip(self._wanted, arrays, strict=True))
            first = datapoint[next((n for n in self._all if n in datapoint), self._all[0])]
        else:
            arrays = self._check_all(datapoint, position)
            named = dict(zip(self._all, arrays, strict=True))
            first = arrays[0]
        size = self._rows(first, position)
        for name in self._batched:
            if len(named[name]) != size:
                raise SpecError(
                    f"Datapoint {position}: '{name}' has not as many rows as the first component.",
                    got=f"{len(named[name])} rows",
                    expected=f"{size}",
                    pipeline=self._pipeline,
                )
        return _Batch([named[name] for name in self._wanted], size)

    def _rows(self, first: Any, position: int) -> int:
        shape = np.shape(first)
        if not shape:
            raise SpecError(
                f"Datapoint {position}: the first component has no rows to count.",
                got="a scalar",
                expected="a batch",
                fix="put the evaluation's data through BatchData",
                pipeline=self._pipeline,
            )
        return shape[0]


def _check_flow(dataflow: Any, who: str) -> None:
    if not isinstance(dataflow, Iterable):
        raise ConfigError(
            f"{who}: {type(dataflow).__name__} cannot be iterated.", expected="a DataFlow"
        )
    if isinstance(dataflow, Iterator):
        raise ConfigError(
            f"{who}: {type(dataflow).__name__} can be iterated only once.",
            expected="a DataFlow, or a list of batches: every evaluation reads it from its start",
        )


def _pipeline(dataflow: Any) -> str:
    # A list's own words would be all its data.
    return str(dataflow) if hasattr(dataflow, "iterate") else type(dataflow).__name__


def _length(dataflow: Any) -> int | None:
    try:
        return len(dataflow)
    except TypeError:
        return None
