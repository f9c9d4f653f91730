"""Spectral normalisation of all layers of a discriminator."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from towerpack.nn import SpectralNorm, get_current_tower_context, remap_variables


@contextmanager
def spectral_norm(regex: str = ".*kernel", *, power_iterations: int = 1) -> Iterator[None]:
    """Let layers inside compute with weights divided by their greatest singular value.

    Miyato et al. 2018. Each weight gets a variable `LAYER/spectral_norm/u`, which is not trained
    and gets nearer to the singular vector in each training step.

    Args:
        regex: For whole names of the trainable variables that are divided.
        power_iterations: How often `u` is improved in a step.
    """
    # Calls of one tower that share layers share their divided weights, too.
    called = get_current_tower_context().called

    def divided(variable: tf.Variable) -> Any:
        name = variable.name.partition(":")[0]
        if len(variable.shape) < 2 or not re.fullmatch(regex, name):
            return variable
        if (spectral_norm, name) not in called:
            leaf = name.rpartition("/")[2].removesuffix("kernel")  # 'depthwise_' of a layer of two
            value: Any = variable.read_value()
            called[spectral_norm, name] = SpectralNorm(
                f"{leaf}spectral_norm", value, power_iterations=power_iterations
            )
        return called[spectral_norm, name]

    with remap_variables(divided):
        yield
