"""`@register_layer`: a function of a tensor becomes a layer with a name, a scope and defaults."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast, overload

import keras
import tensorflow as tf

from towerpack._core.errors import LayerError
from towerpack._core.naming import did_you_mean, unique
from towerpack.nn import _registry
from towerpack.nn._argscope import canonical, defaults_for
from towerpack.nn._context import get_current_tower_context
from towerpack.nn._registry import RegisteredLayer
from towerpack.nn._scope import full_name, is_reusing, reuse_scope, scope


@overload
def register_layer(func: Callable[..., Any], /) -> RegisteredLayer: ...
@overload
def register_layer(
    *, use_scope: bool | None = True
) -> Callable[[Callable[..., Any]], RegisteredLayer]: ...
def register_layer(
    func: Callable[..., Any] | None = None, /, *, use_scope: bool | None = True
) -> Any:
    """Make a function of a tensor a layer.

    The layer is called as `Layer('name', x, …)`. Everything that it creates lives in the scope
    `name/`, its result can be asked for as `'name/output'`, `argscope` gives it defaults, and
    `LinearWrap` knows it. Results of the layers here with weights carry them:
    `Conv2D('conv0', x, 8, 3).variables.kernel`.

    Args:
        func: Its first argument is the input.
        use_scope: True: a name is required. None: it may be left out, and then no scope is opened.
            False: the layer takes no name.

    Raises:
        LayerError: A layer of this name exists elsewhere.
    """

    def register(f: Callable[..., Any]) -> RegisteredLayer:
        layer = RegisteredLayer(f, _apply, use_scope)
        _registry.add(layer)
        return layer

    return register if func is None else register(func)


def _apply(layer: RegisteredLayer, *args: Any, **kwargs: Any) -> Any:
    name = kwargs.pop("name", None) if "name" not in layer.parameters else None
    if args and isinstance(args[0], str) and layer.use_scope is not False:
        name, args = args[0], args[1:]
    if name is None and layer.use_scope is True:
        raise LayerError(
            f"{layer.name} was called without a name.", expected=f"{layer.name}('name', x, …)"
        )
    arguments = _bind(layer, name, args, kwargs)
    if name is None:
        return layer.func(*arguments.args, **arguments.kwargs)
    return _scoped(layer, name, arguments)


def _scoped(layer: RegisteredLayer, name: str, arguments: inspect.BoundArguments) -> Any:
    context = get_current_tower_context()
    path = full_name(name)
    context.refuse_inner_functions(f"{layer.name}('{path}')")
    repeated = path in context.used_names
    if repeated and not is_reusing():
        raise LayerError(
            f"The layer name '{path}' is used twice in one tower.",
            fix="choose another name, or share weights on purpose: `with reuse_scope(): …`",
        )
    if is_reusing() and not repeated:
        raise LayerError(
            f"reuse_scope: there is no layer '{path}' to share yet.",
            fix=did_you_mean(path, context.used_names),
        )
    context.used_names.add(path)
    with scope(name):
        result = layer.func(*arguments.args, **arguments.kwargs)
    # A layer in a branch of `tf.cond` works, but its output exists only there.
    main = result[0] if isinstance(result, tuple) and result else result  # Then come states.
    if isinstance(main, tf.Tensor) and context.reaches(main):
        if path in (layers := context.store.layers()):
            cast("Any", main).variables = SimpleNamespace(
                **{v.name: cast("Any", v)._value for v in layers[path].variables}
            )
        context.outputs[unique(f"{path}/output", context.outputs)] = main
    return result


def _bind(
    layer: RegisteredLayer, name: str | None, args: Sequence[Any], kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    signature = inspect.signature(layer.func)
    own: dict[str, Any] = {}
    for key, value in kwargs.items():
        word = canonical(layer.parameters, key)
        if word in own:
            raise LayerError(
                f"{layer.name}({name!r}) got '{word}' twice, in two spellings.",
                got=f"{sorted(kwargs)}",
                fix=f"give {word}= alone",
            )
        own[word] = value
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    for key in own:
        if key not in signature.parameters and not takes_any:
            raise LayerError(
                f"{layer.name}({name!r}) has no argument '{key}'.",
                fix=did_you_mean(key, layer.parameters),
            )
    try:
        given = signature.bind_partial(*args, **own)
        missing = {k: v for k, v in defaults_for(layer).items() if k not in given.arguments}
        return signature.bind(*given.args, **{**given.kwargs, **missing})
    except TypeError as error:
        raise LayerError(
            f"{layer.name}({name!r}): {error}.",
            expected=f"{layer.name}('name', {', '.join(map(str, signature.parameters.values()))})",
            fix="give the argument in the call or in an argscope",
        ) from error


def auto_reuse_scope(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function: in one scope of a tower, later calls share the first one's weights."""

    @functools.wraps(func)
    def shared(*args: Any, **kwargs: Any) -> Any:
        called, this = get_current_tower_context().called, (func, full_name())
        with reuse_scope() if this in called else nullcontext():
            called.add(this)
            return func(*args, **kwargs)

    return shared


def expose(name: str, tensor: Any) -> tf.Tensor:
    """Name a tensor, so that callbacks, evaluation, predictors and export can ask for it.

    Args:
        name: Put under the current scope.
        tensor: Anything that is or becomes a tensor.

    Returns:
        The tensor itself.

    Raises:
        LayerError: Something else has this name already, or the tensor is inside of a branch or
            loop.
    """
    context = get_current_tower_context()
    path = full_name(name)
    if path in context.outputs:
        raise LayerError(
            f"An output '{path}' is exposed already in this tower.", fix="choose another name"
        )
    value = context.own(f"expose('{path}')", tensor)
    context.outputs[path] = value
    return value


def activate(function: Any, x: tf.Tensor) -> tf.Tensor:
    """Apply an activation: None, a Keras name, a function or a registered layer."""
    if function is None:
        return x
    if isinstance(function, RegisteredLayer) and function.use_scope is True:
        return function(function.name.lower(), x)
    known: Any = function
    if isinstance(function, str):
        known = getattr(keras.activations, function, None)
    if not callable(known):
        raise LayerError(
            f"Layer '{full_name()}': unknown activation {function!r}.",
            got=f"for an output of shape {x.shape}",
            expected="a function, a layer or a Keras name",
            fix=did_you_mean(str(function), vars(keras.activations)),
        )
    return cast("Any", known)(x)
