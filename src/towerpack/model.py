"""Model descriptions: input specs, tower function and optimizer."""

from collections.abc import Callable, Sequence
from typing import Any, cast

from towerpack._core.extras import require

require("tensorflow", extra="tf", needed_for="towerpack.model")

import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack.nn import get_current_tower_context

__all__ = ["ModelDesc", "PlainModel", "as_model"]


class ModelDesc:
    """Base class of models: input specs, tower function and optimizer. Define three methods.

    class Model(ModelDesc):
        def inputs(self):
            return [tf.TensorSpec([None, 28, 28], tf.float32, 'image'),
                    tf.TensorSpec([None], tf.int64, 'label')]

        def build_graph(self, image, label):
            ...
            return cost

        def optimizer(self):
            return keras.optimizers.Adam(1e-3)
    """

    def inputs(self) -> Sequence[tf.TensorSpec]:
        """Return named input specs, one for each component of a datapoint."""
        raise NotImplementedError(f"{type(self).__name__} must define inputs()")

    # `*Any, **Any` lets a type checker accept subclasses that name their inputs.
    def build_graph(self, *tensors: Any, **named: Any) -> tf.Tensor | None:
        """Build the model and return the scalar cost. This method is the tower function.

        In inference (`self.training` is False), the method may return None.

        Args:
            *tensors: One tensor for each input spec, by position.
            **named: Not used. It allows subclasses to name their parameters.
        """
        raise NotImplementedError(f"{type(self).__name__} must define build_graph()")

    @property
    def training(self) -> bool:
        """Whether the model is being built for training.

        Raises:
            LayerError: The model is not being built, which means that `build_graph` is not running.
        """
        return get_current_tower_context().is_training

    def optimizer(self) -> Any:
        """Return an optimizer of Keras or `tf.compat.v1.train`, or a dict of them for own steps."""
        raise NotImplementedError(
            f"{type(self).__name__} must define optimizer(), or TrainConfig needs optimizer="
        )


class PlainModel(ModelDesc):
    """Model description made of functions, for programs that define no model class.

    Args:
        inputs: Input specs, or a function that returns them.
        build_graph: Tower function.
        optimizer: Optimizer, or a function that returns one.
    """

    def __init__(
        self,
        inputs: Sequence[tf.TensorSpec] | Callable[[], Sequence[tf.TensorSpec]],
        build_graph: Callable[..., tf.Tensor | None],
        optimizer: Any = None,
    ) -> None:
        self._inputs = inputs
        self._optimizer = optimizer
        self.build_graph = build_graph  # type: ignore[method-assign]

    def inputs(self) -> Sequence[tf.TensorSpec]:
        """Return the input specs."""
        return self._inputs() if callable(self._inputs) else self._inputs

    def optimizer(self) -> Any:
        """Return the optimizer, or the result of the function that was passed as optimizer."""
        if self._optimizer is None:
            return super().optimizer()
        return self._optimizer() if callable(self._optimizer) else self._optimizer


def as_model(model: Any) -> ModelDesc:
    """Return a model description for a `ModelDesc`, a tuple of functions, or a similar object.

    Args:
        model: A `ModelDesc`, `(inputs, build_graph, optimizer)`, or an object that has these.

    Raises:
        ConfigError: The value is none of these.
    """
    if isinstance(model, ModelDesc):
        return model
    if isinstance(model, tuple) and len(model) in (2, 3):
        return PlainModel(*model)
    if hasattr(model, "inputs") and hasattr(model, "build_graph"):
        described = cast("Any", model)
        optimizer = getattr(model, "optimizer", None)
        return PlainModel(described.inputs, described.build_graph, optimizer)
    raise ConfigError(
        f"model must be a ModelDesc or a tuple of functions, got {model!r}.",
        fix="pass a ModelDesc, a tuple (inputs, build_graph, optimizer), or "
        "KerasModel(model) for a compiled Keras model",
    )
