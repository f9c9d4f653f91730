"""NumPy in, NumPy out: a model and a checkpoint as a function."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import tensorflow as tf

from towerpack._core.errors import CheckpointMismatchError, ConfigError, SpecError
from towerpack._core.naming import did_you_mean
from towerpack._core.native_log import quiet_start
from towerpack.checkpoint import Checkpoint, compare_names, load_checkpoint
from towerpack.inference.exported import without_loss
from towerpack.inputs import SpecChecker
from towerpack.model import as_model
from towerpack.tower import TowerFunction, TowerTrace


class WeightsSource(Protocol):
    """Set variables by name, as `towerpack.training.SmartInit` does."""

    def load(self, variables: Mapping[str, Any]) -> Collection[str]:
        """Set variables; gives the names of those that were set."""
        ...


class Predictor:
    """Runs a model's tower function in inference mode on the weights of a checkpoint.

        predictor = Predictor(Model(), 'runs/mnist', outputs=['prob'])
        [prob] = predictor(images)

    Only the inputs that the outputs depend on have to be given: no labels for `'prob'`. Any number
    of threads may call it.

    Args:
        model: A `ModelDesc`, or the plain functions.
        checkpoint: A run directory (its newest valid checkpoint), one checkpoint, a loaded one, or
            a `SmartInit` for weights of any other source.
        inputs: Names of the inputs that will be given, in order; None for those that are needed.
        outputs: Names of layers' outputs (`'conv0/output'`) or exposed tensors, or one name.
        tag: Take the checkpoint that was kept under this name, for example `'best-val/error'`.
        ema: Take the averages that `WeightEMA` has kept for the weights.
        batch_size: Longer inputs are cut into batches of this size, and the results joined.

    Attributes:
        input_names: The arguments of the call, in order.
        output_names: What it gives, in order.
        single: Whether a call gives one array, not a list.
        step: The global step of the checkpoint; 0 for weights of a `SmartInit`.
        checkpoint: Where it lies, or what the weights are from.
        specs: Of the arguments, in order.
        variables: Of the model in inference, by name.

    Raises:
        CheckpointError: There is no valid checkpoint, or it has no averages.
        CheckpointMismatchError: It belongs to another model.
        LayerError: The model has no output of some name.
        SpecError: An output needs an input that `inputs` does not list.
    """

    def __init__(
        self,
        model: Any,
        checkpoint: str | os.PathLike[str] | Checkpoint | WeightsSource,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] | str = (),
        *,
        tag: str | None = None,
        ema: bool = False,
        batch_size: int | None = None,
    ) -> None:
        # `PathLike`s have no `load`; a loaded checkpoint has none either.
        source: Any = checkpoint
        if not hasattr(source, "load") and not isinstance(source, Checkpoint):
            source = load_checkpoint(source, tag=tag)
        desc = as_model(model)
        with quiet_start():
            tf.config.list_logical_devices()
        tower = TowerFunction(desc.build_graph, desc.inputs())
        self._cut(tower, tower.trace(is_training=False), inputs, outputs, type(desc).__name__)
        if batch_size is not None and batch_size < 1:
            raise ConfigError(f"batch_size={batch_size}.", expected="at least 1, or None")
        self._batch_size = batch_size
        if isinstance(source, Checkpoint):
            self.step, self.checkpoint = source.step, source.path
            saved = source.averaged if ema else source.model
            _load(tower, list(self.variables), saved, f"the checkpoint {source.path}")
        elif ema or tag is not None:
            raise ConfigError(
                f"{source!r} has no averages or tags of its own.",
                fix="give the run directory for ema=True or tag=",
            )
        else:
            self.checkpoint = repr(source)
            loaded = source.load(self.variables)
            missing = [name for name in self.variables if name not in loaded]
            if missing:
                raise CheckpointMismatchError(
                    f"{source!r} has no value for {len(missing)} variables of the model.",
                    got=", ".join(missing[:20]),
                    fix="rename= maps names; the log lists what was loaded, and what was not used",
                )

    @classmethod
    def of_tower(
        cls,
        tower: TowerFunction,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] | str = (),
        *,
        trace: TowerTrace | None = None,
        instead: Mapping[str, tf.Variable] | None = None,
    ) -> Self:
        """Predict with the variables of a tower function, as they are at each call.

        Args:
            tower: It may be in training.
            inputs: As above.
            outputs: As above.
            trace: Of the tower in inference, if there is one.
            instead: Variables to read in place of the tower's of these names.
        """
        found = cls.__new__(cls)
        trace = trace or tower.trace(is_training=False)
        found._cut(tower, trace, inputs, outputs, "of a tower", instead)
        return found

    def _cut(
        self,
        tower: TowerFunction,
        trace: TowerTrace,
        inputs: Sequence[str] | None,
        outputs: Sequence[str] | str,
        what: str,
        instead: Mapping[str, tf.Variable] | None = None,
    ) -> None:
        if not outputs:
            raise ConfigError(
                "Predictor needs to know what to compute.", fix="outputs=['prob'], for example"
            )
        self.single = isinstance(outputs, str)
        self.output_names = [outputs] if isinstance(outputs, str) else list(outputs)
        self.step = 0
        self.checkpoint: Path | str = ""
        self._batch_size: int | None = None
        self._device: str | None = None
        self._trace = trace
        self._function, self.input_names = trace.function(self.output_names, inputs, instead)
        specs = {spec.name: spec for spec in tower.specs}
        self.specs = [specs[name] for name in self.input_names]
        self._check = SpecChecker(self.specs, f"Predictor({what})")
        known = {**tower.store.named_variables(), **(instead or {})}
        self.variables = {name: known[name] for name in trace.used}

    def on(self, device: str) -> Self:
        """The same on another device, `'GPU:1'`, with copies of the weights there.

        Raises:
            ConfigError: There is no such device.
        """
        found = copy.copy(self)
        found._device = checked_device(device)
        found.variables = copies_on(found._device, self.variables)
        found._function, _ = self._trace.function(
            self.output_names, self.input_names, instead=found.variables
        )
        return found

    def warm_up(self, *example: Any, sizes: Sequence[int] = (1,)) -> dict[int, float]:
        """Compute batches of some sizes, so that no later call is the first.

        Args:
            *example: One datapoint's inputs, without the dimension of batches; none for zeros, or
                empty strings. Sizes that the specs leave open are then 1.
            sizes: Of the batches.

        Returns:
            Seconds of a second call by size.

        Raises:
            SpecError: The example does not fit.
        """
        if not example:
            example = tuple(_zeros(spec) for spec in self.specs)
        seconds = {}
        for size in sizes:
            batch = self.checked([np.stack([np.asarray(array)] * size) for array in example])
            self.compute(batch)
            began = time.perf_counter()
            self.compute(batch)
            seconds[size] = time.perf_counter() - began
        return seconds

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Compute the outputs.

        Args:
            *arrays: In the order of `input_names`. Lists become arrays of the right dtype.
            **named: Or by name.

        Returns:
            A list of arrays in the order of `output_names`; an array if `outputs` was one name.

        Raises:
            SpecError: Something is missing, or has the wrong dtype or shape.
        """
        results = self._in_batches(self.checked(arrays, named))
        return results[0] if self.single else results

    def checked(
        self, arrays: Sequence[Any], named: Mapping[str, Any] | None = None
    ) -> list[np.ndarray]:
        """The inputs of a call as arrays that fit `specs`, in order.

        Raises:
            SpecError: Something is missing, or has the wrong dtype or shape.
        """
        return self._check(self._ordered(tuple(arrays), dict(named or {})), None)

    def tensors(self, *inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Add the prediction to a graph: the outputs by name, of tensors that fit `specs`."""
        return dict(zip(self.output_names, self._function(*inputs), strict=True))

    def over(self, dataflow: Iterable[Any]) -> Iterator[Any]:
        """Predict batch by batch over a flow.

        Args:
            dataflow: Its datapoints are tuples or lists of just the needed inputs, in order, or
                dicts with (at least) them; or arrays, if there is one input.

        Raises:
            SpecError: A datapoint lacks an input, or does not fit.
        """
        return map(self.at, dataflow)

    def at(self, datapoint: Any) -> Any:
        """Predict one batch, given as a datapoint of a flow.

        Raises:
            SpecError: It lacks an input, or does not fit.
        """
        if isinstance(datapoint, dict):
            missing = [name for name in self.input_names if name not in datapoint]
            if missing:
                raise SpecError(
                    f"A datapoint has no component '{missing[0]}'.",
                    got=f"components {list(datapoint)}",
                    fix=did_you_mean(missing[0], datapoint),
                )
            return self(**{name: datapoint[name] for name in self.input_names})
        return self(*datapoint) if isinstance(datapoint, list | tuple) else self(datapoint)

    def _ordered(self, arrays: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        values = list(arrays)
        given = list(named)
        for name in self.input_names[len(values) :]:
            if name in named:
                values.append(named.pop(name))
        if named or len(values) != len(self.input_names):
            unknown = [name for name in named if name not in self.input_names]
            missing = self.input_names[len(values) :]
            raise SpecError(
                f"The predictor takes the inputs {self.input_names}.",
                got=f"{len(arrays)} by position" + "".join(f", '{name}'" for name in given),
                fix=did_you_mean(unknown[0], missing or self.input_names)
                if unknown
                else "give each of them once; SelectComponent chooses those of a flow",
            )
        return [_as_array(v, spec) for v, spec in zip(values, self.specs, strict=True)]

    def _in_batches(self, batch: list[np.ndarray]) -> list[np.ndarray]:
        size = self._batch_size
        rows = len(batch[0]) if batch and batch[0].ndim else 0
        if size is None or rows <= size:
            return self.compute(batch)
        if any(array.ndim == 0 or len(array) != rows for array in batch):
            raise SpecError(
                "Inputs of different lengths cannot be cut into batches.",
                got=", ".join(str(list(array.shape)) for array in batch),
                expected=f"{rows} rows each",
            )
        parts = [self._run_rows([a[i : i + size] for a in batch]) for i in range(0, rows, size)]
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def _run_rows(self, batch: list[np.ndarray]) -> list[np.ndarray]:
        results = self.compute(batch)
        for name, result in zip(self.output_names, results, strict=True):
            if result.ndim == 0 or len(result) != len(batch[0]):
                raise SpecError(
                    f"The output '{name}' cannot be joined from batches of {self._batch_size}.",
                    got=f"{result.dtype.name} {list(result.shape)} for {len(batch[0])} rows",
                    expected="one row for each row of the inputs",
                    fix="batch_size=None, and average over batches yourself where that makes sense",
                )
        return results

    def compute(self, batch: Sequence[np.ndarray]) -> list[np.ndarray]:
        """The outputs, in order, of one batch that `checked` has given."""
        if self._device is None:
            return [t.numpy() for t in self._function(*batch)]
        with tf.device(self._device):
            return [t.numpy() for t in self._function(*batch)]

    def __repr__(self) -> str:
        return f"Predictor({self.input_names} -> {self.output_names}, step {self.step})"


def checked_device(device: str) -> str:
    """The name of a device as TensorFlow lists it, `'GPU:1'`."""
    there = [d.name.removeprefix("/device:") for d in tf.config.list_logical_devices()]
    wanted = device.upper().removeprefix("/").removeprefix("DEVICE:")
    if wanted not in there:  # TensorFlow would take another one.
        raise ConfigError(f"There is no device {device!r}.", fix=did_you_mean(wanted, there))
    return wanted


def copies_on(device: str | None, variables: Mapping[str, Any]) -> dict[str, tf.Variable]:
    """New variables on a device, with the values of others."""
    with tf.device(device):
        return {n: tf.Variable(tf.identity(v), dtype=v.dtype) for n, v in variables.items()}


def _zeros(spec: tf.TensorSpec) -> np.ndarray:
    sizes = [size or 1 for size in (spec.shape.as_list()[1:] if spec.shape.rank else [])]
    is_text = spec.dtype == tf.string
    return np.full(sizes, b"") if is_text else np.zeros(sizes, spec.dtype.as_numpy_dtype)


def _as_array(value: Any, spec: tf.TensorSpec) -> Any:
    """Lists, numbers and tensors as an array of the input's dtype, where that changes no value."""
    if isinstance(value, np.ndarray) or spec.dtype == tf.string:
        return value
    try:
        return without_loss(value, np.dtype(spec.dtype.as_numpy_dtype))
    except ValueError:
        return value  # The check of the specs says what is wrong with it.


def _load(tower: TowerFunction, names: list[str], saved: Mapping[str, Any], what: str) -> None:
    variables = tower.store.named_variables()
    # What only training needs may be in the checkpoint too.
    there = {n: saved[n] for n in names if n in saved}
    compare_names(
        {n: (variables[n].numpy().shape, variables[n].dtype.name) for n in names},
        {n: (array.shape, array.dtype.name) for n, array in there.items()},
        what=what,
        fix="use the model that the checkpoint was trained with; `towerpack ckpt show` lists it",
    )
    for name, array in there.items():
        variables[name].assign(array)
