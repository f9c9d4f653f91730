"""DataFlow, the base that users derive from, and Stage, the base of everything exact."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, TypeGuard, cast, overload

import numpy as np

from towerpack._core.arguments import KeepsArguments
from towerpack._core.errors import ConfigError, InternalError, StateError
from towerpack._core.logs import get_logger
from towerpack._core.randomness import derive_seed, fresh_seed
from towerpack.dataflow._arguments import integer_of
from towerpack.dataflow._datapoints import Datapoint, duplicate
from towerpack.dataflow._plan import Node, Plan
from towerpack.dataflow._stream import (
    DataIterator,
    PlanStream,
    State,
    Stream,
    Tally,
    read_state,
)
from towerpack.dataflow._user_code import (
    AMBIENT,
    Ambient,
    IndexNode,
    ReadyNode,
    ReplayStream,
    is_ours,
    make_ready,
    overrides_reset,
    prepare_on_use,
    with_method,
)

log = get_logger(__name__)

Length = int | float | None
"""Datapoints in a pass: an integer, `math.inf`, or `None` for unknown."""


class DataFlow:
    """A stream of datapoints that can be iterated again and again.

    A subclass needs `__iter__`, a generator, and if it knows its length, `__len__`. One that has
    `__len__` and `__getitem__` (the i-th datapoint, for i in 0..len-1), and no `__iter__`, is
    *indexable*: it can be shuffled exactly, and resumes at once. An `__iter__` is what counts where
    there is one; in it, `super().__iter__()` gives what there would be without it.

    `reset_state` of a subclass is called once in each process, before the flow is read.
    The n-th pass of a flow is its epoch n, and everything random in a pass is a function of
    (seed, epoch, position).

    Contract: order as `__iter__` gives it; thread- and fork-safe as far as its `__iter__` is;
    resumable, by iterating again and skipping, if it gives the same datapoints again.
    """

    # Mangled names, so that no attribute of a subclass can meet them.
    __passes: int = 0
    __seed: int | None = None

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        prepare_on_use(cls)

    def __iter__(self) -> Iterator[Datapoint]:
        # In a subclass that has one of its own, this is its `super().__iter__()`.
        return with_method(self, DataFlow.__iter__).iterate()

    def __len__(self) -> int:
        # Not the whole pipeline: naming it would ask for the length again.
        raise TypeError(f"the length of {type(self).__name__} is not known")

    def __bool__(self) -> bool:
        return True  # `if flow:` would otherwise ask for the length

    def __repr__(self) -> str:
        return pipeline_of(self)

    def reset_state(self) -> None:
        """Call those of the flows that are wrapped; programs need not call it."""
        for inner in inputs_of(self):
            make_ready(inner)

    def iterate(
        self, *, state: State = None, epoch: int | None = None, seed: int | None = None
    ) -> DataIterator:
        """Start or continue a pass.

        Args:
            state: From `state()` of an iterator over an equal flow, to continue there. It carries
                seed and epoch.
            epoch: Which pass; by default the flow counts them.
            seed: What randomness is a function of; by default one is drawn, logged, and kept for
                all passes over this flow.

        Raises:
            ConfigError: Seed or epoch is no integer, or out of range.
            StateError: The state is of another pipeline, or disagrees with seed or epoch.
        """
        signature = signature_of(self)
        seed = check_seed(seed)
        epoch = None if epoch is None else integer_of(epoch, "epoch", 0)
        at, skipped = None, 0
        ambient = AMBIENT.get()  # code of the user's that is at work, if it is
        lent = ambient if ambient and state is None and stands_for_code(self) else None
        if state is not None:
            seed, epoch, at, skipped = read_state(state, signature, seed=seed, epoch=epoch)
            self.__passes, self.__seed = epoch + 1, seed
        elif ambient is not None:
            its_seed, its_epoch = (lent.seed, lent.epoch) if lent else ambient.next_pass(self)
            seed = its_seed if seed is None else seed
            epoch = its_epoch if epoch is None else epoch
        else:
            if epoch is None:
                epoch = self.__passes
                self.__passes += 1
            seed = self.__own_seed() if seed is None else seed
        tally = Tally(skipped)
        place = Place(seed, tally=tally, in_order=ambient is not None, ambient=lent)
        try:
            stream = open_flow(self, place, epoch, at)
        except (KeyError, TypeError, IndexError) as error:
            if state is None:
                raise
            raise StateError(
                f"The state does not have the structure of this pipeline ({type(error).__name__}: "
                f"{error}).",
                fix="the state is damaged; start afresh or take another one",
            ) from error
        return DataIterator(stream, tally, signature, pipeline_of(self), seed, epoch)

    def plan(self, *, seed: int | None = None) -> Plan:
        """Random access to every pass. Parallel stages have no part in it.

        Raises:
            ConfigError: Something in the pipeline can only be read in order.
        """
        seed = self.__own_seed() if seed is None else check_seed(seed)
        root = require_plan(self, Place(seed, serial=True), f"{self} has no plan")
        return Plan(root, seed=seed, signature=signature_of(self), pipeline=pipeline_of(self))

    def __own_seed(self) -> int:
        if self.__seed is None:
            self.__seed = fresh_seed()
            if is_random(self):
                log.info("%s was given no seed and drew %d", self, self.__seed)
                if is_shard(self):
                    log.warning(
                        "%s is one of several parts, and was given no seed: other hosts draw other "
                        "seeds, and what they read overlaps. Call iterate(seed=...).",
                        self,
                    )
        return self.__seed


class ProxyDataFlow(DataFlow):
    """Wrap another flow: derive from it and override `__iter__`.

    Seed and epoch reach `self.ds` by themselves, so `for dp in self.ds` is all it takes.

    Contract: order and length of `ds`; thread- and fork-safe as `ds` is; resumable by iterating
    again and skipping. If the length changes, override `__len__`.

    Args:
        ds: The flow to wrap.
    """

    def __init__(self, ds: DataFlow) -> None:
        self.ds = require_flow(ds, self)

    def __iter__(self) -> Iterator[Datapoint]:
        make_ready(self)
        return self.iterate() if _is_indexable(self) else iter(self.ds)

    def __len__(self) -> int:
        return len(self.ds)


class RNGDataFlow(DataFlow):
    """A flow whose `__iter__` draws random numbers, from `self.rng`.

    Contract: as `DataFlow`; random by `rng`, which belongs to the pass.
    """

    __fallback: np.random.Generator | None = None

    @property
    def rng(self) -> np.random.Generator:
        """The generator of the running pass, a function of (seed, epoch, place in the pipeline).

        In a plain `for dp in flow` over this flow itself, where nothing tells its seed, it is an
        unseeded one. Use `flow.iterate()`, as all stages do.
        """
        ambient = AMBIENT.get()
        if ambient is not None:
            return ambient.generator(self)
        if self.__fallback is None:
            self.__fallback = np.random.default_rng()
        return self.__fallback


@dataclass(frozen=True)
class Place:
    """Where in a pipeline a stage stands, and with which seed it runs.

    Args:
        seed: The run's.
        branch: Which inputs of stages with several were taken from the outermost down to here.
        tally: What the iteration counts.
        serial: Parallel stages do nothing: the caller, or a worker, reads by itself.
        workers: The parallel stage, further up, whose workers apply the maps found here.
        in_order: A resume may read again, and must find the same, even with `ordered=False`.
        kept: A stage above keeps datapoints while it reads the next ones.
        ambient: The pass of the user's code around this flow, if this only hands on such code.
    """

    seed: int
    branch: str = ""
    tally: Tally | None = None
    serial: bool = False
    workers: ParallelStage | None = None
    in_order: bool = False
    kept: bool = False
    ambient: Ambient | None = None

    def child(self, index: int) -> Place:
        """The place of input `index` of a stage with several inputs."""
        return replace(self, branch=f"{self.branch}{index}.")

    def kept_in_order(self) -> Place:
        """The place of what a stage keeps and may read again."""
        return replace(self, in_order=True, kept=True)

    def key(self, flow: DataFlow, own_seed: int | None = None) -> int:
        """The seed of everything random in `flow`; a seed of its own makes it alike everywhere.

        It depends on the branch and the height above the source, so that wrapping a pipeline in
        further stages changes nothing in it, and no two stages share it.
        """
        if own_seed is not None:
            return derive_seed(own_seed, type(flow).__name__)
        return derive_seed(self.seed, self.branch, height_of(flow))


class Stage(DataFlow):
    """Base of exact sources and stages: they compile to a plan, or open a stream with a state.

    Derive from it for a stage whose state is cheaper than iterating again; otherwise `DataFlow`
    with `__iter__` does. A subclass that overrides `__iter__` is treated as a plain `DataFlow`.

    Attributes:
        transparent: It hands on what it wraps, unchanged; states and random keys ignore it.
        random: It draws from the run's seed.
        structural: It only restructures its one input, so the workers of a parallel stage below do
            its work too.
        shard: It is one of several parts, which fit together if they are given one seed.
        runs_code: It iterates code of the user's, which may use the memory of a datapoint again.
        without_effect: Names of arguments that do not change the datapoints.
    """

    transparent: bool = False
    random: bool = False
    structural: bool = False
    shard: bool = False
    runs_code: bool = False
    without_effect: tuple[str, ...] = ()

    @property
    def inputs(self) -> tuple[DataFlow, ...]:
        """The flows that it wraps; none for a source."""
        return ()

    def length(self) -> Length:
        """Datapoints in a pass: an integer, `math.inf`, or `None` for unknown."""
        return None

    def arguments(self) -> str:
        """What stands in the brackets when messages name this stage."""
        return self.identity()

    def identity(self) -> str:
        """What must agree between two runs for positions to mean the same."""
        return ""

    def content(self) -> str:
        """What tells this stage from others that give other datapoints, as far as can be seen."""
        seed = getattr(self, "seed", None)
        return self.arguments() if seed is None else f"{self.arguments()}, seed={seed}"

    def compile(self, place: Place) -> Node | None:
        """The plan, or `None` if this stage, or what it wraps, can only be read in order."""
        return None

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        """Start (`state=None`) or continue a pass; called only where there is no plan."""
        raise InternalError(f"{type(self).__name__} has neither a plan nor a stream.")

    def __len__(self) -> int:
        length = self.length()
        if length is None:
            raise TypeError(
                f"the length of {self} is not known: for training, pass steps_per_epoch="
            )
        if isinstance(length, float):
            raise TypeError(f"{self} is infinite")
        return length


class Wrapper(KeepsArguments, Stage):
    """Base of stages that wrap one flow; `makes_batches` if they stack its datapoints."""

    makes_batches: bool = False

    def __init__(self, ds: DataFlow) -> None:
        self.ds = require_flow(ds, self)

    @property
    def inputs(self) -> tuple[DataFlow, ...]:
        return (self.ds,)

    def length(self) -> Length:
        return length_of(self.ds)


class ParallelStage(Wrapper):
    """Base of stages that read what they wrap ahead, with workers.

    The workers do the work of structural stages above, too: `flow` is then the topmost of these.
    """

    transparent = True

    @abstractmethod
    def read_ahead(self, flow: DataFlow, node: Node, place: Place) -> Node | None:
        """The plan of `flow`, this stage or one that wraps it, with workers that read ahead."""

    @abstractmethod
    def open_ahead(
        self, flow: DataFlow, node: Node | None, place: Place, epoch: int, state: State
    ) -> Stream | None:
        """A pass over `flow`, with its serial plan `node`; `None` if workers can do nothing there.

        `flow` is this stage, one that wraps it, or one that it wraps.
        """

    def reset_state(self) -> None:
        """Do nothing: what is wrapped is made ready where it is read, and may then not travel."""

    def compile(self, place: Place) -> Node | None:
        return compile_flow(self.ds, place)

    def open(self, place: Place, epoch: int, state: State) -> Stream:
        return open_flow(self.ds, place, epoch, state)


def parallel_below(flow: DataFlow) -> ParallelStage | None:
    """The parallel stage that does the work of a flow, if it has one."""
    while is_exact(flow):
        if isinstance(flow, ParallelStage):
            return flow
        if not flow.structural:
            return None
        flow = flow.inputs[0]
    return None


def stands_for_code(flow: DataFlow) -> bool:
    """Whether a flow only hands on what code of the user's gives, with which it shares its pass."""
    inner = flow
    while is_exact(inner) and inner.transparent:
        (inner,) = inner.inputs
    if inner is flow or is_exact(inner):
        return False
    return compile_flow(inner, Place(0, serial=True)) is None


def is_exact(flow: DataFlow) -> TypeGuard[Stage]:
    """Whether a flow is a stage as it was written, with no `__iter__` of its own."""
    return isinstance(flow, Stage) and type(flow).__iter__ is DataFlow.__iter__


def has_items(cls: type[DataFlow]) -> bool:
    """Whether flows of a class are read by number: an `__iter__` of the user's would count more."""
    ours = (DataFlow.__iter__, ProxyDataFlow.__iter__)
    return hasattr(cls, "__getitem__") and cls.__iter__ in ours


def _is_indexable(flow: DataFlow) -> bool:
    return has_items(type(flow)) and isinstance(length_of(flow), int)


def compile_flow(flow: DataFlow, place: Place) -> Node | None:
    """The plan of a flow at a place, if there is one."""
    parallel = None if place.serial else parallel_below(flow)
    if parallel is not None:
        node = compile_flow(flow, replace(place, serial=True))
        return None if node is None else parallel.read_ahead(flow, node, place)
    if is_exact(flow):
        if overrides_reset(flow) and not flow.inputs:
            make_ready(flow)  # a source's plan holds its data
        node = flow.compile(place)
        return node and prepared(flow, node)
    return IndexNode(flow) if _is_indexable(flow) else None


def prepared(flow: DataFlow, node: Node) -> Node:
    """A plan that a stage makes, with `reset_state` before it if the user's class has one."""
    return ReadyNode(flow, node) if overrides_reset(flow) else node


def require_plan(flow: DataFlow, place: Place, problem: str) -> Node:
    """The plan of a flow at a place; a `ConfigError` about the `problem` if there is none."""
    node = compile_flow(flow, place)
    if node is None:
        raise ConfigError(
            f"{problem}: {pipeline_of(sequential_part(flow))} can only be read in order.",
            expected="a source with __len__ and __getitem__, and no __iter__; stages that keep to "
            "a plan",
            fix="load it: DataFromList(list(ds)); or LocallyShuffleData, to shuffle",
        )
    return node


def open_flow(flow: DataFlow, place: Place, epoch: int, state: State) -> Stream:
    """One pass over a flow at a place, from its beginning or from a state."""
    parallel = None if place.serial else parallel_below(flow)
    if parallel is not None:
        place = replace(place, serial=True, workers=parallel)
    node = compile_flow(flow, place)
    if place.workers is not None and inputs_of(flow):
        stream = place.workers.open_ahead(flow, node, place, epoch, state)
        if stream is not None:
            return stream
        place = replace(place, in_order=True)
    if node is not None:
        return PlanStream(node, epoch, state)
    if is_exact(flow):
        if overrides_reset(flow):
            make_ready(flow)
        return flow.open(place, epoch, state)
    if type(flow).__iter__ is DataFlow.__iter__:
        raise ConfigError(
            f"{type(flow).__name__} defines no datapoints.",
            fix="define __iter__ as a generator, or __len__ and __getitem__",
        )
    key, lent = place.key(flow), place.ambient
    name = type(flow).__name__
    return ReplayStream(
        lambda: iter(flow), lambda: lent or Ambient(key, epoch), name, state, place.kept
    )


def require_flow(ds: Any, owner: DataFlow) -> DataFlow:
    """Refuse what is no DataFlow, and say how to make one of it."""
    if isinstance(ds, DataFlow):
        return ds
    raise ConfigError(
        f"{type(owner).__name__} wraps a DataFlow, not a {type(ds).__name__}.",
        fix="wrap it in DataFromArrays, DataFromList, DataFromIterable or DataFromGenerator",
    )


def require_flows(flows: Any, owner: DataFlow) -> list[DataFlow]:
    """Refuse what is no list of flows. One flow would be iterated, and give datapoints."""
    if isinstance(flows, DataFlow) or not isinstance(flows, Iterable):
        raise ConfigError(
            f"{type(owner).__name__} takes a list of flows.",
            got=f"a {type(flows).__name__}",
            fix=f"{type(owner).__name__}([ds, ...])",
        )
    return [require_flow(flow, owner) for flow in cast("Iterable[Any]", flows)]


@overload
def check_seed(seed: int) -> int: ...
@overload
def check_seed(seed: int | None) -> int | None: ...
def check_seed(seed: int | None) -> int | None:
    """A seed as a Python integer that fits every file format: 0 to 2**63 - 1; or `None`."""
    if seed is None:
        return None
    value = integer_of(seed, "seed")
    if not 0 <= value < 1 << 63:
        raise ConfigError(f"The seed {value} is out of range.", expected="0 to 2**63 - 1")
    return value


def inputs_of(flow: DataFlow) -> tuple[DataFlow, ...]:
    """The flows that a flow is known to wrap."""
    if isinstance(flow, Stage):
        return flow.inputs
    return (flow.ds,) if isinstance(flow, ProxyDataFlow) else ()


def length_of(flow: DataFlow) -> Length:
    """Datapoints in a pass, without an error where that is not known."""
    if is_exact(flow):
        return flow.length()
    try:
        return len(flow)
    except (TypeError, NotImplementedError):
        return None


def flows_in(flow: DataFlow) -> Iterator[DataFlow]:
    """A flow, and all that it wraps."""
    yield flow
    for inner in inputs_of(flow):
        yield from flows_in(inner)


def is_random(flow: DataFlow) -> bool:
    """Whether a stage of this pipeline is known to draw from the run's seed."""
    return any(
        isinstance(one, RNGDataFlow) or (isinstance(one, Stage) and one.random)
        for one in flows_in(flow)
    )


def may_write_over(flow: DataFlow) -> bool:
    """Whether datapoints come from iterating code of the user's, which may use memory again."""
    if not is_exact(flow) or not is_ours(type(flow)):
        return compile_flow(flow, Place(0, serial=True)) is None
    return flow.runs_code or any(map(may_write_over, inputs_of(flow)))


def kept_pass(flow: DataFlow) -> Iterator[Datapoint]:
    """Iterate over a flow, for a caller that keeps more than one datapoint."""
    return map(duplicate, flow) if may_write_over(flow) else iter(flow)


def is_shard(flow: DataFlow) -> bool:
    """Whether a stage of this pipeline is one of several parts."""
    return any(isinstance(one, Stage) and one.shard for one in flows_in(flow))


def height_of(flow: DataFlow) -> int:
    """How many stages lie between a flow and the source furthest below it."""
    below = max((height_of(inner) + 1 for inner in inputs_of(flow)), default=0)
    return below - 1 if isinstance(flow, Stage) and flow.transparent else below


def sequential_part(flow: DataFlow) -> DataFlow:
    """The innermost flow that has no plan."""
    for inner in inputs_of(flow):
        if compile_flow(inner, Place(0, serial=True)) is None:
            return sequential_part(inner)
    return flow


def pipeline_of(
    flow: DataFlow,
    told: str | Callable[[Stage], str] = "arguments",
    passed_over: Callable[[Stage], bool] = lambda stage: False,
) -> str:
    """Name of a flow in messages: `DataFromArrays(50000) > MapData(decode) > BatchData(128)`.

    In brackets is what `told`, a function or the name of a method, gives for a stage. Those
    `passed_over` are left out.
    """
    paths = [pipeline_of(inner, told, passed_over) for inner in inputs_of(flow)]
    if isinstance(flow, Stage) and passed_over(flow):
        return paths[0]
    name = name_of_stage(flow, told)
    if len(paths) == 1:
        return f"{paths[0]} > {name}"
    return f"{name}[{' | '.join(paths)}]" if paths else name


def signature_of(flow: DataFlow) -> str:
    """Signature by which a state of this flow is told from states of others."""
    return pipeline_of(flow, "identity", lambda stage: stage.transparent)


def without_sizes(signature: str) -> str:
    """Return a signature without the sizes of sources: equal for pipelines over other rows."""
    return re.sub(r"(?<!> )\b(\w+)\([^()]*\)(?!\[)", r"\1", signature)


def name_of_stage(flow: DataFlow, told: str | Callable[[Stage], str] = "arguments") -> str:
    """Name of one stage in messages: `MapData(decode)`."""
    if isinstance(flow, Stage):
        arguments = getattr(flow, told)() if isinstance(told, str) else told(flow)
    else:
        length = length_of(flow)
        arguments = str(length) if isinstance(length, int) else ""
    name = type(flow).__name__
    return f"{name}({arguments})" if arguments else name


def infinite(length: Length) -> bool:
    """Whether a length is `math.inf`."""
    return length == math.inf
