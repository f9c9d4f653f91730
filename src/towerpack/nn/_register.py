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
from towerpack.nn._argscope import canonical, defaults_for, instead_of
from towerpack.nn._context import get_current_tower_context
from towerpack.nn._registry import RegisteredLayer, add
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
    `name/`, its result is the output `'name/output'`, `argscope` gives it defaults, and it is a
    method of `LinearWrap`. The result of a layer with weights carries the weights:
    `Conv2D('conv0', x, 8, 3).variables.kernel`.

    Args:
        func: Its first argument is the input.
        use_scope: True requires a name. None makes it optional; without a name no scope is opened.
            False: the layer takes no name.
        log_shape: Without effect, for old programs.

    Raises:
        LayerError: Another module has registered a layer of this name.
    """

    def register(f: Callable[..., Any]) -> RegisteredLayer:
        layer = RegisteredLayer(f, _apply, use_scope)
        add(layer)
        return layer

    return register if func is None else register(func)


def _apply(layer: RegisteredLayer, *args: Any, **kwargs: Any) -> Any:
    name = None if "name" in layer.parameters else kwargs.pop("name", None)
    if args and isinstance(args[0], str) and layer.use_scope is not False:
        name, args = args[0], args[1:]
    if name is None and layer.use_scope is True:
        raise LayerError(
            f"{layer.name} was called without a name.", expected=f"{layer.name}('name', x, …)"
        )
    arguments = _bind(layer, name, args, kwargs)
    if name is None:
        return _called(layer, arguments)
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


_NODE = " for '{{node "  # TensorFlow's description of the operation follows.


@contextmanager
def explained(name: str, x: Any, fix: str | None = None) -> Iterator[None]:
    """Turn errors of Keras and TensorFlow inside into a `LayerError` that names the layer."""
    try:
        yield
    except TowerpackError:
        raise
    except (TypeError, ValueError) as error:
        lines = (re.sub(r"\x1b\[\d+m", "", line).strip() for line in str(error).splitlines())
        useful = (line for line in lines if line and not line.startswith("Exception encountered"))
        raise LayerError(
            f"{name} cannot be built: {next(useful, type(error).__name__).split(_NODE)[0]}",
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
    for key in () if takes_any else own.keys() - signature.parameters.keys():
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
    """Decorate a function: in one scope of a tower, later calls share the first call's weights.

    This includes Keras layers without a name, and variables of `tf.compat.v1.get_variable`. A later
    call that uses layers which the first call did not raises a `LayerError`.
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
        tensor: A tensor, or a value that converts to one, which is returned.

    Raises:
        LayerError: Another output has this name, or the tensor is inside of a branch or loop.
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
    known: Any = (
        getattr(keras.activations, function, None) if isinstance(function, str) else function
    )
    if not callable(known):
        raise LayerError(
            f"Layer '{full_name()}': unknown activation {function!r}.",
            got=f"for an output of shape {x.shape}",
            expected="a function, a layer or a Keras name",
            fix=did_you_mean(str(function), vars(keras.activations)),
        )
    return cast("Any", known)(x)
