"""Repeated reading of a pipeline from any saved state, with the origins of its datapoints."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack.dataflow._compile import ParallelStage
from towerpack.dataflow._flow import DataFlow, is_exact
from towerpack.dataflow._iteration_state import DataIterator, Tally, TracedStream, read_state
from towerpack.dataflow._progress import progress
from towerpack.dataflow.pipeline_names import (
    flows_in,
    inputs_of,
    name_of_stage,
    pipeline_of,
    signature_of,
)
from towerpack.dataflow.stage_context import StageContext

_PIECE = 1 << 13  # datapoints that `read_rows` reads at a time


def open_traced(flow: DataFlow, state: Any, *, seed: int, ahead: int = 0) -> DataIterator:
    """Continue a pass without workers. Its datapoints are `Traced`: they know their origins.

    Args:
        flow: Pipeline.
        state: State of an iterator over an equal flow; `None` for the beginning of epoch 0.
        seed: Seed if `state` is `None`.
        ahead: Number of datapoints to skip. A plan reads none of them.

    Raises:
        StateError: The state belongs to another pipeline.
    """
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
    stream = flow.open_in(context, epoch, position)
    iterator = DataIterator(stream, tally, signature, pipeline_of(flow), seed, epoch)
    with progress(f"Reading {left:,} datapoints again", left) as tick:
        for done in range(left):
            next(iterator, None)
            tick(done)
    return iterator


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


def read_rows(
    flow: DataFlow, state: Any, count: int, *, seed: int, ahead: int = 0
) -> Iterator[tuple[str, int, NDArray[np.int64]]]:
    """Iterate over sources, their sizes, and indices of rows that `count` datapoints contain.

    A plan only computes the indices. Other flows are read again, and their sizes are 0.

    Args:
        flow, state, seed, ahead: As for `open_traced`.
        count: Number of datapoints.
    """
    with open_traced(flow, state, seed=seed, ahead=ahead) as iterator:
        stream = iterator.stream
        if isinstance(stream, TracedStream) and (tracer := stream.tracer) is not None:
            first, size = stream.state(), tracer.root.size
            stop = min(first + count, sys.maxsize if size is None else size)
            for start in range(first, stop, _PIECE):
                rows = tracer.numbers(stream.epoch, range(start, min(start + _PIECE, stop)))
                for (name, source), indices in zip(tracer.sources.items(), rows, strict=True):
                    yield name, source.size or 0, indices
            return
        read = defaultdict[str, list[int]](list)
        with progress(f"Reading {count:,} datapoints again", count) as tick:
            for done, row in zip(range(count), iterator, strict=False):
                tick(done)
                for origin in row.origins:
                    read[origin.source].append(origin.index)
    yield from ((name, 0, np.array(indices)) for name, indices in read.items())
