"""Search for Keras layers and variables that users create outside of the tower function.

These are attributes of the model object (`self.backbone = keras.Sequential(…)`) or its class,
also inside lists, dicts and plain objects, or variables that the function and its helpers use.
Their names start with the attribute's name. Keras's numbers in names (`dense_7`) depend on other
layers of the process, so layers are numbered again within each attribute.
"""

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any, cast

import keras
import tensorflow as tf

from towerpack._core.naming import unique
from towerpack._keras.adapter import automatic_names, inner_layers, variables_of

_NUMBERED = re.compile(r"_\d+$")
_DEPTH = 4
_LONGEST = 1000
# Objects of these packages hold no layers of users.
_LIBRARIES = {
    "tensorflow", "keras", "tf_slim", "numpy", "towerpack", "builtins", "collections", "ml_dtypes"
}  # fmt: skip
_BOOKKEEPING = (keras.optimizers.Optimizer, keras.metrics.Metric, keras.losses.Loss)
_LEAVES = (keras.layers.Layer, keras.Variable, tf.Variable, keras.random.SeedGenerator)


def owners_of(func: Callable[..., Any]) -> Mapping[str, object]:
    """Return the objects that may hold layers of a tower function: attributes, closure, globals.

    Args:
        func: Tower function.
    """
    owners: dict[str, object] = {}
    for name, value in _places(func, set()):
        if not any(value is known for known in owners.values()):
            owners[unique(name, owners)] = value
    return owners


def find_variables(owners: Mapping[str, object]) -> dict[str, tf.Variable]:
    """Return the variables in `owners` by name (`attribute/path`), in the order of the attributes.

    Args:
        owners: Result of `owners_of`.
    """
    variables: dict[str, tf.Variable] = {}
    for name, value in items(owners):
        for path, variable in _variables_of(name, value).items():
            plain = variable.value if isinstance(variable, keras.Variable) else variable
            variables[unique(path, variables)] = cast("Any", plain)
    return variables


def keras_layers(owners: Mapping[str, object]) -> list[keras.layers.Layer]:
    return [value for _, value in items(owners) if isinstance(value, keras.layers.Layer)]


def keras_variables(owners: Mapping[str, object]) -> Iterator[keras.Variable]:
    """Iterate over the Keras variables in the objects `owners`. A variable may occur twice."""
    for name, value in items(owners):
        if not isinstance(value, tf.Variable):
            yield from _variables_of(name, value).values()


def layers_by_name(owners: Mapping[str, object]) -> dict[str, keras.layers.Layer]:
    """Return the Keras layers in the objects `owners`, with sublayers, by `attribute/layer`."""
    layers: dict[str, keras.layers.Layer] = {}
    seen: set[int] = set()
    for name, value in items(owners):
        if not isinstance(value, keras.layers.Layer):
            continue
        automatic = automatic_names(value)
        renamed: dict[str, str] = {}
        for layer in inner_layers(value):
            if id(layer) in seen:
                continue
            seen.add(id(layer))
            automatic_name = layer.name in automatic
            own_name = _counted(layer.name, renamed) if automatic_name else layer.name
            path = name if layer is value else f"{name}/{own_name}".removeprefix("/")
            layers[unique(path, layers)] = layer
    return layers


def frozen_ids(owners: Mapping[str, object]) -> set[int]:
    """Return the `id` of each `tf.Variable` in Keras layers with `trainable=False`."""
    frozen: set[int] = set()
    for _, item in items(owners):
        if isinstance(item, keras.layers.Layer):
            wanted = {id(v.value) for v in item.trainable_variables}
            frozen.update(id(v.value) for v in item.variables if id(v.value) not in wanted)
        elif isinstance(item, keras.Variable) and not item.trainable:
            frozen.add(id(cast("Any", item).value))
    return frozen


def _places(func: Any, seen: set[int]) -> Iterator[tuple[str, object]]:
    """Iterate over the names and values that a function uses besides its arguments."""
    key = hash((id(func.__self__), id(func.__func__))) if inspect.ismethod(func) else id(func)
    if key in seen or len(seen) > _LONGEST:
        return
    seen.add(key)
    if isinstance(func, functools.partial):
        yield from ((f"arg{i}", value) for i, value in enumerate(func.args))
        yield from func.keywords.items()
        yield from _places(func.func, seen)
    elif isinstance(func, _LEAVES):
        yield "model", func
    elif inspect.ismethod(func):
        owner = func.__self__
        if not isinstance(owner, type):
            yield from _attributes(owner)
        yield from _places(func.__func__, seen)
        code = getattr(func.__func__, "__code__", None)
        for name in code.co_names if code else ():  # helpers: self.net(x)
            helper = inspect.getattr_static(type(owner), name, None)
            if inspect.isfunction(helper) and not _of_library(helper.__module__):
                yield from _places(helper.__get__(owner), seen)
    elif inspect.isfunction(inspect.unwrap(func)):
        yield from _closure(inspect.unwrap(func), seen)
    elif callable(func):
        yield from _attributes(func)
        call = inspect.getattr_static(type(func), "__call__", None)
        if inspect.isfunction(call):
            yield from _closure(call, seen)


def _closure(func: Any, seen: set[int]) -> Iterator[tuple[str, object]]:
    reached = inspect.getclosurevars(func)
    helpers: list[Any] = []
    for name, value in {**reached.globals, **reached.nonlocals}.items():
        # A layer by name wraps a function.
        from_towerpack = type(value).__module__.startswith("towerpack.")
        inner = inspect.unwrap(cast("Any", value)) if from_towerpack else value
        if inspect.isfunction(inner) or inspect.ismethod(inner):
            helpers.append(inner)
        elif not isinstance(value, ModuleType | type):
            yield name, value
    for helper in helpers:
        if not _of_library(getattr(helper, "__module__", None)):
            yield from _places(helper, seen)


def _attributes(owner: object) -> Iterator[tuple[str, object]]:
    yield from getattr(owner, "__dict__", {}).items()
    for cls in type(owner).__mro__:
        if not _of_library(cls.__module__):
            for name, value in vars(cls).items():
                if isinstance(value, (*_LEAVES, list, tuple, dict)):
                    yield name, value


def _of_library(module: str | None) -> bool:
    return (module or "builtins").partition(".")[0] in _LIBRARIES


def items(owners: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Iterate over the layers, variables and seed generators in `owners`, with their paths."""
    seen: set[int] = set()
    for name, value in owners.items():
        yield from _walk(name, value, _DEPTH, seen)


def _walk(name: str, value: object, depth: int, seen: set[int]) -> Iterator[tuple[str, object]]:
    if name.rpartition("/")[2].startswith("__") or id(value) in seen or not _may_hold(value):
        return
    seen.add(id(value))
    if isinstance(value, _LEAVES):
        yield name, value
    elif depth:
        for key, inner in _children(value):
            yield from _walk(f"{name}/{key}", inner, depth - 1, seen)


def _children(value: Any) -> list[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        children: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, list | tuple):
        children = list(enumerate(value))
    else:
        # TensorFlow keeps a second view of tracked attributes under `_self_…`.
        return [(k, v) for k, v in vars(value).items() if not k.startswith("_self_")]
    # A model may also hold a list of a million file names.
    return children if len(children) <= _LONGEST else []


def _may_hold(value: object) -> bool:
    if isinstance(value, (*_LEAVES, Mapping, list, tuple, tf.Module)):
        return True
    if isinstance(value, (*_BOOKKEEPING, ModuleType, type)) or not hasattr(value, "__dict__"):
        return False
    return not (inspect.isroutine(value) or _of_library(type(value).__module__))


def _variables_of(attribute: str, value: Any) -> dict[str, Any]:
    if isinstance(value, keras.layers.Layer):
        return _layer_variables(attribute, value)
    if isinstance(value, keras.random.SeedGenerator):
        return {f"{attribute}/state": value.state}
    return {attribute: value}


def _layer_variables(attribute: str, layer: keras.layers.Layer) -> dict[str, keras.Variable]:
    automatic = automatic_names(layer)
    counters: dict[str, dict[str, str]] = {}
    variables: dict[str, keras.Variable] = {}
    for variable in variables_of(layer):
        *scopes, last = variable.path.split("/")
        if layer.name in scopes:
            # The attribute replaces the layer's own name and all scopes around it.
            scopes = scopes[scopes.index(layer.name) + 1 :]
        name = attribute
        for part in scopes:
            fixed = part in automatic
            name += "/" + (_counted(part, counters.setdefault(name, {})) if fixed else part)
        variables[unique(f"{name}/{last}".removeprefix("/"), variables)] = variable
    return variables


def _counted(part: str, renamed: dict[str, str]) -> str:
    if part not in renamed:
        base = _NUMBERED.sub("", part)
        taken = sum(1 for other in renamed if _NUMBERED.sub("", other) == base)
        renamed[part] = base if taken == 0 else f"{base}_{taken}"
    return renamed[part]
