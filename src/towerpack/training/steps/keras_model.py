"""A compiled Keras model as the model of a trainer."""

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
from towerpack.model import ModelDesc
from towerpack.nn import expose, get_current_tower_context, summary

_LOG = get_logger(__name__)
_AUTOMATIC = re.compile(r"(input_layer|keras_tensor)(_\d+)?")
_LOSS = "loss"


class KerasModel(ModelDesc):
    """A Keras model with what it was compiled with: loss, weights of losses, metrics, optimizer.

        SimpleTrainer(TrainConfig(model=KerasModel(keras_model), dataflow=data)).train()

    A datapoint has the inputs, then one target for each output, in the order of `model.inputs` and
    `model.outputs`. Predictions are the output `'output'`, or one for each output by its name;
    metrics are moving averages in training, and `KerasMetrics` evaluates them. Checkpoints have
    variables by their Keras paths, automatic numbers counted from the start (`dense_7` may be
    `dense_1`). The Keras model trains itself: afterwards it predicts. Its optimizer is copied, so
    that `fit` stays possible. If the optimizer averages weights (`use_ema`), evaluations,
    predictors and checkpoints have the averages, and the Keras model has them in the end.

    Args:
        model: Compiled.
        inputs: Specs, for a subclassed model that has not been built, or to narrow shapes.
        targets: Specs, where a target is like neither its output nor, for a sparse loss, indices.
        sample_weight: Datapoints end with a weight for each row, [batch]; or with weights as a
            spec says, such as [batch, time].

    Raises:
        ConfigError: The model is not compiled, has a `train_step` of its own, or was compiled with
            something that a trainer cannot do.
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
        # An attribute without a name: variables are called by their Keras paths alone.
        vars(self)[""] = model
        self._inputs = _inputs_of(model) if inputs is None else list(inputs)
        self._structure = predicted = built_on(self._predict, self._inputs)
        self.output_names = _names_of(model, predicted)
        self._free = targets is None
        outputs = keras.tree.flatten(predicted)
        self._targets = _targets_of(model, self.output_names, outputs)
        if targets is not None:
            self._targets = list(targets)
        if sample_weight is True:
            sample_weight = tf.TensorSpec([None], tf.float32, "sample_weight")
        weights = [sample_weight] if sample_weight else []
        self._specs = [*self._inputs, *self._targets, *weights]
        self._own = [metric.name for metric in metrics_of(model)]
        # What Keras makes where loss and metrics are first used.
        built_on(lambda *tensors: self._evaluate(*tensors, training=True)[1], self._specs)
        if self._own:
            _LOG.warning("Not reported, as calls of layers update them: the metrics %s.", self._own)
        left_out = {_LOSS, *(f"{name}_loss" for name in self.output_names), *self._own}
        self.metric_names = [name for name in model.get_metrics_result() if name not in left_out]

    @property
    def keras_model(self) -> Any:
        """The Keras model."""
        return vars(self)[""]

    @property
    def target_names(self) -> list[str]:
        """Names of the inputs that only loss and metrics need, which are outputs as well."""
        return [str(spec.name) for spec in self._specs[len(self._inputs) :]]

    def inputs(self) -> Sequence[tf.TensorSpec]:
        """Inputs, targets and perhaps weights."""
        return self._specs

    def optimizer(self) -> Any:
        """A copy of the optimizer with the settings that it has now."""
        return copied_optimizer(self.keras_model.optimizer)

    def build_graph(self, *tensors: tf.Tensor) -> tf.Tensor:
        """The total loss: of all outputs, of layers, of regularizers.

        Raises:
            ConfigError: A precision is asked for that is not the Keras model's.
        """
        context = get_current_tower_context()
        wanted, policy = context.store.dtype_policy, self.keras_model.dtype_policy.name
        if wanted not in (None, "float32", policy):
            raise ConfigError(
                f"The Keras model computes in '{policy}', which TrainConfig(precision=…) does not "
                "change.",
                fix=f"keras.config.set_dtype_policy('{wanted}') before the model is made",
            )
        predicted, cost, metrics = self._evaluate(*tensors, training=context.is_training)
        for name, value in zip(self.output_names, keras.tree.flatten(predicted), strict=True):
            expose(name, value)
        for name, value in zip(self.target_names, tensors[len(self._inputs) :], strict=True):
            expose(name, value)
        for name, value in metrics.items():
            summary.moving_average(name, expose(name, tf.cast(value, tf.float32)))
        # Keras divides by the replicas of a strategy, for gradients that are added up.
        return tf.cast(cost, tf.float32) * tf.distribute.get_strategy().num_replicas_in_sync

    def _predict(self, *inputs: tf.Tensor, training: bool = False) -> Any:
        structure = getattr(self.keras_model, "input", None)
        if structure is not None:
            return self.keras_model(
                keras.tree.pack_sequence_as(structure, list(inputs)), training=training
            )
        return self.keras_model(inputs[0] if len(inputs) == 1 else list(inputs), training=training)

    def _evaluate(self, *tensors: tf.Tensor, training: bool) -> tuple[Any, Any, dict[str, Any]]:
        """Predictions, the loss, and metrics of this batch alone."""
        split = len(self._inputs), len(self._inputs) + len(self._targets)
        inputs, targets = tensors[: split[0]], list(tensors[split[0] : split[1]])
        x = inputs[0] if len(inputs) == 1 else list(inputs)
        weight = next(iter(tensors[split[1] :]), None)
        predicted = self._predict(*inputs, training=training)
        y = self._like_outputs(targets, predicted)
        # Keras's trackers of losses and metrics are variables. In here they take new values for
        # this computation alone, and are no part of the model.
        with stateless(self.keras_model):
            self.keras_model.reset_metrics()
            cost = self.keras_model.compute_loss(
                x=x, y=y, y_pred=predicted, sample_weight=weight, training=training
            )
            metrics = self.keras_model.compute_metrics(x, y, predicted, weight)
        left_out = (_LOSS, *self._own)
        return predicted, cost, {n: v for n, v in metrics.items() if n not in left_out}

    def add_to_metrics(self, tensors: Sequence[tf.Tensor]) -> None:
        """Eagerly: let the Keras model's metrics see predictions, targets and perhaps weights."""
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
    """The metrics that a Keras model was compiled with, over all batches of an evaluation. Exact.

        model = KerasModel(keras_model)
        InferenceRunner(test_data, [ScalarStats("cost"), KerasMetrics(model)])

    Losses of single outputs are scalars: `ScalarStats("scores_loss")`.

    Args:
        model: The trainer's.
    """

    def __init__(self, model: KerasModel) -> None:
        self._model = model
        self._keras = model.keras_model

    def outputs(self) -> Sequence[str]:
        """Predictions and targets."""
        return [*self._model.output_names, *self._model.target_names]

    def masked(self) -> Sequence[str]:
        """The predictions."""
        return self._model.output_names

    def names(self) -> Sequence[str]:
        """The metrics' names."""
        return self._model.metric_names

    def directions(self) -> Mapping[str, Mode]:
        """Return the directions that Keras knows."""
        compiled = [one for m in self._keras.metrics for one in getattr(m, "metrics", ())]
        return {
            name: mode
            for name in self.names()
            for one in compiled
            if f"_{name}".endswith(f"_{one.name}") and (mode := keras_direction(one))
        }

    def begin(self) -> None:
        """Start anew."""
        self._keras.reset_metrics()

    def update(self, outputs: Mapping[str, np.ndarray], batch_size: int) -> None:
        """Add a batch."""
        predicted = [masked(outputs[n], outputs.get(n + MASK)) for n in self._model.output_names]
        targets = [tf.convert_to_tensor(outputs[name]) for name in self._model.target_names]
        self._model.add_to_metrics([*predicted, *targets])

    def finish(self) -> Mapping[str, float]:
        """The metrics."""
        found = self._keras.get_metrics_result()
        return {name: float(found[name]) for name in self.names()}


def _shaped(target: tf.Tensor, output: tf.Tensor) -> tf.Tensor:
    """A target of one number for each prediction, as [batch] or [batch, 1], as Keras has it."""
    if target.shape.rank is not None:
        return target
    indices = target.dtype.is_integer
    shaped = tf.reshape(target, tf.shape(output)[:-1] if indices else tf.shape(output))
    return tf.ensure_shape(shaped, output.shape[:-1] if indices else output.shape)


def _inputs_of(model: Any) -> list[tf.TensorSpec]:
    tensors = getattr(model, "inputs", None)
    if not tensors:
        raise ConfigError(
            f"The inputs of the Keras model '{model.name}' are not known.",
            fix="KerasModel(model, inputs=[tf.TensorSpec([None, 28, 28], tf.float32, 'image')])",
        )
    numbered = len(tensors) > 1
    specs = []
    for i, tensor in enumerate(tensors):
        # Keras counts its own names over the whole process.
        name = f"input{i if numbered else ''}" if _AUTOMATIC.fullmatch(tensor.name) else tensor.name
        specs.append(tf.TensorSpec(tensor.shape, tensor.dtype, name))
    return specs


def _names_of(model: Any, predicted: Any) -> list[str]:
    count = len(keras.tree.flatten(predicted))
    if count == 1:
        return ["output"]
    if isinstance(predicted, dict):
        return keras.tree.flatten({name: name for name in predicted})
    return list(getattr(model, "output_names", None) or [f"output{i}" for i in range(count)])


def _targets_of(model: Any, names: Sequence[str], outputs: Sequence[Any]) -> list[tf.TensorSpec]:
    """What the targets of a compiled loss are, as far as it tells."""
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
    """Refuse what a trainer cannot do."""
    if not isinstance(model, keras.Model) or not getattr(model, "compiled", False):
        raise ConfigError(
            f"KerasModel was given {model!r}.",
            expected="a compiled keras.Model",
            fix="model.compile(optimizer=…, loss=…) first",
        )
    if type(model).train_step is not keras.Model.train_step:
        raise ConfigError(
            f"{type(model).__name__} has a train_step() of its own, which a trainer does not call.",
            fix="Trainer(config, step=…) with a towerpack.training.TrainStep",
        )
    if model.run_eagerly:
        raise ConfigError(
            "The Keras model was compiled with run_eagerly=True.",
            expected="run_eagerly=False: a trainer compiles many steps into one call",
        )
    asked = getattr(model, "_compile_config", None)
    if asked is not None and asked.config.get("jit_compile") is True:
        raise ConfigError(
            "The Keras model was compiled with jit_compile=True.",
            fix="TrainConfig(xla=True), and jit_compile='auto'",
        )
    if model.steps_per_execution != 1:
        _LOG.info("steps_per_execution=… is not needed: the trainer chooses it by itself.")
