"""Optimizers by name, and how the learning rate moves."""

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

OPTIMIZERS: Registry[Any] = Registry(
    "optimizer",
    {
        "sgd": keras.optimizers.SGD,
        "momentum": keras.optimizers.SGD,
        "adam": keras.optimizers.Adam,
        "adamw": keras.optimizers.AdamW,
        "nadam": keras.optimizers.Nadam,
        "rmsprop": keras.optimizers.RMSprop,
        "adagrad": keras.optimizers.Adagrad,
        "adadelta": keras.optimizers.Adadelta,
        "ftrl": keras.optimizers.Ftrl,
        "lion": keras.optimizers.Lion,
    },
    base=keras.optimizers.Optimizer,
)
_DEFAULTS: Final[dict[str, dict[str, Any]]] = {"momentum": {"momentum": 0.9}}


def make_optimizer(config: Optimizer) -> Any:
    """The optimizer, wrapped by what the configuration asks for.

    Raises:
        ConfigError: The name or an option is unknown.
    """
    make = OPTIMIZERS.get(config.name)
    options = {**_DEFAULTS.get(config.name, {}), **config.options}
    try:
        made = make(learning_rate=config.learning_rate, **options)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"optimizer.options {options} do not fit {config.name}: {error}"
        ) from error
    if config.clip_norm is not None:
        made = ProcessGradients(made, [GlobalNormClip(config.clip_norm)])
    return AccumulateGradients(made, config.accumulate) if config.accumulate > 1 else made


def schedule_of(config: Optimizer, epochs: int, steps: int) -> ScheduledHyperParamSetter | None:
    """The callback that moves the learning rate, by steps; None where it stays.

    Args:
        config: What is wanted.
        epochs: Of the whole run.
        steps: In an epoch.

    Raises:
        ConfigError: Boundaries and factors do not belong together.
    """
    rate, end = config.learning_rate, epochs * steps
    warm = round(config.warmup * steps)
    if warm >= end:
        raise ConfigError(f"optimizer.warmup={config.warmup}.", expected=f"less than {epochs}")
    if config.schedule == "step":
        return piecewise_schedule([(0, rate), *_steps(config, steps)], warmup=warm)
    if config.boundaries or config.factors:
        raise ConfigError(
            "optimizer.boundaries and factors are for schedule: step.",
            got=f"schedule: {config.schedule}",
        )
    if config.schedule == "constant":
        return warmup_schedule(rate, warm) if warm else None
    if config.schedule == "cosine":
        return cosine_schedule(rate, end, warmup=warm)
    return polynomial_schedule(rate, end, warmup=warm)


def _steps(config: Optimizer, steps: int) -> list[tuple[int, float]]:
    at = [round(epoch * steps) for epoch in config.boundaries]
    if len(at) != len(config.factors) or any(b <= a for a, b in pairwise([0, *at])):
        raise ConfigError(
            "optimizer: step needs a factor for each boundary, and boundaries that rise.",
            got=f"boundaries: {config.boundaries}, factors: {config.factors}",
            expected="boundaries: [50, 75], factors: [0.1, 0.01]",
        )
    return [(b, config.learning_rate * f) for b, f in zip(at, config.factors, strict=True)]
