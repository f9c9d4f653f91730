"""Loading of weights into models outside a training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import keras

from towerpack._core.errors import ConfigError
from towerpack._keras.adapter import normalization_reads_variables
from towerpack._keras.owned import find_variables
from towerpack.tower import TowerFunction
from towerpack.training.weights.match_by_name import Rename, SmartInit


def load_weights(
    model: Any,
    source: Any,
    *,
    skip: str | Sequence[str] = (),
    ignore_mismatch: bool = False,
    rename: Rename | None = None,
) -> list[str]:
    """Set the variables of a model by name, from any source that `SmartInit` reads.

    The log lists loaded variables, variables without a value and unused values.

    Args:
        model: A Keras model or layer, a `TowerFunction`, a `Predictor`, or a dict of variables by
            name. Variables of a Keras model have the names that `KerasModel` uses: paths such as
            `conv0/kernel`, with automatic numbers counted from 1. If `source` is a dict, it may
            also use Keras's own paths.
        source, skip, rename: See `SmartInit`.
        ignore_mismatch: Skip values of a different shape or type instead of raising an error.

    Returns:
        Names of the variables that were set, in the model's order.

    Raises:
        CheckpointError: The source cannot be read.
        CheckpointMismatchError: A value does not fit, or no name in the source matches.
        ConfigError: `model` is not a model, or has no variables yet.
    """
    normalization_reads_variables()
    variables = _variables_of(model, source)
    init = SmartInit(source, skip=skip, ignore_mismatch=ignore_mismatch, rename=rename)
    loaded = init.load(variables)
    return [name for name in variables if name in loaded]


def _variables_of(model: Any, source: Any) -> dict[str, Any]:
    if isinstance(model, Mapping):
        return dict(cast("Mapping[str, Any]", model))
    if isinstance(model, keras.layers.Layer):
        paths = {v.path.removeprefix(f"{model.name}/"): v.value for v in model.variables}
        by_path = isinstance(source, Mapping) and source.keys() <= paths.keys()
        variables = paths if by_path else find_variables({"": model})
    elif isinstance(model, TowerFunction):
        variables = model.store.named_variables()
    else:
        variables = getattr(model, "variables", None)
    if not isinstance(variables, Mapping) or not variables:
        raise ConfigError(
            f"load_weights needs a model with variables, but {model!r:.80} has none"
            + (" yet." if variables is not None else "."),
            expected="a built Keras model, a traced TowerFunction, a Predictor, or a dict of "
            "variables",
            fix="call the model once before, or set TrainConfig(init=SmartInit(source))",
        )
    return dict(variables)
