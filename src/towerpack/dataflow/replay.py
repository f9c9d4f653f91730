"""Repeated reading of a pipeline from any saved state, with the origins of its datapoints."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack.dataflow._compile import ParallelStage
from towerpack.dataflow._flow import DataFlow, is_exact
from towerpack.dataflow._iteration_state import (
    DataIterator,
    PlanStream,
    Stream,
    Tally,
    read_state,
)
from towerpack.dataflow._plan import RowCounter, flat
from towerpack.dataflow._progress import progress
from towerpack.dataflow.pipeline_names import (
    flows_in,
    inputs_of,
    name_of_stage,
    pipeline_of,
    signature_of,
)
from towerpack.dataflow.stage_context import StageContext

_PIECE = 1 << 13  # datapoints that `count_rows` reads at a time

RowCounts = list[tuple[str, NDArray[np.int64]]]
"""Name of each source, and how often each of its rows was read."""


def open_traced(flow: DataFlow, state: Any, *, seed: int, ahead: int = 0) -> DataIterator:
    """Continue a pass without workers, and keep the origins of its datapoints.

    Args:
        flow: Pipeline.
        state: State of an iterator over an equal flow; `None` for the beginning of epoch 0.
        seed: Seed if `state` is `None`.
        ahead: Number of datapoints to skip. A plan reads none of them.

    Raises:
        StateError: The state belongs to another pipeline.
    """
    return _open(flow, state, seed, ahead)[1]


def _open(flow: DataFlow, state: Any, seed: int, ahead: int) -> tuple[Stream, DataIterator]:
    epoch, position, skipped, signature = 0, None, 0, signature_of(flow)
    if state is not None:
        seed, epoch, position, skipped = read_state(state, signature, seed=None, epoch=None)
    tally = Tally(skipped)
    context = StageContext(seed, tally=tally, serial=True, traced=True)
    node = flow.compile_in(context)
    left = ahead
    if node is not None and not isinstance(position, dict):
        end = sys.maxsize if node.size is None else node.size
        position, left = min((position or 0) + ahead, end), 0
    stream = PlanStream(node, epoch, position) if node else flow.open_in(context, epoch, position)
    iterator = DataIterator(stream, tally, signature, pipeline_of(flow), seed, epoch)
    with progress(f"Reading {left:,} datapoints again", left) as tick:
        for done in range(left):
            next(iterator, None)
            tick(done)
    return stream, iterator


def inexact_stages(flow: DataFlow) -> list[str]:
    """Return the stages that may not yield the same datapoints when they are read again."""
    names: list[str] = []
    for stage in flows_in(flow):
        if isinstance(stage, ParallelStage):
            inexact = not stage.workers().options.ordered
        else:
            ours = is_exact(stage) and (inputs_of(stage) or hasattr(stage, "paths"))
            inexact = not ours and stage.compile_in(StageContext(0, serial=True)) is None
        if inexact:
            names.append(name_of_stage(stage))
    return names


def count_rows(flow: DataFlow, state: Any, count: int, *, seed: int, ahead: int = 0) -> RowCounts:
    """Count how often `count` datapoints after a state read each row of each source.

    A plan only computes the indices of the rows. Other flows are read again.

    Args:
        flow, state, seed, ahead: As for `open_traced`.
        count: Number of datapoints.
    """
    stream, iterator = _open(flow, state, seed, ahead)
    with iterator:
        if isinstance(stream, PlanStream):
            return _counts_of_plan(stream, count)
        totals = defaultdict[str, Counter[int]](Counter)
        with progress(f"Reading {count:,} datapoints again", count) as tick:
            for done, _ in zip(range(count), iterator, strict=False):
                tick(done)
                for origin in iterator.origins():
                    totals[origin.source][origin.index] += 1
    return [
        (name, np.bincount([*rows], [*rows.values()]).astype(np.int64))
        for name, rows in totals.items()
    ]


def _counts_of_plan(stream: PlanStream, count: int) -> RowCounts:
    counter = RowCounter()
    node, epoch, first = stream.node.traced(counter), stream.epoch, stream.state()
    total = np.zeros(sum(size for _, size in counter.sources), np.int64)
    stop = min(first + count, sys.maxsize if node.size is None else node.size)
    for start in range(first, stop, _PIECE):
        numbers = flat(node.read(epoch, range(start, min(start + _PIECE, stop))))
        total += np.bincount(numbers, minlength=len(total))
    ends = np.cumsum([size for _, size in counter.sources])[:-1]
    return [(n, c) for (n, _), c in zip(counter.sources, np.split(total, ends), strict=True)]
