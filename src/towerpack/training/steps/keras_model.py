"""Compiled Keras models as models of a trainer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack._core.naming import MASK
from towerpack._keras.adapter import built_on, copied_optimizer, masked, metrics_of, stateless
from towerpack.callbacks import Inferencer
from towerpack.callbacks.watch import Mode, keras_direction
from towerpack.inputs.components import ComponentSpec
from towerpack.model import ModelDesc
from towerpack.nn import expose, get_current_tower_context, summary

_LOG = get_logger(__name__)
_AUTOMATIC = re.compile(r"(input_layer|keras_tensor)(_\d+)?")
_LOSS = "loss"


class KerasModel(ModelDesc):
    """Model for trainers with the loss, metrics and optimizer of a compiled Keras model.

        SimpleTrainer(TrainConfig(model=KerasModel(keras_model), dataflow=data)).train()

    A datapoint has the inputs, then one target for each output, in the order of `model.inputs` and
    `model.outputs`. It can also be a dict, with the names of inputs and outputs as keys. If the
    model has a dict of inputs or outputs, a dict is required, because Keras sorts these by name.

    Predictions are the output `'output'`, or one output per name. Metrics are reported as moving
    averages during training; `KerasMetrics` evaluates them. A metric with several results is
    reported as `f1_score/0`, `f1_score/1`, and so on.

    Training changes the weights of the Keras model itself. Its optimizer is copied, so `fit` can
    still be called. If the optimizer averages weights (`use_ema`), evaluations, predictors and
    checkpoints use the averages, and the Keras model has them after training. Checkpoints name
    variables by Keras paths, with automatic numbers counted from 1 (`dense_7` may be `dense_1`).

    Args:
        model: Compiled Keras model.
        inputs: Specs of the inputs, for an unbuilt subclassed model or to narrow shapes.
        targets: Specs of the targets, if a target has neither its output's shape nor, for a sparse
            loss, class indices.
        sample_weight: True if datapoints end with a weight per row, of shape [batch]; or the spec
            of the weights, for example of shape [batch, time].

    Raises:
        ConfigError: The model is not compiled, overrides `train_step`, or was compiled with an
            option that a trainer does not support.
    """

    def __init__(
        self,
        model: keras.Model,
        *,
        inputs: Sequence[tf.TensorSpec] | None = None,
        targets: Sequence[tf.TensorSpec] | None = None,
        sample_weight: bool | tf.TensorSpec = False,
    ) -> None:
        _check(model)
        # Names of variables begin with the attribute's name, which is empty here.
        vars(self)[""] = model
        structure = getattr(model, "input", None)
        self._inputs = _inputs_of(model) if inputs is None else _sorted_like(structure, inputs)
        self._structure = predicted = built_on(self._predict, self._inputs)
        self.output_names = _names_of(model, predicted)
        self._free = targets is None
        outputs = keras.tree.flatten(predicted)
        self._targets = _targets_of(model, self.output_names, outputs)
        if targets is not None:
            self._targets = _sorted_like(predicted, targets)
        if sample_weight is True:
            sample_weight = tf.TensorSpec([None], tf.float32, "sample_weight")
        weights = [sample_weight] if sample_weight else []
        self._specs = [
            *(ComponentSpec(spec, by_name=_is_keyed(structure)) for spec in self._inputs),
            *self._with_aliases(self._targets),
            *weights,
        ]
        self._layer_metrics = [metric.name for metric in metrics_of(model)]
        # Create the variables of losses and metrics.
        built_on(lambda *tensors: self._evaluate(*tensors, training=True)[1], self._specs)
        if self._layer_metrics:
            _LOG.warning(
                "The metrics %s are not reported, because layers update them.", self._layer_metrics
            )
        left_out = {_LOSS, *(f"{name}_loss" for name in self.output_names), *self._layer_metrics}
        results = {n: v for n, v in model.get_metrics_result().items() if n not in left_out}
        self.metric_names = list(_scalars(results))

    @property
    def keras_model(self) -> Any:
        """The compiled Keras model."""
        return vars(self)[""]

    @property
    def target_names(self) -> list[str]:
        """Names of targets and weights, which are both inputs and outputs of the tower."""
        return [str(spec.name) for spec in self._specs[len(self._inputs) :]]

    def inputs(self) -> Sequence[tf.TensorSpec]:
        """Return the specs of inputs, targets and, if used, weights."""
        return self._specs

    def optimizer(self) -> Any:
        """Return a copy of the compiled optimizer with its current settings."""
        return copied_optimizer(self.keras_model.optimizer)

    def build_graph(self, *tensors: tf.Tensor) -> tf.Tensor:
        """Return the total loss of outputs, layers and regularizers.

        Args:
            *tensors: Inputs, targets and, if used, weights.

        Raises:
            ConfigError: `TrainConfig(precision=…)` differs from the Keras model's precision.
        """
        context = get_current_tower_context()
        wanted, policy = context.store.dtype_policy, self.keras_model.dtype_policy.name
        if wanted not in (None, "float32", policy):
            raise ConfigError(
                f"The Keras model computes in '{policy}', which TrainConfig(precision=…) cannot "
                "change.",
                fix=f"call keras.config.set_dtype_policy('{wanted}') before creating the model",
            )
        predicted, cost, metrics = self._evaluate(*tensors, training=context.is_training)
        for name, value in zip(self.output_names, keras.tree.flatten(predicted), strict=True):
            expose(name, value)
        for name, value in zip(self.target_names, tensors[len(self._inputs) :], strict=True):
            expose(name, value)
        for name, value in metrics.items():
            summary.moving_average(name, expose(name, value))
        # Keras divides by the number of replicas, assuming that gradients are summed.
        return tf.cast(cost, tf.float32) * tf.distribute.get_strategy().num_replicas_in_sync

    def _with_aliases(self, targets: Sequence[tf.TensorSpec]) -> list[tf.TensorSpec]:
        """Return specs of targets that datapoints may name like their outputs."""
        keys = sorted(self._structure) if isinstance(self._structure, dict) else self.output_names
        if len(keys) != len(targets) or keys == ["output"]:
            return list(targets)
        taken = {spec.name for spec in (*self._inputs, *targets)}
        by_name = len(targets) > 1 and _is_keyed(self._structure)
        return [
            ComponentSpec(spec, alias=None if key in taken else key, by_name=by_name)
            for spec, key in zip(targets, keys, strict=True)
        ]

    def _predict(self, *inputs: tf.Tensor, training: bool = False) -> Any:
        structure = getattr(self.keras_model, "input", None)
        if structure is not None:
            x = keras.tree.pack_sequence_as(structure, list(inputs))
        else:
            x = inputs[0] if len(inputs) == 1 else list(inputs)
        return self.keras_model(x, training=training)

    def _evaluate(self, *tensors: tf.Tensor, training: bool) -> tuple[Any, Any, dict[str, Any]]:
        split = len(self._inputs), len(self._inputs) + len(self._targets)
        inputs, targets = tensors[: split[0]], list(tensors[split[0] : split[1]])
        x = inputs[0] if len(inputs) == 1 else list(inputs)
        weight = next(iter(tensors[split[1] :]), None)
        predicted = self._predict(*inputs, training=training)
        y = self._like_outputs(targets, predicted)
        # Keras tracks losses and metrics in variables. `stateless` gives them temporary values,
        # so that they are not variables of the model.
        with stateless(self.keras_model):
            self.keras_model.reset_metrics()
            cost = self.keras_model.compute_loss(
                x=x, y=y, y_pred=predicted, sample_weight=weight, training=training
            )
            metrics = self.keras_model.compute_metrics(x, y, predicted, weight)
        left_out = (_LOSS, *self._layer_metrics)
        return predicted, cost, _scalars({n: v for n, v in metrics.items() if n not in left_out})

    def add_to_metrics(self, tensors: Sequence[tf.Tensor]) -> None:
        """Update the Keras model's metrics eagerly with one batch.

        Args:
            tensors: Predictions, targets and, if used, weights.
        """
        split = len(self.output_names), len(self.output_names) + len(self._targets)
        predicted = keras.tree.pack_sequence_as(self._structure, list(tensors[: split[0]]))
        y = self._like_outputs(list(tensors[split[0] : split[1]]), predicted)
        weight = next(iter(tensors[split[1] :]), None)
        self.keras_model.compute_metrics(None, y, predicted, weight)

    def _like_outputs(self, targets: list[tf.Tensor], predicted: Any) -> Any:
        outputs = keras.tree.flatten(predicted)
        if not targets or len(targets) != len(outputs):
            return next(iter(targets), None) if len(targets) < 2 else targets
        if self._free:
            targets = [_shaped(y, p) for y, p in zip(targets, outputs, strict=True)]
        return keras.tree.pack_sequence_as(predicted, targets)


class KerasMetrics(Inferencer):
    """Inferencer for the compiled metrics of a Keras model, exact over all batches.

        model = KerasModel(keras_model)
        InferenceRunner(test_data, [ScalarStats("cost"), KerasMetrics(model)])

    For the losses of single outputs use `ScalarStats("scores_loss")`.

    Args:
        model: Model of the trainer.
    """

    def __init__(self, model: KerasModel) -> None:
        self._model = model
        self._keras = model.keras_model

    def outputs(self) -> Sequence[str]:
        return [*self._model.output_names, *self._model.target_names]

    def masked(self) -> Sequence[str]:
        return self._model.output_names

    def names(self) -> Sequence[str]:
        return self._model.metric_names

    def directions(self) -> Mapping[str, Mode]:
        compiled = [metric for m in self._keras.metrics for metric in getattr(m, "metrics", ())]
        return {
            name: mode
            for name in self.names()
            for metric in compiled
            if re.sub(r"/\d+$", "", f"_{name}").endswith(f"_{metric.name}")
            and (mode := keras_direction(metric))
        }

    def begin(self) -> None:
        self._keras.reset_metrics()

    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        predicted = [masked(outputs[n], outputs.get(n + MASK)) for n in self._model.output_names]
        targets = [tf.convert_to_tensor(outputs[name]) for name in self._model.target_names]
        self._model.add_to_metrics([*predicted, *targets])

    def finish(self) -> Mapping[str, float]:
        results = _scalars(self._keras.get_metrics_result())
        return {name: float(results[name]) for name in self.names()}


def _shaped(target: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
    """Reshape a target to the shape of its output, or to the shape of Keras's class indices."""
    if target.shape.rank is not None:
        return target
    indices = target.dtype.is_integer
    shaped = tf.reshape(target, tf.shape(output)[:-1] if indices else tf.shape(output))
    return tf.ensure_shape(shaped, output.shape[:-1] if indices else output.shape)


def _inputs_of(model: Any) -> list[tf.TensorSpec]:
    tensors = getattr(model, "inputs", None)
    if not tensors:
        raise ConfigError(
            f"The Keras model '{model.name}' does not define its inputs.",
            fix="pass the specs of the inputs: KerasModel(model, "
            "inputs=[tf.TensorSpec([None, 28, 28], tf.float32, 'image')])",
        )
    numbered = len(tensors) > 1
    structure = getattr(model, "input", None)
    keys = sorted(structure) if isinstance(structure, dict) else None
    specs = []
    for i, tensor in enumerate(tensors):
        # Keras numbers its automatic names over the whole process.
        name = tensor.name
        if _AUTOMATIC.fullmatch(name):
            name = keys[i] if keys else f"input{i if numbered else ''}"
        specs.append(tf.TensorSpec(tensor.shape, tensor.dtype, name))
    return specs


def _is_keyed(structure: Any) -> bool:
    """Return whether a structure has a dict of several items, which Keras orders by name."""
    if isinstance(structure, dict) and len(structure) > 1:
        return True
    items = structure.values() if isinstance(structure, dict) else structure
    return isinstance(structure, dict | list | tuple) and any(map(_is_keyed, items))


def _sorted_like(structure: Any, specs: Sequence[tf.TensorSpec]) -> list[tf.TensorSpec]:
    """Return specs in Keras's order, if they have the names of the items of a dict."""
    names = {str(spec.name).removeprefix("target_"): spec for spec in specs}
    if isinstance(structure, dict) and names.keys() == structure.keys():
        return [names[name] for name in sorted(names)]
    return list(specs)


def _scalars(results: Mapping[str, Any]) -> dict[str, tf.Tensor]:
    """Return values of metrics by name. Components of a vector are named `f1_score/0` and so on."""
    scalars = {}
    for name, result in results.items():
        value = tf.cast(result, tf.float32)
        if value.shape.rank in (None, 0):
            scalars[name] = value
        elif value.shape.num_elements() is None:
            raise ConfigError(
                f"The metric '{name}' must have a result of known shape, got {value.shape}.",
                fix="create the metric with average='macro', or with another option that returns "
                "a scalar",
            )
        else:
            parts = tf.unstack(tf.reshape(value, [-1]))
            scalars |= {f"{name}/{i}": part for i, part in enumerate(parts)}
    return scalars


def _names_of(model: Any, predicted: Any) -> list[str]:
    count = len(keras.tree.flatten(predicted))
    if count == 1:
        return ["output"]
    if isinstance(predicted, dict):
        return keras.tree.flatten({name: name for name in predicted})
    return list(getattr(model, "output_names", None) or [f"output{i}" for i in range(count)])


def _targets_of(model: Any, names: Sequence[str], outputs: Sequence[Any]) -> list[tf.TensorSpec]:
    losses = getattr(model, "loss", None)
    if losses is None:
        return []
    specs = []
    for i, (name, output) in enumerate(zip(names, outputs, strict=True)):
        loss = losses
        if isinstance(losses, dict):
            loss = losses.get(name) if len(names) > 1 else next(iter(losses.values()))
        elif isinstance(losses, list | tuple):
            loss = losses[i]
        words = f"{loss} {getattr(loss, '__name__', '')} {type(loss).__name__}"
        sparse = "sparse" in words.lower()
        shape: Any = None if sparse or output.shape[-1:] == (1,) else output.shape
        target = f"target_{name}" if len(names) > 1 else "target"
        specs.append(tf.TensorSpec(shape, tf.int64 if sparse else tf.float32, target))
    return specs


def _check(model: Any) -> None:
    if not isinstance(model, keras.Model) or not getattr(model, "compiled", False):
        raise ConfigError(
            f"KerasModel needs a compiled keras.Model, got {model!r}.",
            fix="call model.compile(optimizer=…, loss=…) first",
        )
    if type(model).train_step is not keras.Model.train_step:
        raise ConfigError(
            f"{type(model).__name__} must not override train_step(), which trainers do not call.",
            fix="use Trainer(config, step=…) with a towerpack.training.TrainStep",
        )
    if model.run_eagerly:
        raise ConfigError(
            "Trainers do not support Keras models compiled with run_eagerly=True.",
            fix="compile with run_eagerly=False, and set TrainConfig(eager=True) to debug",
        )
    compiled = getattr(model, "_compile_config", None)
    if compiled is not None and compiled.config.get("jit_compile") is True:
        raise ConfigError(
            "Trainers do not support Keras models compiled with jit_compile=True.",
            fix="compile with jit_compile='auto', and set TrainConfig(xla=True)",
        )
    if model.steps_per_execution != 1:
        _LOG.info("Ignored steps_per_execution: the trainer chooses the number of steps per call.")
