"""Rows of steps that stand out: what they have in common, and the cost of each."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from math import comb
from typing import Any, NamedTuple

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.inference import Predictor
from towerpack.model import as_model
from towerpack.tower import COST
from towerpack.training.replay.batch import Replay, StepBatch

# Probability, over all features, of listing one that is as frequent in other steps.
_CHANCE = 0.01
_PLACE_IN_FILE = re.compile(r", (row|byte) [\d,]+$")


class Feature(NamedTuple):
    """Feature of rows, with its shares of the rows of some steps and of other steps.

    `kind` is 'source', 'file' or 'row', the name of an input with one value for each row (a class),
    or 'length of INPUT'.
    """

    kind: str
    value: str
    share: float
    other_share: float


def read_steps(replay: Replay, steps: Iterable[int]) -> Iterator[StepBatch]:
    """Read the batches of all replicas in some steps again."""
    for step in steps:
        for replica in range(replay.history.segment_of(step).start.all_replicas):
            yield replay.batch(step, replica)


def common_features(batches: Iterable[StepBatch], others: Iterable[StepBatch]) -> list[Feature]:
    """Return the features that are more frequent in `batches` than in `others`, surest first.

    They pass Fisher's exact test at one percent, divided by the number of features (Bonferroni).
    """
    ours, theirs = (Counter(f for b in part for f in _features(b)) for part in (batches, others))
    listed: list[tuple[float, Feature]] = []
    rows, other_rows = (_by_kind(each) for each in (ours, theirs))
    for (kind, value), count in ours.items():
        n, m, other = rows[kind], other_rows[kind], theirs[kind, value]
        chance = fisher_chance(count, n, other, m)
        if chance * len(ours) < _CHANCE:
            listed.append((chance, Feature(kind, value, count / n, other / m if m else 0.0)))
    return [feature for _, feature in sorted(listed)]


def row_costs(
    replay: Replay, model: Any, steps: Iterable[int]
) -> Iterator[tuple[StepBatch, str, list[float]]]:
    """Iterate over the batches of steps, with a checkpoint and the cost that each row has alone.

    The checkpoint is the last one before the step, or else the first one.

    Raises:
        ConfigError: The run has no checkpoint.
    """
    desc = as_model(model or replay.model)
    checkpoints = replay.history.checkpoints
    if not checkpoints:
        raise ConfigError(f"{replay.history.run} has no checkpoint.", fix="train with ModelSaver()")
    predictor = functools.lru_cache(maxsize=1)(functools.partial(Predictor, desc, outputs=COST))
    for batch in read_steps(replay, sorted(steps)):
        earlier = [path for step, path in checkpoints if step < batch.step]
        path = earlier[-1] if earlier else checkpoints[0][1]
        cost = predictor(path)
        # A dimension of fixed size is filled with copies of the row.
        sizes = {str(spec.name): spec.shape[0] or 1 for spec in cost.specs}
        costs = [
            float(
                cost(**{n: np.repeat(batch.arrays[n][i : i + 1], k, 0) for n, k in sizes.items()})
            )
            for i in range(len(batch.arrays[cost.input_names[0]]))
        ]
        yield batch, path.name, costs


def _by_kind(features: Counter[tuple[str, str]]) -> Counter[str]:
    counts = Counter[str]()
    for (kind, _), count in features.items():
        counts[kind] += count
    return counts


def _features(batch: StepBatch) -> Iterator[tuple[str, str]]:
    for origin in batch.origins:
        yield "source", origin.source
        yield "row", f"{origin.source} {origin.index:,}"
        file, places = _PLACE_IN_FILE.subn("", origin.name or "")
        if places:
            yield "file", file
    for name, array in batch.arrays.items():
        if array.ndim == 1 and array.dtype.kind != "f":
            yield from ((name, str(value)) for value in array.tolist())
        elif array.ndim == 2 and array.dtype.kind in "iu":
            for length in np.count_nonzero(array > 0, axis=1).tolist():  # 0 and -1 are padding
                yield f"length of {name}", f"below {1 << length.bit_length()}"


def fisher_chance(count: int, n: int, other: int, m: int) -> float:
    """Return the chance of at least `count` of `n` rows, if `count + other` of all rows have it."""
    having = count + other
    ways = sum(comb(n, k) * comb(m, having - k) for k in range(count, min(n, having) + 1))
    return ways / comb(n + m, having)
