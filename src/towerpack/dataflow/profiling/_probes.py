"""A pipeline whose every stage tells how long it is at work.

What a stage compiles to or opens is changed in place to a subclass of its own class, in which the
methods that give datapoints are timed. So `isinstance` still holds, and engines that take plans
apart find what they know.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, NamedTuple, cast

from towerpack.dataflow._arena import Allocate
from towerpack.dataflow._blocks import Block, Positions
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import DataFlow, ParallelStage, Place, Stage, has_items, is_exact
from towerpack.dataflow._overriding import alike
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stream import State, Stream
from towerpack.dataflow.parallel._unordered import UnorderedStream
from towerpack.dataflow.profiling._lanes import Lanes
from towerpack.dataflow.stages._batch import BatchData, Collate
from towerpack.dataflow.stages._map import MapData
from towerpack.dataflow.stages._mapping import Mapper

_PROBE = "_towerpack_probe"


class Probe(NamedTuple):
    """Which stage of a measurement something belongs to."""

    lanes: Lanes
    stage: int


class Probed(NamedTuple):
    """A pipeline to be measured.

    Attributes:
        flow: A copy that writes to `lanes`.
        stages: The flows of the original, sources first.
        lanes: Where it writes.
    """

    flow: DataFlow
    stages: list[DataFlow]
    lanes: Lanes


def probed(ds: DataFlow, directory: str) -> Probed:
    """A copy of a pipeline that measures itself."""
    stages = _stages_of(ds)
    lanes = Lanes(directory, len(stages))
    clones = _clones(stages)
    for index, clone in enumerate(clones):
        if is_exact(clone):
            _watch(cast("Stage", clone), Probe(lanes, index))
        else:
            _attach(clone, Probe(lanes, index), _plain)
    return Probed(clones[-1], stages, lanes)


def cloned(ds: DataFlow) -> DataFlow:
    """A copy of a pipeline that shares its data, and neither its caches nor its workers."""
    return _clones(_stages_of(ds))[-1]


def _clones(stages: list[DataFlow]) -> list[DataFlow]:
    clones: dict[int, DataFlow] = {}
    for flow in stages:
        clone = clones[id(flow)] = copy.copy(flow)
        for name, value in vars(clone).items():
            vars(clone)[name] = _replaced(value, clones)
    return list(clones.values())


def _stages_of(ds: DataFlow) -> list[DataFlow]:
    """All flows of a pipeline, each after those that it holds."""
    seen: set[int] = set()
    found: list[DataFlow] = []

    def visit(flow: DataFlow) -> None:
        if id(flow) in seen:
            return
        seen.add(id(flow))
        for value in vars(flow).values():
            for inner in _flows_in(value):
                visit(inner)
        found.append(flow)

    visit(ds)
    return found


def _flows_in(value: object) -> list[DataFlow]:
    if isinstance(value, DataFlow):
        return [value]
    # A long list is data, and looking through it would take longer than the measurement.
    if type(value) in (list, tuple) and len(cast("list[Any]", value)) <= 1000:
        return [one for one in cast("list[Any]", value) if isinstance(one, DataFlow)]
    return []


def _replaced(value: Any, copies: dict[int, DataFlow]) -> Any:
    if not _flows_in(value):
        return value
    if isinstance(value, DataFlow):
        return copies.get(id(value), value)
    return type(value)(copies.get(id(one), one) for one in value)


Methods = Callable[[type[Any]], dict[str, Any]]


def _attach(target: Any, probe: Probe, methods: Methods) -> None:
    """Turn an object into one that is timed, unless it is one already, of a stage further down."""
    if _PROBE in vars(target):
        return
    try:
        target.__class__ = _timed(cast("type[Any]", type(target)), methods)
    except TypeError:
        return  # its class has slots: the stage above is charged for it
    setattr(target, _PROBE, probe)


def _probe_of(target: Any) -> Probe:
    return cast("Probe", vars(target)[_PROBE])


@cache
def _timed(cls: type[Any], methods: Methods) -> type[Any]:
    """A subclass that differs in nothing but that it is timed; also its name is the same."""

    def reduce(self: Any, protocol: Any) -> Any:
        # Classes that are made here cannot be found by name in another process.
        bare: Any = object.__new__(cls)
        bare.__dict__.update(self.__dict__)
        return _restored, (bare, bare.__dict__.pop(_PROBE), methods)

    return alike(cls, {"__reduce_ex__": reduce, **methods(cls)})


def _restored(bare: Any, probe: Probe, methods: Methods) -> Any:
    _attach(bare, probe, methods)
    return bare


def _node(cls: type[Node]) -> dict[str, Any]:
    def read(self: Any, epoch: int, positions: Positions) -> Block:
        probe = _probe_of(self)
        lane = probe.lanes.mine()
        block, count = None, 0
        lane.enter(probe.stage)
        try:
            block = cls.read(self, epoch, positions)
            count = len(positions)
            return block
        finally:
            lane.leave(count, block, block=True)

    def get(self: Any, epoch: int, position: int) -> Datapoint:
        return _give(_probe_of(self), cls.get, self, epoch, position)

    return {"read": read, "get": get}


def _give(probe: Probe, function: Callable[..., Datapoint], *arguments: Any) -> Datapoint:
    """Call what gives one datapoint, and charge a stage for it."""
    lane = probe.lanes.mine()
    datapoint, count = None, 0
    lane.enter(probe.stage)
    try:
        datapoint = function(*arguments)
        count = 1
        return datapoint
    finally:
        lane.leave(count, datapoint, block=False)


def _stream(cls: type[Stream]) -> dict[str, Any]:
    def following(self: Any) -> Datapoint:
        return _give(_probe_of(self), cls.__next__, self)

    return {"__next__": following}


def _watch(clone: Stage, probe: Probe) -> None:
    """Have a stage probe what it makes.

    The methods are replaced on the object: engines look at the class to know what a stage does.
    """
    compile, open = clone.compile, clone.open
    inside: list[bool] = []

    def timed_compile(place: Place) -> Node | None:
        inside.append(True)
        node = compile(place)
        inside.pop()
        if node is not None:
            _attach(node, probe, _node)
        return node

    def timed_open(place: Place, epoch: int, state: State) -> Stream:
        inside.append(True)
        stream = open(place, epoch, state)
        inside.pop()
        _attach(stream, probe, _stream)
        return stream

    vars(clone).update(compile=timed_compile, open=timed_open)
    if isinstance(clone, MapData):
        vars(clone).update(mapper=_timed_mapper(clone.mapper, probe, inside))
    if isinstance(clone, BatchData):
        vars(clone).update(stacker=_timed_stacker(clone.stacker, probe))
    if isinstance(clone, ParallelStage):
        _watch_waiting(clone, probe)


def _watch_waiting(clone: ParallelStage, probe: Probe) -> None:
    """Charge a parallel stage for the time in which it waits for its workers."""
    read_ahead, open_ahead, open_maps = clone.read_ahead, clone.open_ahead, clone.open_maps

    def timed_read_ahead(flow: DataFlow, node: Node, place: Place) -> Node | None:
        ahead = read_ahead(flow, node, place)
        if ahead is not None:
            _attach(ahead, probe, _node)
        return ahead

    def timed_open_ahead(flow: DataFlow, place: Place, epoch: int, state: State) -> Stream:
        stream = open_ahead(flow, place, epoch, state)
        if isinstance(stream, UnorderedStream):  # others are timed where they are opened
            _attach(stream, probe, _stream)
        return stream

    def timed_open_maps(flow: DataFlow, place: Place, epoch: int, state: State) -> Stream | None:
        stream = open_maps(flow, place, epoch, state)
        if stream is not None:
            _attach(stream, probe, _stream)
        return stream

    vars(clone).update(
        read_ahead=timed_read_ahead, open_ahead=timed_open_ahead, open_maps=timed_open_maps
    )


def _timed_mapper(
    mapper: Callable[[Place], Mapper], probe: Probe, inside: list[bool]
) -> Callable[[Place], Mapper]:
    """Time the map itself where an engine asks for it, rather than the stage that it belongs to."""

    def made(place: Place) -> Mapper:
        result = mapper(place)
        if not inside:
            _attach(result, probe, _map)
        return result

    return made


def _map(cls: type[Mapper]) -> dict[str, Any]:
    def call(self: Any, datapoint: Datapoint, epoch: int, position: int) -> Datapoint:
        return _give(_probe_of(self), cls.__call__, self, datapoint, epoch, position)

    return {"__call__": call}


def _timed_stacker(
    stacker: Callable[[Allocate], Collate], probe: Probe
) -> Callable[[Allocate], Collate]:
    """Time the stacking where an engine does it itself."""

    def made(allocate: Allocate) -> Collate:
        result = stacker(allocate)
        _attach(result, probe, _stack)
        return result

    return made


def _stack(cls: type[Collate]) -> dict[str, Any]:
    def call(self: Any, block: Block) -> Datapoint:
        return _give(_probe_of(self), cls.__call__, self, block)

    return {"__call__": call}


def _plain(cls: type[Any]) -> dict[str, Any]:
    """Flows of the user's: timed where they give datapoints."""
    methods: dict[str, Any] = {}
    if has_items(cls):

        def item(self: Any, index: int) -> Datapoint:
            return _give(_probe_of(self), cls.__getitem__, self, index)

        methods["__getitem__"] = item
    else:

        def iterate(self: Any) -> Iterator[Datapoint]:
            return _TimedIterator(cls.__iter__(self), _probe_of(self))

        methods["__iter__"] = iterate
    return methods


class _TimedIterator:
    """What a user's `__iter__` returned."""

    def __init__(self, iterator: Iterator[Datapoint], probe: Probe) -> None:
        self._iterator = iterator
        self._probe = probe

    def __iter__(self) -> _TimedIterator:
        return self

    def __next__(self) -> Datapoint:
        return _give(self._probe, next, self._iterator)

    def close(self) -> None:
        """Give up what the iterator holds."""
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()
