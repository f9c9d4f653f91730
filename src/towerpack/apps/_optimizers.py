from __future__ import annotations

from itertools import pairwise
from typing import Any, Final

import keras

from towerpack._core.errors import ConfigError
from towerpack.apps._config import Optimizer
from towerpack.callbacks import (
    ScheduledHyperParamSetter,
    cosine_schedule,
    piecewise_schedule,
    polynomial_schedule,
    warmup_schedule,
)
from towerpack.config import Registry
from towerpack.training import AccumulateGradients, GlobalNormClip, ProcessGradients

_CLASSES: Final = dict(
    sgd="SGD", momentum="SGD", adam="Adam", adamw="AdamW", nadam="Nadam", rmsprop="RMSprop",
    adagrad="Adagrad", adadelta="Adadelta", ftrl="Ftrl", lion="Lion",
)  # fmt: skip
OPTIMIZERS: Registry[Any] = Registry(
    "optimizer",
    {name: getattr(keras.optimizers, cls) for name, cls in _CLASSES.items()},
    base=keras.optimizers.Optimizer,
)
_DEFAULTS: Final[dict[str, dict[str, Any]]] = {"momentum": {"momentum": 0.9}}


def make_optimizer(config: Optimizer) -> Any:
    """Create the configured optimizer, with gradient clipping and accumulation."""
    make = OPTIMIZERS.get(config.name)
    options = {**_DEFAULTS.get(config.name, {}), **config.options}
    try:
        optimizer = make(learning_rate=config.learning_rate, **options)
    except (TypeError, ValueError) as error:
        what = f"{config.name} does not accept optimizer.options={options}: {error}"
        raise ConfigError(what) from error
    if config.clip_norm is not None:
        optimizer = ProcessGradients(optimizer, [GlobalNormClip(config.clip_norm)])
    return AccumulateGradients(optimizer, config.accumulate) if config.accumulate > 1 else optimizer


def schedule_of(config: Optimizer, epochs: int, steps: int) -> ScheduledHyperParamSetter | None:
    """Create the callback that schedules the learning rate; None for a constant rate."""
    rate, end = config.learning_rate, epochs * steps
    warm = round(config.warmup * steps)
    if warm >= end:
        raise ConfigError(
            f"optimizer.warmup must be less than the {epochs} epochs, got {config.warmup}."
        )
    if config.schedule == "step":
        return piecewise_schedule([(0, rate), *_steps(config, steps)], warmup=warm)
    if config.boundaries or config.factors:
        what = "optimizer.boundaries and optimizer.factors need optimizer.schedule: step."
        raise ConfigError(what, got=f"schedule: {config.schedule}")
    if config.schedule == "constant":
        return warmup_schedule(rate, warm) if warm else None
    if config.schedule == "cosine":
        return cosine_schedule(rate, end, warmup=warm)
    return polynomial_schedule(rate, end, warmup=warm)


def _steps(config: Optimizer, steps: int) -> list[tuple[int, float]]:
    boundaries = [round(epoch * steps) for epoch in config.boundaries]
    rising = all(b > a for a, b in pairwise([0, *boundaries]))
    if not rising or len(boundaries) != len(config.factors):
        raise ConfigError(
            "optimizer.boundaries must increase, and optimizer.factors must have one value for "
            "each boundary.",
            got=f"boundaries: {config.boundaries}, factors: {config.factors}",
            expected="boundaries: [50, 75], factors: [0.1, 0.01]",
        )
    return [(b, config.learning_rate * f) for b, f in zip(boundaries, config.factors, strict=True)]
