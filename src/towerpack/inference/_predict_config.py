"""The predecessor's names of a predictor and of what it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from towerpack._core.errors import ConfigError
from towerpack.inference.predictor import Predictor
from towerpack.model import PlainModel


@dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """What to predict with.

    Attributes:
        model: A `ModelDesc`; or `tower_func` and `input_signature`.
        tower_func: The tower function.
        input_signature: A spec for each of its inputs.
        input_names: Names of the inputs that will be given; None for those that are needed.
        output_names: Names of what is wanted.
        session_init: A `SmartInit`, a run directory or a checkpoint.
    """

    model: Any = None
    tower_func: Callable[..., Any] | None = None
    input_signature: Sequence[Any] = ()
    input_names: Sequence[str] | None = None
    output_names: Sequence[str] = ()
    session_init: Any = None


class OfflinePredictor(Predictor):
    """A `Predictor` made from a `PredictConfig`; gives a list of arrays.

        predict = OfflinePredictor(PredictConfig(
            model=Model(), session_init=SmartInit('runs/mnist'), output_names=['prob']))

    Raises:
        ConfigError: The configuration lacks the model, or the weights.
    """

    def __init__(self, config: PredictConfig) -> None:
        if (config.model is None) == (config.tower_func is None) or config.session_init is None:
            raise ConfigError(
                "PredictConfig needs a model and its weights.",
                expected="model=, or tower_func= with input_signature=; and session_init=",
            )
        model = config.model
        if config.tower_func is not None:
            model = PlainModel(config.input_signature, config.tower_func)
        super().__init__(model, config.session_init, config.input_names, list(config.output_names))
