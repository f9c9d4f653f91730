"""Frozen batch normalisation: it uses its moving averages, and they stay."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from towerpack._keras.adapter import freezable_batch_norms, moving_mean_of
from towerpack.nn._context import get_current_tower_context


@contextmanager
def frozen_statistics(regexes: str | Sequence[str]) -> Iterator[None]:
    """Let batch normalisation inside work as in a prediction, as `BatchNorm(…, training=False)`.

    It is about `BatchNorm`, `BatchRenorm` and `keras.layers.BatchNormalization`, wherever they were
    made. `gamma` and `beta` are trained all the same, unless they are frozen, too.

    Args:
        regexes: For whole names of variables, as in `TrainConfig(frozen=)`, which does this by
            itself: those layers are meant whose `moving_mean` matches one of them.

    Raises:
        LayerError: There is no tower.
    """
    store = get_current_tower_context().store
    patterns = [regexes] if isinstance(regexes, str) else list(regexes)
    names: dict[int, str] = {}

    def matches(layer: Any) -> bool:
        mean = moving_mean_of(layer)
        if id(mean) not in names:
            names.update({id(v): name for name, v in store.named_variables().items()})
        name = names.get(id(mean), "")
        return any(re.fullmatch(pattern, name) for pattern in patterns)

    freezable_batch_norms(is_frozen)
    token = _around.set((*_around.get(), matches))
    try:
        yield
    finally:
        _around.reset(token)


def is_frozen(layer: Any) -> bool:
    """True if the statistics of a batch normalisation are frozen where it is called."""
    return any(matches(layer) for matches in _around.get())


# Of each `frozen_statistics` around.
_around: ContextVar[tuple[Callable[[Any], bool], ...]] = ContextVar("frozen", default=())
