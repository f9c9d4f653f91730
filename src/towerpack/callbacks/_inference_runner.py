"""Evaluation over a dataset while training goes on."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from towerpack._core.errors import CallbackError, ConfigError, DataFlowError
from towerpack._core.in_order import in_order
from towerpack._core.naming import MASK
from towerpack._core.randomness import derive_seed
from towerpack._core.read_ahead import ReadAhead
from towerpack._display.terminal import task
from towerpack.callbacks._base import Callback
from towerpack.callbacks._inferencers import Inferencer
from towerpack.dataflow import DataFlow
from towerpack.dataflow.stages._repeat import warn_if_shorter_than_len

if TYPE_CHECKING:
    from towerpack.inputs.feeder import FedBatch, Feeder


_Computed: TypeAlias = tuple[int, dict[str, np.ndarray]]


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
        ConfigError: `dataflow` can be iterated only once, or not at all, there are no inferencers,
            or the prefix is the name of a tower.
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
        if "Tower" in prefix:  # the third argument of Tensorpack's
            raise ConfigError(
                f"{self!r}: the prefix {prefix!r} is the name of a tower.",
                expected="a prefix for the names of the results; towers need no names",
                fix="leave the third argument out, or pass prefix='test' for a second runner",
            )
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
        return [f"{self._prefix}/{n}" for i in self.inferencers for n in i.names()]

    def before_train(self) -> None:
        """Cut the tower to the outputs now, so that a wrong name does not wait for an epoch."""
        names = [name for i in self.inferencers for name in i.outputs()]
        masks = [name + MASK for i in self.inferencers for name in i.masked()]
        self._outputs = list(dict.fromkeys([*names, *masks]))
        for name, mode in (pair for i in self.inferencers for pair in i.directions().items()):
            self.trainer.monitors.directions[f"{self._prefix}/{name}"] = mode
        self._function, input_names = self.trainer.predict_function(self._outputs, ema=self._ema)
        # Here, since it loads TensorFlow, which whoever feeds a model has loaded already.
        from towerpack.inputs.feeder import Feeder

        self._feeder = Feeder(self.trainer.tower.specs, input_names, _pipeline(self.dataflow))

    def trigger(self) -> None:
        """Evaluate.

        Raises:
            SpecError: A datapoint does not fit the model's inputs.
            DataFlowError: The flow is empty.
            CallbackError: An inferencer gave other names than it said.
            Exception: Whatever the flow raised.
        """
        # Brings copies of states up to date, with which this evaluation begins.
        self._function, _ = self.trainer.predict_function(self._outputs, ema=self._ema)
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
            batches = itertools.islice(reader.items(poll), self.trainer.fast_dev_run or None)
            for size, arrays in self._computed(batches):
                if size:
                    for inferencer in self.inferencers:
                        inferencer.update(arrays, size)
                count += size
                advance()
        return count

    def _computed(self, batches: Iterator[FedBatch]) -> Iterator[_Computed]:
        """How many rows each batch has, and the outputs by name."""
        return (self._compute(self._function, batch) for batch in batches)

    def _compute(self, function: Callable[..., Sequence[Any]], batch: FedBatch) -> _Computed:
        tensors = function(*batch.inputs) if batch.size else ()
        return batch.size, dict(zip(self._outputs, map(np.asarray, tensors), strict=False))

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
            self._told = warn_if_shorter_than_len(flow, count)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._prefix!r})"


class DataParallelInferenceRunner(InferenceRunner):
    """An `InferenceRunner` on several devices at once; every datapoint counts once.

        DataParallelInferenceRunner(val_data, ClassificationError(), ["GPU:0", "GPU:1"])

    A device takes the next batch as soon as it is free; inferencers get the outputs in the order of
    the flow, so that numbers are those of one device. Each evaluation copies the weights to the
    devices first, and the copies stay there. `devices` are names, or numbers of GPUs; the other
    arguments and errors are those of `InferenceRunner`.
    """

    def __init__(
        self,
        dataflow: Iterable[Any],
        inferencers: Inferencer | Sequence[Inferencer],
        devices: Sequence[str | int],
        prefix: str = "val",
        *,
        ema: bool = False,
    ) -> None:
        super().__init__(dataflow, inferencers, prefix, ema=ema)
        if isinstance(devices, str) or not devices:
            raise ConfigError(f"{self!r}: devices={devices!r}.", expected="a list of names")
        self._devices = [d if isinstance(d, str) else f"GPU:{d}" for d in devices]

    def before_train(self) -> None:
        super().before_train()
        self._workers()

    def _workers(self) -> list[Callable[[FedBatch], _Computed]]:
        give = functools.partial(self.trainer.predict_function, self._outputs, ema=self._ema)
        return [functools.partial(self._compute, give(device=d)[0]) for d in self._devices]

    def _computed(self, batches: Iterator[FedBatch]) -> Iterator[_Computed]:
        return in_order(self._workers(), batches, poll=self.trainer.check_interrupt)


def _check_flow(dataflow: Any, who: str) -> None:
    if not isinstance(dataflow, Iterable) or isinstance(dataflow, Iterator):
        raise ConfigError(
            f"{who}: {type(dataflow).__name__} cannot be iterated, or only once.",
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
