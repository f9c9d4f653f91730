from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from towerpack._core.errors import ConfigError
from towerpack.inference.predictor import Predictor
from towerpack.model import PlainModel


@dataclass(frozen=True, kw_only=True)
class PredictConfig:
    """Configuration of an `OfflinePredictor`: model, weights, inputs and outputs.

    Attributes:
        model: A `ModelDesc`. Pass either `model`, or `tower_func` and `input_signature`.
        tower_func: Tower function.
        input_signature: Spec of each input of the tower function.
        input_names: Names of the inputs of a call. None uses the inputs that the outputs need.
        output_names: Names of the outputs to compute.
        session_init: A `SmartInit`, a run directory or a checkpoint.
    """

    model: Any = None
    tower_func: Callable[..., Any] | None = None
    input_signature: Sequence[Any] = ()
    input_names: Sequence[str] | None = None
    output_names: Sequence[str] = ()
    session_init: Any = None


class OfflinePredictor(Predictor):
    """`Predictor` built from a `PredictConfig`. A call returns a list of arrays.

        predict = OfflinePredictor(PredictConfig(
            model=Model(), session_init=SmartInit('runs/mnist'), output_names=['prob']))

    Args:
        config: Model, weights, inputs and outputs.

    Raises:
        ConfigError: The configuration has no model or no weights.
    """

    def __init__(self, config: PredictConfig) -> None:
        if (config.model is None) == (config.tower_func is None) or config.session_init is None:
            raise ConfigError(
                "PredictConfig must get weights, and either a model or a tower function.",
                fix="set session_init=, and either model= or tower_func= with input_signature=",
            )
        model = config.model
        if config.tower_func is not None:
            model = PlainModel(config.input_signature, config.tower_func)
        super().__init__(model, config.session_init, config.input_names, list(config.output_names))
