"""Seeding of Keras layers that users create outside of the tower function.

Keras seeds initializers from Python's global generator when a layer is created, long before the
run has a seed. Two starts of a program would differ. This module replaces the seeds and draws
values again if they equal, bit for bit, what the initializer draws. Other values do not change:
loaded weights, values from `set_weights`, and values whose initializer Keras does not store (in
`EinsumDense`, or by default in custom layers). Frozen layers and values that equal another
variable of the model, such as a target network, do not change either.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from towerpack._core.naming import unique
from towerpack._core.randomness import derive_seed
from towerpack._keras import owned
from towerpack._keras.adapter import (
    is_fresh,
    own_variables,
    seed_generators,
    set_seed,
    unseeded_initializers,
)


@dataclass(frozen=True, eq=False)
class _Draw:
    """Variable, and an initializer of the same layer that may have drawn the variable's value."""

    layer: str
    variable: Any
    initializer: Any

    def again(self) -> Any:
        return self.initializer(self.variable.shape, dtype=self.variable.dtype)


def seed_layers(owners: Mapping[str, object], seed: int) -> tuple[list[str], list[str]]:
    """Seed the Keras layers and seed generators in `owners` and redraw their initial values.

    The seed of a layer depends on `seed`, the layer's name, the attribute that holds the layer, and
    the purpose, such as 'kernel_initializer'. Initializers that shared a seed still share one.

    Returns:
        Names of the layers with redrawn values, and names of the layers with unchanged values.
    """
    layers = owned.layers_by_name(owners)
    draws = list(_draws(layers))
    untouched = [d for d in draws if _content(d.variable) == _content(d.again())]
    drawn = {id(d.variable.value) for d in untouched}
    variables = owned.find_variables(owners).values()
    others = {_content(v) for v in variables if id(v) not in drawn} if drawn else set()
    redrawn = [d for d in untouched if d.variable.trainable and _content(d.variable) not in others]
    seeds: dict[int, int] = {}
    for name, layer in layers.items():
        for role, initializer in unseeded_initializers(layer).items():
            new = derive_seed(seed, "init", name, role) >> 32
            set_seed(initializer, seeds.setdefault(initializer.seed, new))
    for name, generator in _generators(owners, layers).items():
        set_seed(generator, derive_seed(seed, "init", name) >> 32)
    for draw in redrawn:
        draw.variable.assign(draw.again())
    done = {id(d.variable) for d in redrawn}
    unchanged = [d for d in draws if id(d.variable) not in done]
    return list({d.layer: None for d in redrawn}), list({d.layer: None for d in unchanged})


def _draws(layers: Mapping[str, keras.layers.Layer]) -> Iterable[_Draw]:
    for name, layer in layers.items():
        initializers = unseeded_initializers(layer)
        for variable in own_variables(layer) if initializers else ():
            for role, initializer in initializers.items():
                # Not every initializer can draw a vector.
                if len(variable.shape) > 1 or role.startswith(variable.name):
                    yield _Draw(name, variable, initializer)


def _generators(
    owners: Mapping[str, object], layers: Mapping[str, keras.layers.Layer]
) -> dict[str, keras.random.SeedGenerator]:
    """Return the unused seed generators that the user did not seed, by name."""
    generators: dict[str, keras.random.SeedGenerator] = {}
    held = [(name, g) for name, layer in layers.items() for g in seed_generators(layer)]
    for name, generator in [*held, *owned.items(owners)]:
        if isinstance(generator, keras.random.SeedGenerator) and is_fresh(generator):
            generators[unique(name, generators)] = generator
    return generators


def _content(variable: Any) -> bytes:
    array = np.asarray(variable)
    return hashlib.blake2b(f"{array.shape} {array.dtype}".encode() + array.tobytes()).digest()
