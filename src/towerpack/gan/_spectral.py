import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

from towerpack.nn import SpectralNorm, get_current_tower_context, remap_variables


@contextmanager
def spectral_norm(regex: str = ".*kernel", *, power_iterations: int = 1) -> Iterator[None]:
    """Divide the weights of layers in the block by their largest singular value.

    Miyato et al. 2018. For each weight, a non-trainable variable `LAYER/spectral_norm/u`
    approximates the singular vector. Each training step improves the approximation.

    Args:
        regex: Regular expression that must match the whole name of a trainable variable.
        power_iterations: Number of updates of `u` per step.
    """
    # Calls of a shared layer in one tower use the same divided weights.
    called = get_current_tower_context().called

    def divided(variable: tf.Variable) -> Any:
        name = variable.name.partition(":")[0]
        if len(variable.shape) < 2 or not re.fullmatch(regex, name):
            return variable
        if (spectral_norm, name) not in called:
            # Keeps 'depthwise_' and 'pointwise_', because such a layer has two kernels.
            prefix = name.rpartition("/")[2].removesuffix("kernel")
            value: Any = variable.read_value()
            called[spectral_norm, name] = SpectralNorm(
                f"{prefix}spectral_norm", value, power_iterations=power_iterations
            )
        return called[spectral_norm, name]

    with remap_variables(divided):
        yield
