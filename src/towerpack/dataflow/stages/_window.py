"""Shuffles within windows, for what can only be read in order."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack._core.randomness import derive_seed
from towerpack.dataflow._arguments import integer_of
from towerpack.dataflow._blocks import Block, Positions, as_array
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import (
    DataFlow,
    Length,
    Place,
    Wrapper,
    check_seed,
    compile_flow,
    length_of,
    open_flow,
)
from towerpack.dataflow._permute import permute
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stream import State, Stream, WindowStream, inner_state
from towerpack.dataflow.stages._repeat_point import RepeatedDataPoint


class LocallyShuffleData(Wrapper):
    """Reads windows of `buffer_size` datapoints and gives each in a random order.

    Nothing leaves its window, so that a state is small (where the window began) and a resume reads
    at most one window again. Over an indexable source it compiles to a plan, with the same result;
    use it there to keep reads close together on disk.

    With `num_reuse` every datapoint comes that often, at random places of its window, which saves
    reading where that is slow (though over an indexable source each use reads again).

    Contract: random order within windows; `num_reuse` times the length of `ds`; random; thread- and
    fork-safe as `ds` is; resumable, reading at most `buffer_size` datapoints again.

    Args:
        ds: Any flow, also an infinite one.
        buffer_size: Datapoints in a window.
        num_reuse: How often each datapoint comes.
        shuffle_interval: Accepted, and without effect, for programs written for Tensorpack, which
            shuffled a moving buffer now and then; here whole windows are shuffled.
        seed: For this shuffle alone; by default the run's.
    """

    lifts = True

    def __init__(
        self,
        ds: DataFlow,
        buffer_size: int,
        num_reuse: int = 1,
        shuffle_interval: int | None = None,
        *,
        seed: int | None = None,
    ) -> None:
        super().__init__(ds)
        buffer_size = integer_of(buffer_size, "buffer_size")
        num_reuse = integer_of(num_reuse, "num_reuse")
        if buffer_size < 1:
            raise ConfigError(f"A buffer of {buffer_size} holds nothing.", expected="1 or more")
        self.buffer_size = buffer_size
        self.num_reuse = num_reuse
        self._source = ds if num_reuse == 1 else RepeatedDataPoint(ds, num_reuse)
        self._window_size = buffer_size * num_reuse
        self.seed = None if seed is None else check_seed(seed)
        self.random = seed is None

    def length(self) -> Length:
        return length_of(self._source)

    def identity(self) -> str:
        reuse = f", {self.num_reuse} times" if self.num_reuse > 1 else ""
        return f"{self.buffer_size}{reuse}"

    def compile(self, place: Place) -> Node | None:
        inner = compile_flow(self._source, place)
        if inner is None:
            return None
        return WindowNode(inner, self._window_size, place.key(self, self.seed))

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        key = derive_seed(place.key(self, self.seed), epoch)

        def shuffled(window: int, datapoints: list[Datapoint]) -> list[Datapoint]:
            return [datapoints[i] for i in _order(key, window, len(datapoints)).tolist()]

        inner = open_flow(self._source, place.kept_in_order(), epoch, inner_state(state))
        return WindowStream(inner, self._window_size, shuffled, state, place.tally)


class WindowNode(Node):
    """Reads another plan in an order that is permuted within windows."""

    def __init__(self, inner: Node, window_size: int, key: int) -> None:
        self.inner = inner
        self.passes_on = (inner,)
        self.size = inner.size
        self.chunk = inner.chunk
        self._window_size = window_size
        self._key = key
        self._last: tuple[int, int, NDArray[np.int64]] | None = None

    def read(self, epoch: int, positions: Positions) -> Block:
        where = as_array(positions)
        windows = where // self._window_size
        sources = np.empty_like(where)
        for window in np.unique(windows).tolist():
            inside = windows == window
            begin = window * self._window_size
            order = self._window_order(epoch, window)
            sources[inside] = order[where[inside] - begin] + begin
        return self.inner.read(epoch, sources)

    def _window_order(self, epoch: int, window: int) -> NDArray[np.int64]:
        last = self._last
        if last is not None and last[0] == window and last[1] == epoch:
            return last[2]
        count = self._window_size
        if self.size is not None:
            count = min(count, self.size - window * self._window_size)
        order = _order(derive_seed(self._key, epoch), window, count)
        self._last = (window, epoch, order)
        return order


def _order(key: int, window: int, count: int) -> NDArray[np.int64]:
    return permute(np.arange(count, dtype=np.int64), count, derive_seed(key, window))
