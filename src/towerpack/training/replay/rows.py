"""Rows of steps that stand out: what they have in common, and the cost of each."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from math import comb
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from towerpack.inference import Predictor
from towerpack.tower import COST
from towerpack.training.replay.batch import Replay, StepBatch

# Probability, over all features, of listing one that is as frequent in other steps.
_CHANCE = 0.01
_PLACE_IN_FILE = re.compile(r", (row|byte) [\d,]+$")


class Feature(NamedTuple):
    """Feature of rows, with its shares of the rows of some steps and of other steps.

    `kind` is 'source', 'file', 'folder' or 'row', the name of an input with one value for each row
    (a class), or 'length of INPUT'.
    """

    kind: str
    value: str
    share: float
    other_share: float


def read_steps(replay: Replay, steps: Iterable[int]) -> Iterator[StepBatch]:
    """Read the batches of all replicas in some steps again."""
    for step in steps:
        start = replay.history.segment_of(step).start
        for replica in range(start.replicas * start.workers):
            yield replay.batch(step, replica)


def common_features(batches: Iterable[StepBatch], others: Iterable[StepBatch]) -> list[Feature]:
    """Return the features that are more frequent in `batches` than in `others`, surest first.

    They pass Fisher's exact test at one percent, divided by the number of features (Bonferroni).
    """
    ours, theirs = (Counter(f for b in part for f in _features(b)) for part in (batches, others))
    totals, other_totals = (_by_kind(counts) for counts in (ours, theirs))
    listed: list[tuple[float, Feature]] = []
    for (kind, value), count in ours.items():
        other, n, m = theirs[kind, value], totals[kind], other_totals[kind]
        if count * m > other * n:
            chance = fisher_chance(count, n, other, m)
            if chance * len(ours) < _CHANCE:
                listed.append((chance, Feature(kind, value, count / n, other / m)))
    return [feature for _, feature in sorted(listed)]


def cost_predictor(model: Any, checkpoint: Path) -> Predictor:
    return Predictor(model, checkpoint, outputs=COST)


def row_costs(predictor: Predictor, batch: StepBatch) -> np.ndarray:
    """Return the cost of each row of a batch, alone and in inference mode."""
    sizes = {str(spec.name): spec.shape[0] or 1 for spec in predictor.specs}
    rows = [
        {name: np.repeat(batch.arrays[name][i : i + 1], n, axis=0) for name, n in sizes.items()}
        for i in range(len(batch.arrays[predictor.input_names[0]]))
    ]
    return np.array([predictor(**row) for row in rows])


def _features(batch: StepBatch) -> Iterator[tuple[str, str]]:
    for origin in batch.origins:
        yield "source", origin.source
        yield "row", f"{origin.source} {origin.index:,}"
        if origin.name is not None:
            file = _PLACE_IN_FILE.sub("", origin.name)
            if file != origin.name:
                yield "file", file
            elif "/" in file:
                yield "folder", os.path.dirname(file)
    for name, array in batch.arrays.items():
        if array.ndim == 1 and array.dtype.kind != "f":
            yield from ((name, str(value)) for value in array.tolist())
        elif array.ndim == 2 and array.dtype.kind in "iu":
            yield from ((f"length of {name}", length) for length in _lengths(array))


def _lengths(array: np.ndarray) -> Iterator[str]:
    """Return the range of each row's length, such as "17 to 32". Trailing 0 and -1 are padding."""
    unpadded = ~np.isin(array, (0, -1))[:, ::-1]
    for length in (array.shape[1] - unpadded.argmax(axis=1)).tolist():
        largest = 1 << (length - 1).bit_length()
        yield f"{largest // 2 + 1} to {largest}"


def _by_kind(counts: Counter[tuple[str, str]]) -> Counter[str]:
    totals = Counter[str]()
    for (kind, _), count in counts.items():
        totals[kind] += count
    return totals


def fisher_chance(count: int, n: int, other: int, m: int) -> float:
    """Return the chance of at least `count` of `n` rows, if `count + other` of all rows have it."""
    having = count + other
    ways = sum(comb(n, k) * comb(m, having - k) for k in range(count, min(n, having) + 1))
    return ways / comb(n + m, having)
