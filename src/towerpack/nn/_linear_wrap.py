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
    """Error for an unknown layer. It is an `AttributeError`, so that `hasattr` works."""


class LinearWrap:
    """Wrapper of a tensor that has layers as methods, so that layers can be chained.

        logits = (LinearWrap(image)
                  .Conv2D('conv0', 32, 3)
                  .MaxPooling('pool0', 2)
                  .FullyConnected('fc0', 10)())

    Every registered layer is a method that takes the tensor as its input. Other names are looked up
    in `keras.layers`: `.Softmax(axis=1)`, `.Dense(10, name='fc1')`, `.Activation('elu')`. `.tf`
    gives TensorFlow's functions (`.tf.nn.relu()`), and `.apply` calls any other function. Calling
    the wrapper returns the tensor.

    Args:
        tensor: Input of the first layer.
    """

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __call__(self) -> Any:
        """Return the wrapped tensor."""
        return self._tensor

    tensor = __call__

    def apply(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> LinearWrap:
        """Return a wrapper of `func(tensor, *args, **kwargs)`.

        Args:
            func: Function that takes the tensor first.
            *args, **kwargs: Further arguments of the function.
        """
        return LinearWrap(func(self._tensor, *args, **kwargs))

    def apply2(self, func: Callable[..., Any], first: Any, *args: Any, **kwargs: Any) -> LinearWrap:
        """Return a wrapper of `func(first, tensor, *args, **kwargs)`.

        Args:
            func: Function that takes the tensor second, such as a layer.
            first: First argument, such as a name.
            *args, **kwargs: Further arguments of the function.
        """
        return LinearWrap(func(first, self._tensor, *args, **kwargs))

    def print_tensor(self) -> LinearWrap:
        """Print the tensor's description to stdout while the tower is traced."""
        sys.stdout.write(f"{self._tensor}\n")
        return self

    @property
    def tf(self) -> _TensorFlowChain:
        """TensorFlow's functions as methods: `.tf.nn.relu()`, `.tf.reshape([-1, 8])`."""
        return _TensorFlowChain(self, tf)

    def __getattr__(self, name: str) -> Callable[..., LinearWrap]:
        if name.startswith("_"):
            raise AttributeError(name)
        keras_class: Any = getattr(keras.layers, name, None)
        layer = LAYERS.get(name)
        if layer is None and keras_class is None:
            raise UnknownLayerError(f"No layer is named '{name}'.", fix=did_you_mean(name, LAYERS))

        def call(*args: Any, **kwargs: Any) -> LinearWrap:
            if layer is None:
                fix = "pass the name of a Keras layer as name="
                with explained(f"LinearWrap.{name}", self._tensor, fix):
                    return LinearWrap(keras_class(*args, **kwargs)(self._tensor))
            if args and isinstance(args[0], str) and layer.use_scope is not False:
                return self.apply2(layer, *args, **kwargs)
            return self.apply(layer, *args, **kwargs)

        return call


class _TensorFlowChain:
    def __init__(self, wrap: LinearWrap, target: Any) -> None:
        self._wrap = wrap
        self._target = target

    def __getattr__(self, name: str) -> _TensorFlowChain:
        return _TensorFlowChain(self._wrap, getattr(self._target, name))

    def __call__(self, *args: Any, **kwargs: Any) -> LinearWrap:
        if isinstance(self._target, ModuleType):
            raise TypeError(
                f"LinearWrap.tf needs a function, got the module {self._target.__name__}"
            )
        return self._wrap.apply(self._target, *args, **kwargs)
