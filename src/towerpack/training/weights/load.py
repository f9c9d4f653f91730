"""Weights of elsewhere into variables that are there: outside of a training."""

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
    """Set the variables of something by name, from any source that `SmartInit` reads.

    The log lists what was loaded, what got no value, and what was not used.

    Args:
        model: A Keras model or layer, a `TowerFunction`, a `Predictor`, or a dict of variables by
            name. Variables of a Keras model have the names that `KerasModel` gives them: paths such
            as `conv0/kernel`, with automatic numbers counted from the start. A dict as `source` may
            also use the paths as Keras gives them.
        source: As for `SmartInit`.
        skip: As for `SmartInit`.
        ignore_mismatch: Leave out what has another shape or type, instead of refusing.
        rename: Names in the source to names in the model: a dict, or a function.

    Returns:
        The names of the variables that got a value, in the model's order.

    Raises:
        CheckpointError: The source cannot be read.
        CheckpointMismatchError: A value does not fit, or no name of the source is the model's.
        ConfigError: The model has no variables yet, or is none.
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
        found = paths if by_path else find_variables({"": model})
    elif isinstance(model, TowerFunction):
        found = model.store.named_variables()
    else:
        found = getattr(model, "variables", None)
    if not isinstance(found, Mapping) or not found:
        raise ConfigError(
            f"{model!r:.80} has no variables by name" + (" yet." if found is not None else "."),
            expected="a Keras model that has been built, a TowerFunction that has been traced, a "
            "Predictor, or a dict of variables",
            fix="call the model once; for a ModelDesc, TrainConfig(init=SmartInit(source))",
        )
    return dict(found)
