"""Counts of the rows that a run has trained on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow import DataFlow, RepeatedData
from towerpack.dataflow.replay import count_rows
from towerpack.training.replay.batch import Replay
from towerpack.training.replay.history import Segment


def rows_read(
    replay: Replay, segments: Sequence[Segment] | None = None
) -> dict[str, NDArray[np.int64]]:
    """Return how often a run, or some segments of it, trained on each row of each source.

    Steps and batches that were skipped, or that a later start trained again, do not count.

    Raises:
        ConfigError: The rows of the data are unknown, as for a `tf.data.Dataset`.
    """
    totals = defaultdict[str, NDArray[np.int64]](lambda: np.zeros(0, np.int64))
    for segment in replay.history.segments if segments is None else segments:
        start = segment.start
        splits = "SplitInput" in start.sources
        each = 1 if splits else start.replicas
        for worker in range(1 if splits else start.workers):
            source = replay.source(segment, worker)
            flow = getattr(source, "dataflow", None)
            if not isinstance(flow, DataFlow):
                raise ConfigError(f"The rows of a {type(source).__name__} are unknown.")
            flow = RepeatedData(flow) if start.infinite else flow
            for first, last in segment.parts():
                state, ahead = replay.history.before(segment, first)
                count = each * (last + 1 - first)
                for name, read in count_rows(
                    flow, state, count, seed=start.seed, ahead=each * ahead
                ):
                    total = np.pad(totals[name], (0, max(0, len(read) - len(totals[name]))))
                    total[: len(read)] += read
                    totals[name] = total
    return dict(totals)
