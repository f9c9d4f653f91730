"""The model as a thin record: input specs, tower function, optimizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from towerpack._core.extras import require

require("tensorflow", extra="tf", needed_for="towerpack.model")

import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack.nn import get_current_tower_context

__all__ = ["ModelDesc", "PlainModel", "as_model"]


class ModelDesc:
    """What a trainer needs to know of a model. Subclass it and define three methods.

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
        """Shapes, dtypes and unique names of the inputs, one for each component of a datapoint."""
        raise NotImplementedError(f"{type(self).__name__} must define inputs()")

    # `*Any, **Any` lets a type checker accept subclasses that name their inputs.
    def build_graph(self, *tensors: Any, **named: Any) -> tf.Tensor | None:
        """The tower function: one tensor for each spec; gives the scalar cost.

        In inference (`get_current_tower_context().is_training` is False) it may give None.
        """
        raise NotImplementedError(f"{type(self).__name__} must define build_graph()")

    @property
    def training(self) -> bool:
        """True while a tower for training is being built: `if self.training:`.

        Raises:
            LayerError: Asked for outside of `build_graph`.
        """
        return get_current_tower_context().is_training

    def optimizer(self) -> Any:
        """A Keras optimizer, or one of `tf.compat.v1.train`; a dict of them for an own step."""
        raise NotImplementedError(
            f"{type(self).__name__} must define optimizer(), or TrainConfig be given optimizer="
        )


class PlainModel(ModelDesc):
    """A model of plain functions, for those who want no class.

    Args:
        inputs: Input specs, or a function that gives them.
        build_graph: The tower function.
        optimizer: An optimizer, or a function that gives one.
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
        """The specs."""
        return self._inputs() if callable(self._inputs) else self._inputs

    def optimizer(self) -> Any:
        """The optimizer; made by the function if one was given."""
        if self._optimizer is None:
            return super().optimizer()
        return self._optimizer() if callable(self._optimizer) else self._optimizer


def as_model(model: Any) -> ModelDesc:
    """A `ModelDesc` as it is, or one made of the tuple `(inputs, build_graph, optimizer)`.

    Raises:
        ConfigError: It is neither.
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
        f"model={model!r} is not a model.",
        expected="a ModelDesc, the plain functions (inputs, build_graph, optimizer), or "
        "KerasModel(model) of a compiled Keras model",
    )
