"""Several flows in a random order, each in its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack._core.randomness import derive_seed
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import (
    DataFlow,
    Length,
    Place,
    Stage,
    infinite,
    length_of,
    pipeline_of,
    require_flows,
)
from towerpack.dataflow._permute import permute
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stream import State, Stream, check_count
from towerpack.dataflow.stages._mix import MixNode, compile_inputs, open_inputs

Array = NDArray[np.int64]


class RandomMixData(Stage):
    """All datapoints of several flows, which take turns in a random order that is new in each pass.

    Every interleaving is equally likely, so each flow is spread evenly over the pass, whatever its
    length. The order of a pass takes 16 bytes of memory per datapoint.

    Contract: each flow in its own order; sum of the lengths; random; thread- and fork-safe as the
    flows are; resumable as they are, at once if all are indexable.

    Args:
        df_lists: One or more flows of known length.

    Raises:
        ConfigError: A length is not known, or infinite.
        DataFlowError: A flow is shorter than its length says; raised while iterating.
    """

    random = True

    def __init__(self, df_lists: Sequence[DataFlow]) -> None:
        self.flows = require_flows(df_lists, self)
        if not self.flows:
            raise ConfigError("RandomMixData was given no flow.", expected="one or more")
        for flow in self.flows:
            length = length_of(flow)
            if length is None or infinite(length):
                raise ConfigError(
                    f"RandomMixData needs lengths, and that of {flow} is "
                    f"{'not known' if length is None else 'infinite'}.",
                    fix="MixData mixes flows of any length",
                )

    @property
    def inputs(self) -> tuple[DataFlow, ...]:
        return tuple(self.flows)

    def sizes(self) -> list[int]:
        """The lengths of the flows."""
        return [len(flow) for flow in self.flows]

    def length(self) -> Length:
        return sum(self.sizes())

    def identity(self) -> str:
        return ", ".join(map(str, self.sizes()))

    def compile(self, place: Place) -> Node | None:
        nodes = compile_inputs(self.flows, place)
        return None if nodes is None else MixNode(nodes, RandomMix(self.sizes(), place.key(self)))

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        return RandomMixStream(self, place, epoch, state)


class RandomMix:
    """Which position of which flow each position of the mix is.

    Args:
        sizes: Of the flows.
        key: What the order is a function of, with the epoch.

    Attributes:
        size: Datapoints in the mix.
    """

    def __init__(self, sizes: Sequence[int], key: int) -> None:
        self.size = sum(sizes)
        self._ends = np.cumsum(sizes)
        self._key = key
        self._last: tuple[int, Array, Array] | None = None

    def locate(self, epoch: int, positions: Array) -> tuple[Array, Array]:
        """For each position the flow, and the position in it."""
        _, flows, local = self._order(epoch)
        return flows[positions], local[positions]

    def locate_one(self, epoch: int, position: int) -> tuple[int, int]:
        """`locate` for a single position."""
        _, flows, local = self._order(epoch)
        return int(flows[position]), int(local[position])

    def _order(self, epoch: int) -> tuple[int, Array, Array]:
        last = self._last
        if last is not None and last[0] == epoch:
            return last
        where = np.arange(self.size, dtype=np.int64)
        drawn = permute(where, self.size, derive_seed(self._key, epoch))
        flows = np.searchsorted(self._ends, drawn, side="right")
        local = np.empty_like(where)
        local[np.argsort(flows, kind="stable")] = where
        starts = np.concatenate(([0], self._ends[:-1]))
        last = (epoch, flows, local - starts[flows])
        self._last = last  # one assignment: safe between threads
        return last

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_last": None}


class RandomMixStream(Stream):
    """Takes turns between streams of known lengths."""

    def __init__(self, flow: RandomMixData, place: Place, epoch: int, state: State) -> None:
        self._flows = flow.flows
        self._mix = RandomMix(flow.sizes(), place.key(flow))
        self._epoch = epoch
        saved = None if state is None else state["position"]
        self._position = check_count(saved, self._mix.size)
        states = None if state is None else state["inner"]
        self._streams = open_inputs(flow.flows, place, epoch, states)

    def __next__(self) -> Datapoint:
        if self._position >= self._mix.size:
            raise StopIteration
        flow, local = self._mix.locate_one(self._epoch, self._position)
        try:
            datapoint = next(self._streams[flow])
        except StopIteration:
            raise DataFlowError(
                f"{pipeline_of(self._flows[flow])} ended after {local} datapoints.",
                expected=f"{len(self._flows[flow])}, as its len() says",
            ) from None
        self._position += 1
        return datapoint

    def state(self) -> State:
        return {
            "position": self._position,
            "inner": [stream.state() for stream in self._streams],
        }

    def close(self) -> None:
        for stream in self._streams:
            stream.close()
