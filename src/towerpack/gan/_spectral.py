"""Spectral normalisation of all layers of a discriminator."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from towerpack.nn import SpectralNorm, get_current_tower_context, remap_variables


@contextmanager
def spectral_norm(regex: str = r".*kernel", *, power_iterations: int = 1) -> Iterator[None]:
    """Let layers inside compute with weights divided by their greatest singular value.

    Miyato et al. 2018. Each weight gets a variable `LAYER/spectral_norm/u`, the singular vector,
    which is not trained and gets nearer in each training step. Calls of one tower that share layers
    share their divided weights, too.

        with scope("discrim"), spectral_norm():
            logits_real = self.discriminator(image)
            logits_fake = self.discriminator(fake)

    Args:
        regex: For whole names of the trainable variables that are divided.
        power_iterations: How often the singular vector is improved in a step.

    Raises:
        LayerError: There is no tower.
    """
    context = get_current_tower_context()

    def divided(variable: tf.Variable) -> Any:
        name = variable.name.partition(":")[0]
        if len(variable.shape) < 2 or not re.fullmatch(regex, name):
            return variable
        key = spectral_norm, name
        if key not in context.called:
            leaf = "" if name.endswith("/kernel") else name.rpartition("/")[2] + "_"
            weight: Any = variable.read_value()
            context.called[key] = SpectralNorm(
                f"{leaf}spectral_norm", weight, power_iterations=power_iterations
            )
        return context.called[key]

    with remap_variables(divided):
        yield
