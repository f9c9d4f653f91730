"""Chains of layers, written from top to bottom."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import keras
import tensorflow as tf

from towerpack._core.errors import LayerError
from towerpack._core.naming import did_you_mean
from towerpack.nn._register import explained
from towerpack.nn._registry import LAYERS


class UnknownLayerError(LayerError, AttributeError):
    """There is no layer of this name. TensorFlow asks for names with `hasattr`."""


class LinearWrap:
    """Wrap a tensor so that layers can be chained on it.

        logits = (LinearWrap(image)
                  .Conv2D('conv0', 32, 3)
                  .MaxPooling('pool0', 2)
                  .FullyConnected('fc0', 10)())

    Every registered layer is a method; the tensor goes in as its input. So is every class of
    `keras.layers` by a name that no layer here has, with Keras's arguments: `.Softmax(axis=1)`,
    `.Dense(10, name='fc1')`, `.Activation('elu')`. `.tf` gives TensorFlow's functions
    (`.tf.nn.relu()`), `.apply` any other one. The call at the end gives the tensor.
    """

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __call__(self) -> Any:
        """Return the wrapped tensor."""
        return self._tensor

    tensor = __call__

    def apply(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> LinearWrap:
        """Go on with `func(tensor, …)`."""
        return LinearWrap(func(self._tensor, *args, **kwargs))

    def apply2(self, func: Callable[..., Any], first: Any, *args: Any, **kwargs: Any) -> LinearWrap:
        """Go on with `func(first, tensor, …)`: for functions that take a name first."""
        return LinearWrap(func(first, self._tensor, *args, **kwargs))

    def print_tensor(self) -> LinearWrap:
        """Write the tensor's description to stdout while the tower is traced."""
        sys.stdout.write(f"{self._tensor}\n")
        return self

    @property
    def tf(self) -> _TensorFlowChain:
        """TensorFlow's functions as methods: `.tf.nn.relu()`, `.tf.reshape([-1, 8])`."""
        return _TensorFlowChain(self, tf)

    def __getattr__(self, name: str) -> Callable[..., LinearWrap]:
        if name.startswith("_"):
            raise AttributeError(name)
        made: Any = getattr(keras.layers, name, None)
        layer = LAYERS.get(name)
        if layer is None and made is None:
            raise UnknownLayerError(f"There is no layer '{name}'.", fix=did_you_mean(name, LAYERS))

        def call(*args: Any, **kwargs: Any) -> LinearWrap:
            if layer is None:
                with explained(f"LinearWrap.{name}", self._tensor, "a Keras layer's name is name="):
                    return LinearWrap(made(*args, **kwargs)(self._tensor))
            if args and isinstance(args[0], str) and layer.use_scope is not False:
                return self.apply2(layer, *args, **kwargs)
            return self.apply(layer, *args, **kwargs)

        return call


class _TensorFlowChain:
    """Looks names up in TensorFlow's modules and applies the function found."""

    def __init__(self, wrap: LinearWrap, place: Any) -> None:
        self._wrap = wrap
        self._place = place

    def __getattr__(self, name: str) -> _TensorFlowChain:
        return _TensorFlowChain(self._wrap, getattr(self._place, name))

    def __call__(self, *args: Any, **kwargs: Any) -> LinearWrap:
        if isinstance(self._place, ModuleType):
            raise TypeError(f"{self._place.__name__} is a module, not a function")
        return self._wrap.apply(self._place, *args, **kwargs)
