"""Counts of the rows that a run has trained on."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow import DataFlow, RepeatedData
from towerpack.dataflow.replay import read_rows
from towerpack.training.replay.batch import Replay


def rows_read(replay: Replay) -> tuple[int, dict[str, NDArray[np.int64]]]:
    """Return the number of steps with this pipeline, and how often they trained on each row.

    Steps and batches that were skipped, or that a later start trained again, do not count.

    Raises:
        ConfigError: No step had this pipeline, or its rows are unknown, as for `tf.data.Dataset`.
    """
    segments = replay.history.segments
    totals, steps = defaultdict[str, NDArray[np.int64]](lambda: np.zeros(0, np.int64)), 0
    for segment in [each for each in segments if not replay.difference(each)] or segments:
        start = segment.start
        splits = "SplitInput" in start.sources
        each = 1 if splits else start.replicas
        for first, last in segment.parts():
            steps += last + 1 - first
            state, ahead = replay.history.before(segment, first)
            for worker in range(1 if splits else start.workers):
                source = replay.source(segment, worker)
                flow = getattr(source, "dataflow", None)
                if not isinstance(flow, DataFlow):
                    raise ConfigError(f"The rows of a {type(source).__name__} are unknown.")
                flow = RepeatedData(flow) if start.infinite else flow
                count = each * (last + 1 - first)
                read = read_rows(flow, state, count, seed=start.seed, ahead=each * ahead)
                for name, size, rows in read:
                    before = totals[name]
                    totals[name] = np.bincount(rows, minlength=max(size, len(before)))
                    totals[name][: len(before)] += before
    return steps, dict(totals)
