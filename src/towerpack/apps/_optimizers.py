"""Optimizers by name, and how the learning rate moves."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, Final

import keras

from towerpack._core.errors import ConfigError
from towerpack.apps._config import Optimizer
from towerpack.callbacks import ScheduledHyperParamSetter
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
)
_DEFAULTS: Final[dict[str, dict[str, Any]]] = {"momentum": {"momentum": 0.9}}
# A curve is drawn as so many straight lines.
_PIECES: Final = 100


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
    if config.schedule != "step" and (config.boundaries or config.factors):
        raise ConfigError(
            "optimizer.boundaries and factors are for schedule: step.",
            got=f"schedule: {config.schedule}",
        )
    if config.schedule == "step":
        return _by_line(_steps(config, steps), warm, rate)
    if config.schedule == "constant":
        return _by_line([(warm, rate), (end, rate)], warm, rate) if warm else None
    at = [warm + round((end - warm) * i / _PIECES) for i in range(_PIECES + 1)]
    shares = [(step - warm) / (end - warm) for step in at]
    falls = {
        "linear": [1 - share for share in shares],
        "cosine": [(1 + math.cos(math.pi * share)) / 2 for share in shares],
    }[config.schedule]
    return _by_line(dict(zip(at, (rate * f for f in falls), strict=True)).items(), warm, rate)


def _steps(config: Optimizer, steps: int) -> list[tuple[int, float]]:
    at = [round(epoch * steps) for epoch in config.boundaries]
    if len(at) != len(config.factors) or any(b <= a for a, b in pairwise([0, *at])):
        raise ConfigError(
            "optimizer: step needs a factor for each boundary, and boundaries that rise.",
            got=f"boundaries: {config.boundaries}, factors: {config.factors}",
            expected="boundaries: [50, 75], factors: [0.1, 0.01]",
        )
    values = [config.learning_rate * factor for factor in (1.0, *config.factors)]
    points = [(0, values[0])]
    for step, before, after in zip(at, values, values[1:], strict=False):
        # A jump is a line over one step.
        points += [(step - 1, before), (step, after)]
    return points


def _by_line(points: Any, warm: int, rate: float) -> ScheduledHyperParamSetter:
    rising = [(0, rate / warm), (warm - 1, rate)] if warm else []
    table = dict([*rising, *(point for point in points if point[0] >= warm)])
    return ScheduledHyperParamSetter(
        "learning_rate", sorted(table.items()), interp="linear", step_based=True
    )
