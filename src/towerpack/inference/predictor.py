"""Predictors: functions of NumPy arrays made from a model and a checkpoint."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import tensorflow as tf

from towerpack._core.deprecation import with_old_name
from towerpack._core.errors import CheckpointMismatchError, ConfigError, SpecError
from towerpack._core.naming import did_you_mean
from towerpack._core.native_log import quiet_start
from towerpack.checkpoint import Checkpoint, compare_names, load_checkpoint
from towerpack.inference.exported import without_loss
from towerpack.inputs import SpecChecker
from towerpack.model import as_model
from towerpack.tower import TowerFunction, TowerTrace


class WeightsSource(Protocol):
    """Source of weights with the same interface as `towerpack.training.SmartInit`."""

    def load(self, variables: Mapping[str, Any]) -> Collection[str]:
        """Assign values to variables. Return the names of the assigned variables."""
        ...


@with_old_name("at", "predict", removed_in="0.3")
class Predictor:
    """Function that runs a model in inference mode with the weights of a checkpoint.

        predictor = Predictor(Model(), 'runs/mnist', outputs=['prob'])
        [prob] = predictor(images)

    Needs only the inputs that the outputs depend on: no labels for `'prob'`. Thread-safe.

    Args:
        model: A `ModelDesc`, or the plain functions.
        checkpoint: A run directory (uses the newest valid checkpoint), a checkpoint, a loaded
            `Checkpoint`, or a `SmartInit` for weights of any other source.
        inputs: Names of the inputs of a call, in order. None uses those that the outputs need.
        outputs: Names of layer outputs (`'conv0/output'`) or exposed tensors, or a single name. By
            default, the outputs of a `KerasModel`.
        tag: Name of the checkpoint to use, for example `'best-val/error'`.
        ema: Whether to use the moving averages of the weights that `WeightEMA` computed.
        batch_size: Maximum batch size. Longer inputs are split, and the results are joined.

    Attributes:
        input_names: Names of the inputs of a call, in order.
        output_names: Names of the outputs, in order.
        single: Whether a call returns one array instead of a list.
        step: Global step of the checkpoint, or 0 for weights of a `SmartInit`.
        checkpoint: Path of the checkpoint, or a description of the `SmartInit`.
        specs: Specs of the inputs of a call, in order.
        variables: Variables that the outputs depend on, by name.

    Raises:
        CheckpointError: There is no valid checkpoint, or it has no moving averages.
        CheckpointMismatchError: The checkpoint belongs to a different model.
        ConfigError: `outputs` is empty, `batch_size` is less than 1, or `ema` or `tag` is used
            without a checkpoint.
        LayerError: The model has no output with one of the names.
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
        # Paths and loaded checkpoints have no `load` method, but a `SmartInit` has one.
        source: Any = checkpoint
        if not hasattr(source, "load") and not isinstance(source, Checkpoint):
            source = load_checkpoint(source, tag=tag)
        desc = as_model(model)
        if not outputs:
            names = getattr(desc, "output_names", ())
            outputs = names[0] if len(names) == 1 else names
        with quiet_start():
            tf.config.list_logical_devices()
        tower = TowerFunction(desc.build_graph, desc.inputs())
        self._cut(tower, tower.trace(is_training=False), inputs, outputs, type(desc).__name__)
        if batch_size is not None and batch_size < 1:
            raise ConfigError(f"batch_size must be at least 1 or None, got {batch_size}.")
        self._batch_size = batch_size
        if isinstance(source, Checkpoint):
            self.step, self.checkpoint = source.step, source.path
            saved = source.averaged if ema else source.model
            _load(tower, list(self.variables), saved, f"the checkpoint {source.path}")
        elif ema or tag is not None:
            raise ConfigError(
                f"ema=True and tag= need a run directory or a checkpoint, got {source!r}.",
                fix="pass the run directory as checkpoint",
            )
        else:
            self.checkpoint = repr(source)
            loaded = source.load(self.variables)
            missing = [name for name in self.variables if name not in loaded]
            if missing:
                raise CheckpointMismatchError(
                    f"{source!r} has no values for {len(missing)} variables of the model.",
                    got=f"no values for {', '.join(missing[:20])}",
                    fix="map names with rename=; the log lists the loaded and the unused values",
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
        """Return a predictor that uses the current variables of a tower function in each call.

        Args:
            tower: Tower function, which may be in training.
            inputs: Names of the inputs of a call. None uses those that the outputs need.
            outputs: Names of the outputs, or a single name.
            trace: Trace of the tower in inference mode. None traces the tower.
            instead: Variables to use instead of the tower's variables, by name.
        """
        predictor = cls.__new__(cls)
        trace = trace or tower.trace(is_training=False)
        predictor._cut(tower, trace, inputs, outputs, "of a tower", instead)
        return predictor

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
                "A Predictor must have at least one output.",
                fix="pass names of outputs, for example outputs=['prob']",
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
        """Return a copy of this predictor on another device, with its own copy of the weights.

        Args:
            device: Name of the device, for example `'GPU:1'`.

        Raises:
            ConfigError: The device does not exist.
        """
        predictor = copy.copy(self)
        predictor._device = checked_device(device)
        predictor.variables = copies_on(predictor._device, self.variables)
        predictor._function, _ = self._trace.function(
            self.output_names, self.input_names, instead=predictor.variables
        )
        return predictor

    def warm_up(self, *example: Any, sizes: Sequence[int] = (1,)) -> dict[int, float]:
        """Compute a batch of each size, so that later calls are fast.

        Args:
            *example: Inputs of one example, without the batch dimension. By default zeros or empty
                strings. Variable sizes are 1.
            sizes: Batch sizes.

        Returns:
            Duration of a second call in seconds, for each batch size.

        Raises:
            SpecError: The example does not match the specs.
        """
        if not example:
            example = tuple(_zeros(spec) for spec in self.specs)
        seconds = {}
        for size in sizes:
            rows = tuple(np.stack([np.asarray(array)] * size) for array in example)
            batch = self._check(self._ordered(rows, {}), None)
            self.compute(batch)
            began = time.perf_counter()
            self.compute(batch)
            seconds[size] = time.perf_counter() - began
        return seconds

    def __call__(self, *arrays: Any, **named: Any) -> Any:
        """Compute the outputs for a batch.

        Args:
            *arrays: Inputs in the order of `input_names`. Lists are converted to arrays.
            **named: Inputs by name.

        Returns:
            List of arrays in the order of `output_names`. One array if `outputs` was a single name.

        Raises:
            SpecError: An input is missing, or has the wrong dtype or shape.
        """
        results = self._in_batches(self.checked(arrays, named))
        return results[0] if self.single else results

    def checked(
        self, arrays: Sequence[Any], named: Mapping[str, Any] | None = None
    ) -> list[np.ndarray]:
        """Convert the inputs of a call to arrays that match `specs`, in order.

        Args:
            arrays: Inputs in the order of `input_names`.
            named: Inputs by name.

        Raises:
            SpecError: An input is missing, or has the wrong dtype or shape.
        """
        if len(arrays) > 1 and any(getattr(spec, "by_name", False) for spec in self.specs):
            call = ", ".join(f"{name}=…" for name in self.input_names)
            raise SpecError(
                "Inputs must be passed by name, because the model has a dict of inputs.",
                got=f"{len(arrays)} by position",
                fix=f"write predictor({call})",
            )
        return self._check(self._ordered(tuple(arrays), dict(named or {})), None)

    def tensors(self, *inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Compute the outputs as a dict of tensors, for use in a graph.

        Args:
            *inputs: Tensors that match `specs`.
        """
        return dict(zip(self.output_names, self._function(*inputs), strict=True))

    def over(self, dataflow: Iterable[Any]) -> Iterator[Any]:
        """Compute the outputs for each batch of a dataflow.

        Args:
            dataflow: Dataflow of batches in a form that `predict` accepts.

        Yields:
            Outputs of each batch, in the same form as a call returns them.

        Raises:
            SpecError: A batch lacks an input, or does not match the specs.
        """
        return map(self.predict, dataflow)

    def predict(self, datapoint: Any) -> Any:
        """Compute the outputs for a batch in the form of a datapoint.

        Args:
            datapoint: Tuple or list of exactly the required inputs in order, or dict that contains
                them. An array if there is one input.

        Raises:
            SpecError: The batch lacks an input, or does not match the specs.
        """
        if isinstance(datapoint, dict):
            missing = [name for name in self.input_names if name not in datapoint]
            if missing:
                raise SpecError(
                    f"The datapoint has no component '{missing[0]}'.",
                    got=f"components {list(datapoint)}",
                    fix=did_you_mean(missing[0], datapoint),
                )
            return self(**{name: datapoint[name] for name in self.input_names})
        return self(*datapoint) if isinstance(datapoint, list | tuple) else self(datapoint)

    def _ordered(self, arrays: tuple[Any, ...], named: dict[str, Any]) -> list[Any]:
        values = list(arrays)
        names = "".join(f", '{name}'" for name in named)
        for name in self.input_names[len(values) :]:
            if name in named:
                values.append(named.pop(name))
        if named or len(values) != len(self.input_names):
            unknown = [name for name in named if name not in self.input_names]
            missing = self.input_names[len(values) :]
            raise SpecError(
                f"A call must provide each of the inputs {self.input_names} once.",
                got=f"{len(arrays)} by position{names}",
                fix=did_you_mean(unknown[0], missing or self.input_names)
                if unknown
                else "pass each input once; SelectComponent selects components of a flow",
            )
        return [_as_array(v, spec) for v, spec in zip(values, self.specs, strict=True)]

    def _in_batches(self, batch: list[np.ndarray]) -> list[np.ndarray]:
        size = self._batch_size
        rows = len(batch[0]) if batch and batch[0].ndim else 0
        if size is None or rows <= size:
            return self.compute(batch)
        if any(array.ndim == 0 or len(array) != rows for array in batch):
            raise SpecError(
                "All inputs must have the same number of rows to be split into batches.",
                got=", ".join(str(list(array.shape)) for array in batch),
                expected=f"{rows} rows each",
            )
        parts = [self.compute_rows([a[i : i + size] for a in batch]) for i in range(0, rows, size)]
        return [np.concatenate(column) for column in zip(*parts, strict=True)]

    def compute_rows(self, batch: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Compute the outputs for a batch, and check that each has one row per input row.

        Args:
            batch: Arrays returned by `checked`, with at least one row each.

        Raises:
            SpecError: An output has a different number of rows.
        """
        results = self.compute(batch)
        for name, result in zip(self.output_names, results, strict=True):
            if result.ndim == 0 or len(result) != len(batch[0]):
                raise SpecError(
                    f"The output '{name}' must have one row for each row of the inputs.",
                    got=f"{result.dtype.name} {list(result.shape)} for {len(batch[0])} rows",
                    fix="choose outputs with a batch dimension, or pass batch_size=None",
                )
        return results

    def compute(self, batch: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Compute the outputs for a batch, in order.

        Args:
            batch: Arrays returned by `checked`.
        """
        if self._device is None:
            return [t.numpy() for t in self._function(*batch)]
        with tf.device(self._device):
            return [t.numpy() for t in self._function(*batch)]

    def __repr__(self) -> str:
        return f"Predictor({self.input_names} -> {self.output_names}, step {self.step})"


def checked_device(device: str) -> str:
    """Return the name of an existing device in TensorFlow's form, such as `'GPU:1'`."""
    devices = [d.name.removeprefix("/device:") for d in tf.config.list_logical_devices()]
    wanted = device.upper().removeprefix("/").removeprefix("DEVICE:")
    if wanted not in devices:  # TensorFlow would use a different device
        raise ConfigError(f"There is no device {device!r}.", fix=did_you_mean(wanted, devices))
    return wanted


def copies_on(device: str | None, variables: Mapping[str, Any]) -> dict[str, tf.Variable]:
    with tf.device(device):
        return {n: tf.Variable(tf.identity(v), dtype=v.dtype) for n, v in variables.items()}


def _zeros(spec: tf.TensorSpec) -> np.ndarray:
    sizes = [size or 1 for size in (spec.shape.as_list()[1:] if spec.shape.rank else [])]
    is_text = spec.dtype == tf.string
    return np.full(sizes, b"") if is_text else np.zeros(sizes, spec.dtype.as_numpy_dtype)


def _as_array(value: Any, spec: tf.TensorSpec) -> Any:
    """Convert a list, number or tensor to the dtype of an input if no value changes."""
    if isinstance(value, np.ndarray) or spec.dtype == tf.string:
        return value
    try:
        return without_loss(value, np.dtype(spec.dtype.as_numpy_dtype))
    except ValueError:
        return value  # SpecChecker reports the error


def _load(tower: TowerFunction, names: list[str], saved: Mapping[str, Any], what: str) -> None:
    variables = tower.store.named_variables()
    # The checkpoint may also hold variables that only training needs.
    arrays = {n: saved[n] for n in names if n in saved}
    compare_names(
        {n: (variables[n].numpy().shape, variables[n].dtype.name) for n in names},
        {n: (array.shape, array.dtype.name) for n, array in arrays.items()},
        what=what,
        fix="use the model that the checkpoint was trained with; `towerpack ckpt show` lists its "
        "variables",
    )
    for name, array in arrays.items():
        variables[name].assign(array)
