"""Counts of the rows that a run has read."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow import DataFlow, RepeatedData
from towerpack.dataflow.replay import count_rows
from towerpack.training.replay.batch import Replay


def rows_read(replay: Replay) -> dict[str, NDArray[np.int64]]:
    """Return how often the steps of a run read each row of each source, by the source's name.

    Sources of the same name get numbers. Steps that later starts trained again do not count.

    Raises:
        ConfigError: The rows of the data are unknown, as for a `tf.data.Dataset`.
    """
    totals = defaultdict[str, Any](lambda: np.zeros(0, np.int64))
    for segment in replay.history.segments:
        first, stop = segment.start.step + 1, segment.stop
        splits = "SplitInput" in segment.start.sources
        for worker in range(1 if splits else segment.start.workers):
            source = replay.source(segment, worker)
            state, _ = replay.history.before(segment, first, nearest=not segment.start.known)
            steps = stop - first + 1 + sum(p < stop for p in segment.start.passed)
            flow = getattr(source, "dataflow", None)
            if not isinstance(flow, DataFlow):
                raise ConfigError(f"The rows of a {type(source).__name__} are unknown.")
            flow = RepeatedData(flow) if segment.start.infinite else flow
            batches = steps if splits else steps * segment.start.replicas
            numbers = defaultdict[str, int](int)
            for name, read in count_rows(flow, state, batches, seed=segment.start.seed):
                numbers[name] += 1
                key = name if numbers[name] == 1 else f"{name} #{numbers[name]}"
                total = np.zeros(max(len(read), len(totals[key])), np.int64)
                total[: len(read)] += read
                total[: len(totals[key])] += totals[key]
                totals[key] = total
    return dict(totals)
