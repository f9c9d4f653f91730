"""Decorator that turns a function of a tensor into a layer with name, scope and defaults."""

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
    """Turn a function of a tensor into a layer, which is called as `Layer('name', x, …)`.

        @register_layer
        def Scale(x, factor):
            return factor * x

        y = Scale('scale0', x, 2.0)

    The layer creates its variables in the scope `name/`. Its result is the output `'name/output'`.
    The layer takes defaults from `argscope` and is a method of `LinearWrap`. The result of a layer
    with weights carries the weights: `Conv2D('conv0', x, 8, 3).variables.kernel`.

    Args:
        func: Function whose first argument is the input.
        use_scope: True requires a name. None makes the name optional, and opens no scope without
            one. With False the layer takes no name.
        log_shape: Ignored; accepted for old programs.

    Raises:
        LayerError: Another module has registered a layer with this name.
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
            f"{layer.name} needs a name as its first argument: {layer.name}('name', x, …)."
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
            f"Layers of a tower must have different names, but '{path}' is used twice.",
            fix="choose another name, or share the weights with `with reuse_scope(): …`",
        )
    if is_reusing() and not repeated:
        raise LayerError(
            f"reuse_scope: no earlier layer of this tower has the name '{path}'.",
            fix=did_you_mean(path, context.used_names),
        )
    context.used_names.add(path)
    with scope(name):
        result = _called(layer, arguments)
    # A layer in a branch of `tf.cond` works, but its output exists only in the branch.
    main = result[0] if isinstance(result, tuple) and result else result  # States follow.
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


_NODE = " for '{{node "  # Start of TensorFlow's description of the operation.


@contextmanager
def explained(name: str, x: Any, fix: str | None = None) -> Iterator[None]:
    """Context manager that converts errors of Keras and TensorFlow to a `LayerError`."""
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
    named: dict[str, Any] = {}
    first = next(iter(signature.parameters))
    for key, value in kwargs.items():
        word = first if key == "inputs" and key not in signature.parameters else key
        word = canonical(layer.parameters, word)
        if word in named:
            raise LayerError(
                f"{layer.name}({name!r}) got '{word}' in two spellings: {sorted(kwargs)}.",
                fix=f"pass only {word}=",
            )
        named[word] = value
    takes_any = any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values())
    for key in () if takes_any else named.keys() - signature.parameters.keys():
        raise LayerError(
            f"{layer.name}({name!r}) has no argument '{key}'.",
            fix=instead_of(key, layer.parameters, full_name(name or "")),
        )
    try:
        bound = signature.bind_partial(*args, **named)
        missing = {k: v for k, v in defaults_for(layer).items() if k not in bound.arguments}
        return signature.bind(*bound.args, **{**bound.kwargs, **missing})
    except TypeError as error:
        raise LayerError(
            f"{layer.name}({name!r}): {error}.",
            expected=f"{layer.name}('name', {', '.join(map(str, signature.parameters.values()))})",
            fix="pass the argument in the call, or set a default with argscope(…)",
        ) from error


def auto_reuse_scope(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function so that its later calls share the weights of its first call.

    Calls in the same scope of a tower share layers by name, Keras layers without a name, and
    variables of `tf.compat.v1.get_variable`.

    Args:
        func: Function to decorate.

    Raises:
        LayerError: A later call creates layers that the first call did not create.
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
        with reuse_scope(), fresh_names(before):  # The same automatic Keras names again.
            result = func(*args, **kwargs)
            more = [kind for kind, count in name_counts().items() if count > after.get(kind, 0)]
        if more:
            raise LayerError(
                f"auto_reuse_scope: calls of {func.__name__} must create the same Keras layers, "
                f"but this call creates more than the first call: {', '.join(more)}.",
                fix="create the same layers in each call, or pass name= to the layers",
            )
        return result

    return shared


def expose(name: str, tensor: Any) -> tf.Tensor:
    """Name a tensor, so that callbacks, evaluation, predictors and exports can use it.

    Args:
        name: Name of the output. The current scope is put before it.
        tensor: Tensor, or a value that converts to a tensor.

    Returns:
        The tensor.

    Raises:
        LayerError: The name is in use, or the tensor is inside a branch or loop.
    """
    context = get_current_tower_context()
    path = full_name(name)
    if path in context.outputs:
        raise LayerError(
            f"The output name '{path}' must be unique in the tower.", fix="choose another name"
        )
    value = context.as_tower_tensor(f"expose('{path}')", tensor)
    context.outputs[path] = value
    return value


def activate(function: Any, x: tf.Tensor) -> tf.Tensor:
    if function is None:
        return x
    if isinstance(function, RegisteredLayer) and function.use_scope is True:
        return function(function.name.lower(), x)
    known: Any = (
        getattr(keras.activations, function, None) if isinstance(function, str) else function
    )
    if not callable(known):
        raise LayerError(
            f"Layer '{full_name()}': activation must be a function, a layer or a Keras name, "
            f"got {function!r}.",
            fix=did_you_mean(str(function), vars(keras.activations)),
        )
    return cast("Any", known)(x)
