"""NumPy in, NumPy out: a model and a checkpoint as a function."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError, SpecError
from towerpack._core.naming import did_you_mean
from towerpack._core.native_log import quiet_start
from towerpack.checkpoint import Checkpoint, compare_names, load_checkpoint
from towerpack.inference._exported import without_loss
from towerpack.inputs import SpecChecker
from towerpack.model import as_model
from towerpack.tower import TowerFunction


class Predictor:
    """Runs a model's tower function in inference mode on the weights of a checkpoint.

        predictor = Predictor(Model(), 'runs/mnist', outputs=['prob'])
        [prob] = predictor(images)

    Only the inputs that the outputs depend on have to be given: no labels for `'prob'`.

    Args:
        model: A `ModelDesc`, or the plain functions.
        checkpoint: A run directory (its newest valid checkpoint), one checkpoint, or a loaded one.
        inputs: Names of the inputs that will be given, in order; None for those that are needed.
        outputs: Names of layers' outputs (`'conv0/output'`) or exposed tensors, or one name.
        tag: Take the checkpoint that was kept under this name, for example `'best-val/error'`.
        ema: Take the averages that `WeightEMA` has kept for the weights.
        batch_size: Longer inputs are cut into batches of this size, and the results joined.

    Attributes:
        input_names: The arguments of the call, in order.
        output_names: What it gives, in order.
        step: The global step of the checkpoint.
        checkpoint: Where it lies.
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
        checkpoint: str | os.PathLike[str] | Checkpoint,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] | str = (),
        *,
        tag: str | None = None,
        ema: bool = False,
        batch_size: int | None = None,
    ) -> None:
        if not outputs:
            raise ConfigError(
                "Predictor needs to know what to compute.", fix="outputs=['prob'], for example"
            )
        if batch_size is not None and batch_size < 1:
            raise ConfigError(f"batch_size={batch_size}.", expected="at least 1, or None")
        if not isinstance(checkpoint, Checkpoint):
            checkpoint = load_checkpoint(checkpoint, tag=tag)
        self._single = isinstance(outputs, str)
        self.output_names = [outputs] if isinstance(outputs, str) else list(outputs)
        self.step = checkpoint.step
        self.checkpoint = checkpoint.path
        self._batch_size = batch_size
        desc = as_model(model)
        with quiet_start():
            tf.config.list_logical_devices()
        tower = TowerFunction(desc.build_graph, desc.inputs())
        trace = tower.trace(is_training=False)
        self._function, self.input_names = trace.function(self.output_names, inputs)
        specs = {spec.name: spec for spec in tower.specs}
        self.specs = [specs[name] for name in self.input_names]
        self._check = SpecChecker(self.specs, f"Predictor({type(desc).__name__})")
        saved = checkpoint.averaged if ema else checkpoint.model
        _load(tower, trace.used, saved, f"the checkpoint {checkpoint.path}")
        known = tower.store.named_variables()
        self.variables = {name: known[name] for name in trace.used}

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
        batch = self._check(self._ordered(arrays, named), 0)
        results = self._in_batches(batch)
        return results[0] if self._single else results

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
        for datapoint in dataflow:
            if isinstance(datapoint, dict):
                yield self(**{n: datapoint[n] for n in self.input_names if n in datapoint})
            elif isinstance(datapoint, list | tuple):
                yield self(*datapoint)
            else:
                yield self(datapoint)

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
                else "give each of them once",
            )
        return [_as_array(v, spec) for v, spec in zip(values, self.specs, strict=True)]

    def _in_batches(self, batch: list[np.ndarray]) -> list[np.ndarray]:
        size = self._batch_size
        rows = len(batch[0]) if batch and batch[0].ndim else 0
        if size is None or rows <= size:
            return self._run(batch)
        if any(array.ndim == 0 or len(array) != rows for array in batch):
            raise SpecError(
                "Inputs of different lengths cannot be cut into batches.",
                got=", ".join(str(list(array.shape)) for array in batch),
                expected=f"{rows} rows each",
            )
        parts = [self._run_rows([a[i : i + size] for a in batch]) for i in range(0, rows, size)]
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def _run_rows(self, batch: list[np.ndarray]) -> list[np.ndarray]:
        results = self._run(batch)
        for name, result in zip(self.output_names, results, strict=True):
            if result.ndim == 0 or len(result) != len(batch[0]):
                raise SpecError(
                    f"The output '{name}' cannot be joined from batches of {self._batch_size}.",
                    got=f"{result.dtype.name} {list(result.shape)} for {len(batch[0])} rows",
                    expected="one row for each row of the inputs",
                    fix="batch_size=None, and average over batches yourself where that makes sense",
                )
        return results

    def _run(self, batch: list[np.ndarray]) -> list[np.ndarray]:
        return [t.numpy() for t in self._function(*batch)]

    def __repr__(self) -> str:
        return f"Predictor({self.input_names} -> {self.output_names}, step {self.step})"


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
        {n: (_shape(variables[n]), variables[n].dtype.name) for n in names},
        {n: (array.shape, array.dtype.name) for n, array in there.items()},
        what=what,
        fix="use the model that the checkpoint was trained with; `towerpack ckpt show` lists it",
    )
    for name, array in there.items():
        variables[name].assign(array)


def _shape(variable: tf.Variable) -> tuple[int, ...]:
    return tuple(variable.numpy().shape)
