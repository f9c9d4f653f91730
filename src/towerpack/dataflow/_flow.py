from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeGuard, cast, overload

import numpy as np

from towerpack._core.errors import ConfigError, StateError
from towerpack._core.logs import get_logger
from towerpack._core.randomness import fresh_seed
from towerpack.dataflow._iteration_state import (
    DataIterator,
    PlanStream,
    State,
    Stream,
    Tally,
    TracedStream,
    read_state,
)
from towerpack.dataflow._plan import Node, Plan
from towerpack.dataflow._user_code import (
    AMBIENT,
    Ambient,
    IndexNode,
    ReplayStream,
    is_in_towerpack,
    make_ready,
    prepare_on_use,
    with_method,
)
from towerpack.dataflow.arguments import integer_of
from towerpack.dataflow.datapoints import Datapoint, duplicate
from towerpack.dataflow.pipeline_names import (
    Described,
    Length,
    Wrapping,
    flows_in,
    inputs_of,
    is_shard,
    measured_length,
    name_of_stage,
    pipeline_of,
    signature_of,
)
from towerpack.dataflow.stage_context import StageContext

if TYPE_CHECKING:
    from towerpack.dataflow._compile import Stage

log = get_logger(__name__)


class DataFlow:
    """Base class of data pipelines: a stream of datapoints that can be iterated repeatedly.

    A subclass defines `__iter__` as a generator, and `__len__` if the length is known. A subclass
    with `__len__` and `__getitem__` (datapoint i, for i in 0..len-1) but no `__iter__` is
    *indexable*: it can be shuffled exactly and resumes at once. If a class has `__iter__` too, it
    takes precedence. `super().__iter__()` iterates as if the class had no `__iter__`.

    `reset_state` of a subclass is called once in each process, before the flow is read. Pass n of a
    flow is its epoch n. All randomness is a function of (seed, epoch, position).

    Unless its documentation says otherwise, a flow keeps the order and length of the flow that it
    wraps and draws no random numbers. It is thread-safe, fork-safe and resumable if the wrapped
    flow is. Indexable sources resume at once, other flows by iterating again and skipping.
    """

    # Mangled names cannot collide with attributes of subclasses.
    __passes: int = 0
    __seed: int | None = None

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        prepare_on_use(cls)

    def __iter__(self) -> Iterator[Datapoint]:
        # A subclass that overrides `__iter__` comes here by `super().__iter__()`.
        return with_method(self, DataFlow.__iter__).iterate()

    def __len__(self) -> int:
        # The name of the whole pipeline would contain the length.
        raise TypeError(f"the length of {type(self).__name__} is not known")

    def __bool__(self) -> bool:
        return True  # `if flow:` would otherwise ask for the length

    def __repr__(self) -> str:
        return pipeline_of(self)

    def reset_state(self) -> None:
        """Call `reset_state` of the wrapped flows. The library does so before it reads the flow."""
        for inner in inputs_of(self):
            make_ready(inner)

    def iterate(
        self, *, state: State = None, epoch: int | None = None, seed: int | None = None
    ) -> DataIterator:
        """Start a pass over the data, or continue a pass from a saved state.

        Args:
            state: Result of `state()` of an iterator over an equal flow, to continue from there.
                The state contains seed and epoch.
            epoch: Number of the pass. By default the flow counts its passes.
            seed: Seed of all random numbers. By default a seed is drawn, logged, and used for all
                passes over this flow.

        Raises:
            ConfigError: Seed or epoch is not an integer or is out of range.
            StateError: The state belongs to another pipeline, or contradicts `seed` or `epoch`.
        """
        signature = signature_of(self)
        seed = check_seed(seed)
        epoch = None if epoch is None else integer_of(epoch, "epoch", 0)
        position, skipped = None, 0
        ambient = AMBIENT.get()  # set while a user's `__iter__` runs
        lent = ambient if ambient and state is None and stands_for_code(self) else None
        if state is not None:
            seed, epoch, position, skipped = read_state(state, signature, seed=seed, epoch=epoch)
            self.__passes, self.__seed = epoch + 1, seed
        elif ambient is not None:
            default = (lent.seed, lent.epoch) if lent else ambient.next_pass(self)
            seed = default[0] if seed is None else seed
            epoch = default[1] if epoch is None else epoch
        else:
            if epoch is None:
                epoch = self.__passes
                self.__passes += 1
            seed = self.__fixed_seed() if seed is None else seed
        tally = Tally(skipped)
        in_order = ambient is not None
        context = StageContext(seed, tally=tally, in_order=in_order, ambient=lent)
        try:
            stream = self.open_in(context, epoch, position)
        except (KeyError, TypeError, IndexError) as error:
            if state is None:
                raise
            raise StateError(
                "The saved state is damaged: its structure differs from the pipeline's structure.",
                got=f"{type(error).__name__}: {error}",
                fix="pass an undamaged state, or leave out state= to start a new pass",
            ) from error
        return DataIterator(stream, tally, signature, pipeline_of(self), seed, epoch)

    def plan(self, *, seed: int | None = None) -> Plan:
        """Return random access to the datapoints of every pass.

        The plan does the work of parallel stages in the calling thread.

        Args:
            seed: Seed of all random numbers, as for `iterate`.

        Raises:
            ConfigError: A part of the pipeline can only be read in order.
        """
        seed = self.__fixed_seed() if seed is None else check_seed(seed)
        root = require_plan(self, StageContext(seed, serial=True), f"{self} has no plan")
        return Plan(root, seed=seed, signature=signature_of(self), pipeline=pipeline_of(self))

    def compile_in(self, context: StageContext) -> Node | None:
        return IndexNode(self) if _is_indexable(self) else None

    def open_in(self, context: StageContext, epoch: int, state: State) -> Stream:
        node = self.compile_in(context)
        if context.workers is not None and inputs_of(self):
            stream = context.workers.open_ahead(self, node, context, epoch, state)
            if stream is not None:
                return stream
            context = replace(context, in_order=True)
        if node is not None:
            stream = PlanStream(node, epoch, state)
        else:
            stream = self.read_in_order(context, epoch, state)
        if not context.traced:
            return stream
        is_source = isinstance(stream, PlanStream | ReplayStream) or not inputs_of(self)
        return TracedStream(stream, name_of_stage(self), epoch) if is_source else stream

    def read_in_order(self, context: StageContext, epoch: int, state: State) -> Stream:
        name = type(self).__name__
        if type(self).__iter__ is DataFlow.__iter__:
            raise ConfigError(
                f"{name} must define __iter__, or both __len__ and __getitem__.",
                fix="define __iter__ as a generator that yields datapoints",
            )
        key, lent = context.key(self), context.ambient
        return ReplayStream(
            lambda: iter(self), lambda: lent or Ambient(key, epoch), name, state, context.retained
        )

    def __fixed_seed(self) -> int:
        if self.__seed is None:
            self.__seed = fresh_seed()
            if is_random(self):
                log.info("%s has no seed and drew %d", self, self.__seed)
                if is_shard(self):
                    log.warning(
                        "%s is one of several shards and has no seed: other hosts draw other "
                        "seeds, and their shards overlap. Call iterate(seed=...).",
                        self,
                    )
        return self.__seed


class ProxyDataFlow(Wrapping, DataFlow):
    """Base class of user-defined flows that wrap another flow and override `__iter__`.

    Iterate with `for dp in self.ds`: seed and epoch are passed on automatically. Override `__len__`
    if the length changes. The flow resumes by iterating again and skipping.

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
    """Base class of user-defined flows whose `__iter__` draws random numbers from `self.rng`."""

    __fallback: np.random.Generator | None = None

    @property
    def rng(self) -> np.random.Generator:
        """Random generator of the pass, a function of (seed, epoch, position in the pipeline).

        A plain `for dp in flow` over this flow itself has no seed and gets an unseeded generator.
        Use `flow.iterate()` instead, as all stages do.
        """
        ambient = AMBIENT.get()
        if ambient is not None:
            return ambient.generator(self)
        if self.__fallback is None:
            self.__fallback = np.random.default_rng()
        return self.__fallback


def require_plan(flow: DataFlow, context: StageContext, problem: str) -> Node:
    """Compile a flow, or raise a `ConfigError` that begins with `problem`."""
    node = flow.compile_in(context)
    if node is None:
        raise ConfigError(
            f"{problem}: {pipeline_of(sequential_part(flow))} can only be read in order.",
            expected="a source with __len__ and __getitem__ but no __iter__",
            fix="load the data with DataFromList(list(ds)), or shuffle with LocallyShuffleData",
        )
    return node


def sequential_part(flow: DataFlow) -> DataFlow:
    for inner in inputs_of(flow):
        if inner.compile_in(StageContext(0, serial=True)) is None:
            return sequential_part(inner)
    return flow


def stands_for_code(flow: DataFlow) -> bool:
    """Return whether a flow only forwards the datapoints of a user-defined `__iter__`."""
    inner = flow
    while is_exact(inner) and inner.transparent:
        (inner,) = inner.inputs
    if inner is flow or is_exact(inner):
        return False
    return inner.compile_in(StageContext(0, serial=True)) is None


def is_exact(flow: DataFlow) -> TypeGuard[Stage]:
    """Return whether a flow is a stage whose class does not override `__iter__`."""
    return isinstance(flow, Described) and type(flow).__iter__ is DataFlow.__iter__


def has_items(cls: type[DataFlow]) -> bool:
    inherited = (DataFlow.__iter__, ProxyDataFlow.__iter__)
    return hasattr(cls, "__getitem__") and cls.__iter__ in inherited


def _is_indexable(flow: DataFlow) -> bool:
    return has_items(type(flow)) and isinstance(length_of(flow), int)


def length_of(flow: DataFlow) -> Length:
    """Return the number of datapoints in a pass, without an error if it is unknown."""
    if is_exact(flow):
        return flow.length()
    return measured_length(flow)


def is_random(flow: DataFlow) -> bool:
    return any(
        isinstance(stage, RNGDataFlow) or (isinstance(stage, Described) and stage.random)
        for stage in flows_in(flow)
    )


def may_write_over(flow: DataFlow) -> bool:
    """Return whether user code creates the datapoints, which may reuse memory of earlier ones."""
    if not is_exact(flow) or not is_in_towerpack(type(flow)):
        return flow.compile_in(StageContext(0, serial=True)) is None
    return flow.runs_code or any(map(may_write_over, inputs_of(flow)))


def read_pass(data: Iterable[Datapoint], *, keep: bool = False) -> Iterator[Datapoint]:
    """Iterate once over a flow or another iterable. With `keep`, no datapoint is overwritten."""
    if not isinstance(data, DataFlow):
        return iter(data)
    return map(duplicate, data.iterate()) if keep and may_write_over(data) else data.iterate()


def require_flow(ds: Any, owner: DataFlow) -> DataFlow:
    if isinstance(ds, DataFlow):
        return ds
    raise ConfigError(
        f"{type(owner).__name__} must wrap a DataFlow, got a {type(ds).__name__}.",
        fix="wrap the data in DataFromArrays, DataFromList, DataFromIterable or DataFromGenerator",
    )


def require_flows(flows: Any, owner: DataFlow) -> list[DataFlow]:
    # A single flow is iterable too, but yields datapoints.
    if isinstance(flows, DataFlow) or not isinstance(flows, Iterable):
        name = type(owner).__name__
        raise ConfigError(
            f"{name} needs a list of flows, got a {type(flows).__name__}.",
            fix=f"pass a list: {name}([ds, ...])",
        )
    return [require_flow(flow, owner) for flow in cast("Iterable[Any]", flows)]


@overload
def check_seed(seed: int) -> int: ...
@overload
def check_seed(seed: int | None) -> int | None: ...
def check_seed(seed: int | None) -> int | None:
    """Check that a seed is in 0..2**63-1 or `None`, and return it as a Python integer."""
    if seed is None:
        return None
    value = integer_of(seed, "seed", 0)
    if value >= 1 << 63:
        raise ConfigError(f"seed must be at most 2**63 - 1, got {value}.")
    return value
