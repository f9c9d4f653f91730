"""What a probe costs, to be taken off again: it matters where a datapoint takes a microsecond."""

from __future__ import annotations

import time
from dataclasses import dataclass
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import DataFlow, Place, Stage, Wrapper, open_flow
from towerpack.dataflow._stream import State, Stream
from towerpack.dataflow.profiling._lanes import CALLS, CALLS_BELOW, WALL
from towerpack.dataflow.profiling._probes import probed

_ROUNDS, _CALLS = 9, 300


@dataclass(frozen=True)
class Cost:
    """Seconds that a timed call takes more than another, where they are charged.

    Attributes:
        own: To the stage that is called.
        above: To the one that calls.
    """

    own: float
    above: float

    def taken_off(self, table: NDArray[np.float64]) -> NDArray[np.float64]:
        """The seconds of each stage of a lane, without the probes."""
        calls = self.own * table[:, CALLS] + self.above * table[:, CALLS_BELOW]
        return np.maximum(0.0, table[:, WALL] - calls)


def cost_of_probes() -> Cost:
    """Measure it: two stages that do nothing, with probes and without.

    In rounds, of which the typical one counts: other programs interrupt some of them, and one
    interruption lasts as long as thousands of calls.
    """
    bottom, both, below, above = np.median([_round() for _ in range(_ROUNDS)], axis=0).tolist()
    own = max(0.0, below - bottom)
    return Cost(own, max(0.0, above - (both - bottom) - own))


def _round() -> tuple[float, float, float, float]:
    """Seconds a call: of the lower stage, of both, and what probes say of the lower and upper."""
    bottom, both = _seconds(_Nothing()), _seconds(_PassOn(_Nothing()))
    with TemporaryDirectory() as directory:
        flow, _, lanes = probed(_PassOn(_Nothing()), directory)
        _seconds(flow)
        (table,) = lanes.read().values()
    below, above = (table[:, WALL] / _CALLS).tolist()
    return bottom, both, below, above


def _seconds(flow: DataFlow) -> float:
    stream = open_flow(flow, Place(0), 0, None)
    begin = time.perf_counter()
    for _ in range(_CALLS):
        next(stream)
    return (time.perf_counter() - begin) / _CALLS


class _Nothing(Stage):
    def open(self, place: Place, epoch: int, state: State) -> Stream:
        return _NothingStream()


class _NothingStream(Stream):
    def __next__(self) -> Datapoint:
        return None

    def state(self) -> State:
        return None


class _PassOn(Wrapper):
    def open(self, place: Place, epoch: int, state: State) -> Stream:
        return _PassOnStream(open_flow(self.ds, place, epoch, state))


class _PassOnStream(Stream):
    def __init__(self, inner: Stream) -> None:
        self._inner = inner

    def __next__(self) -> Datapoint:
        return next(self._inner)

    def state(self) -> State:
        return None
