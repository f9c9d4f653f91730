"""Support for networks of tf_slim, a layer library of TensorFlow 1."""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.layers import core

from towerpack._core.extras import require
from towerpack._core.naming import unique
from towerpack.nn import TowerContext, find_tower_context, get_current_tower_context
from towerpack.nn.scopes import full_name


def slim_network(fn: Callable[..., Any], **arguments: Any) -> Callable[..., Any]:
    """Wrap a tf_slim network so that it uses the tower's training flag and names its outputs.

        resnet = slim_network(resnet_v1.resnet_v1_50, num_classes=10)

        def build_graph(self, image, label):
            logits, end_points = resnet(image)

    The wrapper sets `is_training` of `fn`, `slim.batch_norm` and `slim.dropout`, unless the call or
    an `arg_scope` sets it. Tensors in dicts that `fn` returns, such as end points, become named
    outputs of the tower. tf_slim also works without this wrapper if you pass `is_training`.

    Args:
        fn: Network such as `resnet_v1.resnet_v1_50`, or any function that uses `slim.conv2d`.
        **arguments: Arguments for each call of `fn`.

    Returns:
        A function with the arguments and results of `fn`.

    Raises:
        MissingExtraError: tf_slim is not installed.
    """
    slim: Any = require("tf_slim", extra="slim", needed_for="slim_network")
    takes_training = "is_training" in inspect.signature(fn).parameters

    @functools.wraps(fn)
    def network(*args: Any, **kwargs: Any) -> Any:
        context = get_current_tower_context()
        training = {"is_training": context.is_training}
        defaults = slim.current_arg_scope()
        keys = {slim.arg_scope_func_key(f): f for f in (slim.batch_norm, slim.dropout)}
        free = [f for key, f in keys.items() if "is_training" not in defaults.get(key, {})]
        with slim.arg_scope(free, **training):
            result = fn(*args, **{**(training if takes_training else {}), **arguments, **kwargs})
        for part in result if isinstance(result, tuple) else [result]:
            if isinstance(part, dict):
                _name_outputs(context, part)
        return result

    return network


def _name_outputs(context: TowerContext, end_points: dict[str, Any]) -> None:
    for name, tensor in end_points.items():
        if context.reaches(tensor):
            path = full_name(name.removeprefix(f"{full_name()}/"))
            context.outputs[unique(path, context.outputs)] = tensor


def mend_slim() -> None:
    """Patch tf_slim 1.1.0 for the installed TensorFlow, if the program has imported tf_slim.

    - `ops.Tensor`, which tf_slim uses, was removed.
    - `slim.batch_norm` needs the Keras of TensorFlow 1 if `updates_collections` *is* the constant
      `UPDATE_OPS`. An equal string selects the implementation in tf_slim.
    - `slim.dropout` becomes a function of seed and step, so that resumed runs are exact.
    """
    for name in ("tf_slim.layers.layers", "tf_slim.layers.utils"):
        module: Any = sys.modules.get(name)
        if module is not None:
            module.ops = _OPS
            if hasattr(module, "core_layers"):
                module.core_layers = _CORE
            # TensorFlow's layers warn about the way in which tf_slim calls them.
            warnings.filterwarnings("ignore", module=r"tensorflow\.python\.keras\.")


class _Changed(ModuleType):
    def __init__(self, original: ModuleType, **changed: Any) -> None:
        super().__init__(original.__name__)
        self._original = original
        vars(self).update(changed)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


class _Keys(ops.GraphKeys):
    UPDATE_OPS = "".join(["update", "_ops"])


class _Dropout:
    def __init__(self, *, rate: float, noise_shape: Any = None, **arguments: Any) -> None:
        self._arguments = {"rate": rate, "noise_shape": noise_shape}
        self._others = arguments

    def apply(self, inputs: tf.Tensor, training: Any) -> tf.Tensor:
        context = find_tower_context()
        if context is None or tf.is_tensor(training):
            layer: Any = core.Dropout(**self._arguments, **self._others)
            return layer.apply(inputs, training=training)
        if not training:
            return tf.identity(inputs)
        seed = context.step_seed(full_name())
        return tf.nn.experimental.stateless_dropout(inputs, seed=seed, **self._arguments)


_OPS = _Changed(ops, Tensor=tf.Tensor, GraphKeys=_Keys)
_CORE = _Changed(core, Dropout=_Dropout)
