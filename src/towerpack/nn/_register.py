"""`@register_layer`: a function of a tensor becomes a layer with a name, a scope and defaults."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, cast, overload

import keras
import tensorflow as tf

from towerpack._core.errors import LayerError, TowerpackError
from towerpack._core.naming import did_you_mean, unique
from towerpack._keras.adapter import fresh_names, name_counts
from towerpack.nn import _registry
from towerpack.nn._argscope import canonical, defaults_for, instead_of
from towerpack.nn._context import get_current_tower_context
from towerpack.nn._registry import RegisteredLayer
from towerpack.nn.scopes import full_name, is_reusing, reuse_scope, scope


@overload
def register_layer(func: Callable[..., Any], /) -> RegisteredLayer: ...
@overload
def register_layer(
    *, use_scope: bool | None = True, log_shape: bool = False
) -> Callable[[Callable[..., Any]], RegisteredLayer]: ...
def register_layer(
    func: Callable[..., Any] | None = None,
    /,
    *,
    use_scope: bool | None = True,
    log_shape: bool = False,
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
        log_shape: Accepted for old programs and without effect: shapes are not logged.

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
        return _called(layer, arguments)
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
        result = _called(layer, arguments)
    # A layer in a branch of `tf.cond` works, but its output exists only there.
    main = result[0] if isinstance(result, tuple) and result else result  # Then come states.
    if isinstance(main, tf.Tensor) and context.reaches(main):
        if path in (layers := context.store.layers()):
            cast("Any", main).variables = SimpleNamespace(
                **{v.name: cast("Any", v)._value for v in layers[path].variables}
            )
        context.outputs[unique(f"{path}/output", context.outputs)] = main
    return result


def _called(layer: RegisteredLayer, arguments: inspect.BoundArguments) -> Any:
    with explained(f"{layer.name} '{full_name()}'", next(iter(arguments.arguments.values()))):
        return layer.func(*arguments.args, **arguments.kwargs)


_NODE = " for '{{node "  # Behind it TensorFlow describes the operation.


@contextmanager
def explained(name: str, x: Any, fix: str | None = None) -> Iterator[None]:
    """Turn what Keras and TensorFlow refuse inside into an error that names the layer.

    Raises:
        LayerError: With the first line of the original that says something, and the input's shape.
    """
    try:
        yield
    except TowerpackError:
        raise
    except (TypeError, ValueError) as error:
        lines = (re.sub(r"\x1b\[\d+m", "", line).strip() for line in str(error).splitlines())
        said = [line for line in lines if line and not line.startswith("Exception encountered")]
        raise LayerError(
            f"{name} cannot be built: {(said or [type(error).__name__])[0].split(_NODE)[0]}",
            got=f"an input of shape {getattr(x, 'shape', type(x).__name__)}",
            fix=fix,
        ) from error


def _bind(
    layer: RegisteredLayer, name: str | None, args: Sequence[Any], kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    signature = inspect.signature(layer.func)
    own: dict[str, Any] = {}
    first = next(iter(signature.parameters))
    for key, value in kwargs.items():
        word = first if key == "inputs" and key not in signature.parameters else key
        word = canonical(layer.parameters, word)
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
                fix=instead_of(key, layer.parameters, full_name(name or "")),
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
    """Decorate a function: in one scope of a tower, later calls share the first one's weights.

    So do Keras layers that it makes without a name, and variables of `tf.compat.v1.get_variable`.

    Raises:
        LayerError: A later call uses layers that the first one did not.
    """

    @functools.wraps(func)
    def shared(*args: Any, **kwargs: Any) -> Any:
        called, this = get_current_tower_context().called, (func, full_name())
        if this not in called:
            before = name_counts()
            called[this] = before, before
            result = func(*args, **kwargs)
            called[this] = before, name_counts()
            return result
        before, after = called[this]
        with reuse_scope(), fresh_names(before):  # `dense` is the same `dense` again.
            result = func(*args, **kwargs)
            more = [kind for kind, count in name_counts().items() if count > after.get(kind, 0)]
        if more:
            raise LayerError(
                f"auto_reuse_scope: this call of {func.__name__} makes more Keras layers than the "
                f"first: {', '.join(more)}.",
                fix="make the same layers in each call, or give them a name=",
            )
        return result

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
