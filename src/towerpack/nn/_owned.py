"""Finds Keras layers and variables that a user made outside of the tower function.

They hang on the model object (`self.backbone = keras.Sequential(…)`) or in a function's closure.
Their names start with the attribute's name. Automatic Keras numbers (`dense_7`) depend on what else
the process has built, so they are counted anew within each attribute.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

_NUMBERED = re.compile(r"_\d+$")
_HOLDERS = (keras.layers.Layer, keras.Variable, tf.Variable, tf.Module)


def owners_of(func: Callable[..., Any]) -> Mapping[str, object]:
    """What a tower function may keep layers in, now: its `self`'s attributes, or its closure."""
    bound = getattr(func, "__self__", None)
    if bound is None and inspect.isfunction(inspect.unwrap(func)):
        found = inspect.getclosurevars(inspect.unwrap(func))
        return {**found.globals, **found.nonlocals}
    return getattr(bound if bound is not None else func, "__dict__", {})


def find_variables(owners: Mapping[str, object]) -> dict[str, tf.Variable]:
    """Variables by `attribute/path`, in the order of the attributes."""
    found: dict[str, tf.Variable] = {}
    for name, value in _items(owners):
        if isinstance(value, keras.layers.Layer):
            found.update(_layer_variables(name, value))
        elif isinstance(value, keras.Variable):
            found[name] = value.value
        elif isinstance(value, tf.Variable):
            found[name] = value
        elif isinstance(value, tf.Module):
            found.update({f"{name}/{v.name.split(':')[0]}": v for v in value.variables})
    return found


def keras_layers(owners: Mapping[str, object]) -> list[keras.layers.Layer]:
    """The Keras layers and models on the owners."""
    return [value for _, value in _items(owners) if isinstance(value, keras.layers.Layer)]


def frozen_ids(owners: Mapping[str, object]) -> set[int]:
    """Ids of the `tf.Variable`s that Keras layers hold and do not want trained.

    Keras keeps `trainable = False` on its own objects; the `tf.Variable` inside is not told.
    """
    frozen: set[int] = set()
    for _, item in _items(owners):
        if isinstance(item, keras.layers.Layer):
            wanted = {id(v.value) for v in item.trainable_variables}
            frozen.update(id(v.value) for v in item.variables if id(v.value) not in wanted)
        elif isinstance(item, keras.Variable) and not item.trainable:
            frozen.add(id(item.value))
    return frozen


def _items(owners: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    for name, value in owners.items():
        if name.startswith("__"):
            continue
        # Only containers of layers: a model may also hold a list of a million file names.
        if isinstance(value, list | tuple) and value and isinstance(value[0], _HOLDERS):
            for i, item in enumerate(value):
                yield f"{name}/{i}", item
        elif isinstance(value, dict) and isinstance(next(iter(value.values()), None), _HOLDERS):
            for key, item in value.items():
                yield f"{name}/{key}", item
        else:
            yield name, value


def _layer_variables(attribute: str, layer: keras.layers.Layer) -> dict[str, tf.Variable]:
    counters: dict[str, dict[str, str]] = {}
    found: dict[str, tf.Variable] = {}
    for variable in layer.variables:
        # The first part is the layer's own automatic name, for which the attribute stands.
        parts = variable.path.split("/")
        inner = parts[1:] if len(parts) > 1 else parts
        name = attribute
        for part in inner[:-1]:
            name += "/" + _stable(part, counters.setdefault(name, {}))
        name += "/" + inner[-1]
        while name in found:
            name += "_"
        found[name] = variable.value
    return found


def _stable(part: str, renamed: dict[str, str]) -> str:
    if part not in renamed:
        base = _NUMBERED.sub("", part)
        taken = sum(1 for other in renamed if _NUMBERED.sub("", other) == base)
        renamed[part] = base if taken == 0 else f"{base}_{taken}"
    return renamed[part]
