"""Datapoints kept on disk."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.dataflow._content import content_of
from towerpack.dataflow._datapoints import Block, Datapoint, Positions, as_ints, to_rows
from towerpack.dataflow._flow import (
    DataFlow,
    Place,
    Wrapper,
    check_seed,
    compile_flow,
    infinite,
    is_random,
    length_of,
    open_flow,
)
from towerpack.dataflow._opening import PathLike, PerProcess, path_of
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stream import State, Stream, check_count, ended_early
from towerpack.dataflow.formats._disk_store import END, MISSING, DiskStore

Identity = dict[str, Any]


class DiskCacheData(Wrapper):
    """Keeps datapoints in a directory, so that what is below runs once, also in later runs.

    Every pass gives what epoch 0 of `ds` gives: random stages below it are frozen, those above
    are not. A datapoint is kept when it is first read, by whichever process reads it; a run that is
    stopped loses nothing, and what it was just writing is computed again.

    The directory remembers what it was made of: the stages, the names of functions, the data, and,
    if something below is random, the seed. Of files it knows where they lie, their size and when
    they were written; of arrays, and of lists of numbers, strings, bytes and arrays, every value,
    for which they are read once. What it cannot see is that a function does something else than it
    did, what a generator or a flow of your own gives, and other objects in lists: when these
    change, delete the directory, or change `version`.

    Contract: in order; length of `ds`; not random; thread-safe, and processes may share it;
    resumable as `ds` is.

    Args:
        ds: Finite; its datapoints are what `pack` takes.
        path: A directory of its own, made if it is not there, on a disk of this machine.
        seed: For what is random below; by default the run's.
        version: Of what is below.

    Raises:
        ConfigError: `ds` is infinite; `path` is a file; or, when it is read, the directory belongs
            to another pipeline, or a datapoint cannot be packed.
    """

    def __init__(
        self, ds: DataFlow, path: PathLike, *, seed: int | None = None, version: str = ""
    ) -> None:
        super().__init__(ds)
        self.path = path_of(path)
        self.seed = None if seed is None else check_seed(seed)
        self.version = version
        if infinite(length_of(ds)):
            raise ConfigError(
                f"{ds} is infinite: a disk is not.", fix="cache first and repeat afterwards"
            )
        if self.path.exists() and not self.path.is_dir():
            raise ConfigError(f"{self.path} is a file.", expected="a directory, or nothing")
        self._stores: dict[int, PerProcess[DiskStore]] = {}

    def arguments(self) -> str:
        return self.path.name

    def compile(self, place: Place) -> Node | None:
        below = self._below(place)
        inner = compile_flow(self.ds, below)
        return None if inner is None else DiskCacheNode(inner, self._store(below))

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        below = self._below(place)
        return DiskCacheStream(self.ds, below, self._store(below).get(), state)

    def _below(self, place: Place) -> Place:
        return place if self.seed is None else replace(place, seed=self.seed, branch="")

    def _store(self, place: Place) -> PerProcess[DiskStore]:
        seed = place.seed if is_random(self.ds) else -1
        if seed not in self._stores:
            identity: Identity = {"pipeline": content_of(self.ds), "version": self.version}
            if seed >= 0:
                identity |= {"seed": seed, "branch": place.branch}
            self._stores[seed] = PerProcess(partial(DiskStore, self.path, identity))
        return self._stores[seed]


class DiskCacheNode(Node):
    """Reads another plan's epoch 0, each position once."""

    def __init__(self, inner: Node, store: PerProcess[DiskStore]) -> None:
        self.inner = inner
        self.size = inner.size
        self._store = store

    def read(self, epoch: int, positions: Positions) -> Block:
        store = self._store.get()
        wanted = as_ints(positions)
        rows = store.read(wanted)
        missing = [index for index, row in enumerate(rows) if row is MISSING]
        if missing:
            places = np.array([wanted[index] for index in missing], np.int64)
            found = to_rows(self.inner.read(0, places))
            store.write(zip(places.tolist(), found, strict=True))
            for index, datapoint in zip(missing, found, strict=True):
                rows[index] = datapoint
        return rows


class DiskCacheStream(Stream):
    """Gives what is kept, and goes on with what can only be read in order."""

    def __init__(self, ds: DataFlow, place: Place, store: DiskStore, state: State) -> None:
        self._ds = ds
        self._place = place
        self._store = store
        self._position = check_count(None if state is None else state["position"], 1 << 62)
        self._saved = None if state is None else state["inner"]
        self._inner: Stream | None = None

    def __next__(self) -> Datapoint:
        datapoint = self._kept() if self._inner is None else MISSING
        if datapoint is MISSING:
            datapoint = self._computed()
        self._position += 1
        return datapoint

    def state(self) -> State:
        # Without `inner`, a resume that finds nothing on disk reads up to the position.
        inner = self._saved if self._inner is None else self._inner.state()
        return {"position": self._position, "inner": inner}

    def close(self) -> None:
        if self._inner is not None:
            self._inner.close()

    def _kept(self) -> Datapoint:
        (datapoint,) = self._store.read([self._position])
        if datapoint is not MISSING:
            self._saved = None  # it is where the state was, and no longer here
            return datapoint
        (end,) = self._store.read([END])
        if end is not MISSING and self._position >= end:
            raise StopIteration
        return MISSING

    def _computed(self) -> Datapoint:
        if self._inner is None:
            self._inner = open_flow(self._ds, self._place, 0, self._saved)
            if self._saved is None:
                self._catch_up(self._inner)
        try:
            datapoint = next(self._inner)
        except StopIteration:
            self._store.write([(END, self._position)])
            raise
        self._store.write([(self._position, datapoint)])
        return datapoint

    def _catch_up(self, inner: Stream) -> None:
        for position in range(self._position):
            try:
                datapoint = next(inner)
            except StopIteration:
                origin = "the cache or the state was made of"
                raise ended_early(self._ds, position, self._position, origin) from None
            self._store.write([(position, datapoint)])
