"""Rows of steps that stand out: what they have in common, and the cost of each."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from math import comb
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from towerpack.inference import Predictor
from towerpack.model import as_model
from towerpack.tower import COST, TowerFunction
from towerpack.training.replay.batch import Replay, StepBatch
from towerpack.training.state.run_dir import read_record

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
        start = replay.history.segment_of(step).start
        for replica in range(start.replicas * start.workers):
            yield replay.batch(step, replica)


def common_features(batches: Iterable[StepBatch], others: Iterable[StepBatch]) -> list[Feature]:
    """Return the features that are more frequent in `batches` than in `others`, surest first.

    They pass Fisher's exact test at one percent, divided by the number of features (Bonferroni).
    """
    ours, theirs = (Counter(f for b in part for f in _features(b)) for part in (batches, others))
    totals, other_totals = Counter[str](), Counter[str]()
    for counts, total in ((ours, totals), (theirs, other_totals)):
        for (kind, _), count in counts.items():
            total[kind] += count
    listed: list[tuple[float, Feature]] = []
    for (kind, value), count in ours.items():
        other, n, m = theirs[kind, value], totals[kind], other_totals[kind]
        if count * m > other * n:
            chance = fisher_chance(count, n, other, m)
            if chance * len(ours) < _CHANCE:
                listed.append((chance, Feature(kind, value, count / n, other / m)))
    return [feature for _, feature in sorted(listed)]


def row_costs(
    replay: Replay, model: Any, steps: Iterable[int]
) -> Iterator[tuple[StepBatch, str, list[float]]]:
    """Iterate over the batches of steps with the weights and the cost of each row, alone.

    The weights are those of the last checkpoint before the step, or the initial weights of a run
    that did not load any. Without both, there are no costs.
    """
    desc = as_model(model or replay.model)
    loaded = read_record(replay.history.run)["config"].get("init") is not None

    @functools.lru_cache(maxsize=1)  # Steps are in order.
    def predictor(checkpoint: Path | None) -> Predictor:
        if checkpoint is not None:
            return Predictor(desc, checkpoint, outputs=COST)
        seed = replay.history.segments[0].start.seed
        tower = TowerFunction(desc.build_graph, desc.inputs(), seed=seed)
        return Predictor.of_tower(tower, outputs=COST)

    for batch in read_steps(replay, sorted(steps)):
        checkpoint = replay.history.checkpoint_before(batch.step)
        if checkpoint is None and loaded:
            yield batch, "no checkpoint before it", []
            continue
        cost = predictor(checkpoint)
        # A dimension of fixed size is filled with copies of the row.
        sizes = {str(spec.name): spec.shape[0] or 1 for spec in cost.specs}
        rows = range(len(batch.arrays[cost.input_names[0]]))
        costs = [
            float(
                cost(**{n: np.repeat(batch.arrays[n][i : i + 1], k, 0) for n, k in sizes.items()})
            )
            for i in rows
        ]
        yield batch, checkpoint.name if checkpoint else "initial", costs


def _features(batch: StepBatch) -> Iterator[tuple[str, str]]:
    for origin in batch.origins:
        yield "source", origin.source
        yield "row", f"{origin.source} {origin.index:,}"
        file = _PLACE_IN_FILE.sub("", origin.name or "")
        if file != (origin.name or ""):
            yield "file", file
    for name, array in batch.arrays.items():
        if array.ndim == 1 and array.dtype.kind != "f":
            yield from ((name, str(value)) for value in array.tolist())
        elif array.ndim == 2 and array.dtype.kind in "iu":
            # Trailing 0 and -1 are padding.
            unpadded = ~np.isin(array, (0, -1))[:, ::-1]
            for length in (array.shape[1] - unpadded.argmax(axis=1)).tolist():
                largest = 1 << (length - 1).bit_length()
                yield f"length of {name}", f"{largest // 2 + 1} to {largest}"


def fisher_chance(count: int, n: int, other: int, m: int) -> float:
    """Return the chance of at least `count` of `n` rows, if `count + other` of all rows have it."""
    having = count + other
    ways = sum(comb(n, k) * comb(m, having - k) for k in range(count, min(n, having) + 1))
    return ways / comb(n + m, having)
