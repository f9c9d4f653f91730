"""Callbacks that evaluate the model on a dataset during training."""

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
    """Evaluate the model on a whole dataflow when triggered, by default after each epoch.

        InferenceRunner(test_data, [ScalarStats("cost"), ClassificationError()])

    Results are monitored as `'<prefix>/<name>'`. Each evaluation reads the first pass of the flow,
    with a seed that depends only on the run's seed and the prefix.

    Args:
        dataflow: A finite flow of batches: tuples with a component for each input of the model, or
            dicts, which may lack inputs that the outputs do not need.
        inferencers: One or more metrics.
        prefix: Prefix of the results. Two runners need different prefixes.
        ema: Whether to evaluate the averages of `WeightEMA` instead of the weights.

    Raises:
        ConfigError: `dataflow` cannot be iterated repeatedly, an inferencer is missing or of a
            wrong type, or `prefix` is the name of a tower.
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
                f"{self!r}: prefix must not be a tower's name as in Tensorpack, got {prefix!r}.",
                fix="leave out the third argument, or pass prefix='test' for a second runner",
            )
        if not isinstance(dataflow, Iterable) or isinstance(dataflow, Iterator):
            raise ConfigError(
                f"{self!r} needs data that can be iterated repeatedly, got a "
                f"{type(dataflow).__name__}.",
                fix="pass a DataFlow or a list of batches",
            )
        self._ema = ema
        self.dataflow = dataflow
        self._warned = False
        self.inferencers = [inferencers] if isinstance(inferencers, Inferencer) else [*inferencers]
        wrong = [item for item in self.inferencers if not isinstance(item, Inferencer)]
        if wrong or not self.inferencers:
            raise ConfigError(
                f"{self!r} needs instances of Inferencer, got {wrong}.",
                fix="pass metrics such as [ScalarStats('cost')]",
            )

    _outputs: list[str]
    _function: Callable[..., Sequence[Any]]
    _feeder: Feeder

    def produces(self) -> Sequence[str]:
        return [f"{self._prefix}/{n}" for i in self.inferencers for n in i.names()]

    def before_train(self) -> None:
        names = [name for i in self.inferencers for name in i.outputs()]
        masks = [name + MASK for i in self.inferencers for name in i.masked()]
        self._outputs = list(dict.fromkeys([*names, *masks]))
        for name, mode in (pair for i in self.inferencers for pair in i.directions().items()):
            self.trainer.monitors.directions[f"{self._prefix}/{name}"] = mode
        self._function, input_names = self.trainer.predict_function(self._outputs, ema=self._ema)
        from towerpack.inputs.feeder import Feeder  # loads TensorFlow

        self._feeder = Feeder(self.trainer.tower.specs, input_names, _pipeline(self.dataflow))

    def trigger(self) -> None:
        # Copies the current state of layers, with which this evaluation begins.
        self._function, _ = self.trainer.predict_function(self._outputs, ema=self._ema)
        for inferencer in self.inferencers:
            inferencer.begin()
        if self._run() == 0:
            raise DataFlowError(
                f"{self!r} needs at least one datapoint, but the flow has none.",
                fix="use BatchData(ds, n, remainder=True) to keep a last batch that is not full",
                pipeline=_pipeline(self.dataflow),
            )
        for inferencer in self.inferencers:
            results = inferencer.finish()
            if set(results) != set(inferencer.names()):
                raise CallbackError(
                    f"{self!r}: finish() of {inferencer!r} must return a value for each name.",
                    got=str(sorted(results)),
                    expected=str(sorted(inferencer.names())),
                )
            for name, value in results.items():
                self.trainer.monitors.put_scalar(
                    f"{self._prefix}/{name}", float(value), self.trainer.global_step
                )
            inferencer.show(self.trainer, self._prefix)

    def _run(self) -> int:
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
            return self._first_pass(self.dataflow, seed)
        return iterate(seed=seed, epoch=0)

    def _first_pass(self, flow: DataFlow, seed: int) -> Iterator[Any]:
        count = 0
        with closing(flow.iterate(seed=seed, epoch=0)) as iterator:
            for datapoint in iterator:
                count += 1
                yield datapoint
        if not self._warned:
            self._warned = warn_if_shorter_than_len(flow, count)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._prefix!r})"


class DataParallelInferenceRunner(InferenceRunner):
    """Evaluate the model on several devices at once, with the same results as `InferenceRunner`.

        DataParallelInferenceRunner(val_data, ClassificationError(), ["GPU:0", "GPU:1"])

    A device takes the next batch when it is free. Metrics receive the outputs in the order of the
    flow. Each evaluation first copies the weights to the devices, which keep their copies.

    Args:
        dataflow, inferencers, prefix, ema: See `InferenceRunner`.
        devices: Names of devices, or numbers of GPUs.

    Raises:
        ConfigError: `devices` is empty or a string, or see `InferenceRunner`.
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
            raise ConfigError(f"{self!r}: devices must be a list of names, got {devices!r}.")
        self._devices = [d if isinstance(d, str) else f"GPU:{d}" for d in devices]

    def before_train(self) -> None:
        super().before_train()
        self._workers()

    def _workers(self) -> list[Callable[[FedBatch], _Computed]]:
        build = functools.partial(self.trainer.predict_function, self._outputs, ema=self._ema)
        return [functools.partial(self._compute, build(device=d)[0]) for d in self._devices]

    def _computed(self, batches: Iterator[FedBatch]) -> Iterator[_Computed]:
        return in_order(self._workers(), batches, poll=self.trainer.check_interrupt)


def _pipeline(dataflow: Any) -> str:
    # The text of a list would contain all its data.
    return str(dataflow) if hasattr(dataflow, "iterate") else type(dataflow).__name__


def _length(dataflow: Any) -> int | None:
    try:
        return len(dataflow)
    except TypeError:
        return None
