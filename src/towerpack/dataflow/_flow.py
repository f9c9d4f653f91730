"""DataFlow and the other base classes that users derive from."""

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
    read_state,
)
from towerpack.dataflow._plan import Node, Plan
from towerpack.dataflow._user_code import (
    AMBIENT,
    Ambient,
    IndexNode,
    ReplayStream,
    is_ours,
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
    pipeline_of,
    signature_of,
)
from towerpack.dataflow.stage_context import StageContext

if TYPE_CHECKING:
    from towerpack.dataflow._compile import Stage

log = get_logger(__name__)


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
        in_order = ambient is not None
        context = StageContext(seed, tally=tally, in_order=in_order, ambient=lent)
        try:
            stream = self.open_in(context, epoch, at)
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
        root = require_plan(self, StageContext(seed, serial=True), f"{self} has no plan")
        return Plan(root, seed=seed, signature=signature_of(self), pipeline=pipeline_of(self))

    def compile_in(self, context: StageContext) -> Node | None:
        """Compile to a plan; `None` if this flow can only be read in order. For stages."""
        return IndexNode(self) if _is_indexable(self) else None

    def open_in(self, context: StageContext, epoch: int, state: State) -> Stream:
        """Open one pass, from its beginning or from a state."""
        node = self.compile_in(context)
        if context.workers is not None and inputs_of(self):
            stream = context.workers.open_ahead(self, node, context, epoch, state)
            if stream is not None:
                return stream
            context = replace(context, in_order=True)
        if node is not None:
            return PlanStream(node, epoch, state)
        return self.read_in_order(context, epoch, state)

    def read_in_order(self, context: StageContext, epoch: int, state: State) -> Stream:
        """Open one pass over a flow that has no plan."""
        name = type(self).__name__
        if type(self).__iter__ is DataFlow.__iter__:
            raise ConfigError(
                f"{name} defines no datapoints.",
                fix="define __iter__ as a generator, or __len__ and __getitem__",
            )
        key, lent = context.key(self), context.ambient
        return ReplayStream(
            lambda: iter(self), lambda: lent or Ambient(key, epoch), name, state, context.kept
        )

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


class ProxyDataFlow(Wrapping, DataFlow):
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


def require_plan(flow: DataFlow, context: StageContext, problem: str) -> Node:
    """The plan of a flow in a context; a `ConfigError` about the `problem` if there is none."""
    node = flow.compile_in(context)
    if node is None:
        raise ConfigError(
            f"{problem}: {pipeline_of(sequential_part(flow))} can only be read in order.",
            expected="a source with __len__ and __getitem__, and no __iter__; stages that keep to "
            "a plan",
            fix="load it: DataFromList(list(ds)); or LocallyShuffleData, to shuffle",
        )
    return node


def sequential_part(flow: DataFlow) -> DataFlow:
    for inner in inputs_of(flow):
        if inner.compile_in(StageContext(0, serial=True)) is None:
            return sequential_part(inner)
    return flow


def stands_for_code(flow: DataFlow) -> bool:
    """Whether a flow only hands on what code of the user's gives, with which it shares its pass."""
    inner = flow
    while is_exact(inner) and inner.transparent:
        (inner,) = inner.inputs
    if inner is flow or is_exact(inner):
        return False
    return inner.compile_in(StageContext(0, serial=True)) is None


def is_exact(flow: DataFlow) -> TypeGuard[Stage]:
    """Whether a flow is a stage as it was written, with no `__iter__` of its own."""
    return isinstance(flow, Described) and type(flow).__iter__ is DataFlow.__iter__


def has_items(cls: type[DataFlow]) -> bool:
    """Whether flows of a class are read by number: an `__iter__` of the user's would count more."""
    ours = (DataFlow.__iter__, ProxyDataFlow.__iter__)
    return hasattr(cls, "__getitem__") and cls.__iter__ in ours


def _is_indexable(flow: DataFlow) -> bool:
    return has_items(type(flow)) and isinstance(length_of(flow), int)


def length_of(flow: DataFlow) -> Length:
    """Datapoints in a pass, without an error where that is not known."""
    if is_exact(flow):
        return flow.length()
    return measured_length(flow)


def is_random(flow: DataFlow) -> bool:
    """Whether a stage of this pipeline is known to draw from the run's seed."""
    return any(
        isinstance(one, RNGDataFlow) or (isinstance(one, Described) and one.random)
        for one in flows_in(flow)
    )


def may_write_over(flow: DataFlow) -> bool:
    """Whether datapoints come from iterating code of the user's, which may use memory again."""
    if not is_exact(flow) or not is_ours(type(flow)):
        return flow.compile_in(StageContext(0, serial=True)) is None
    return flow.runs_code or any(map(may_write_over, inputs_of(flow)))


def read_pass(data: Iterable[Datapoint], *, keep: bool = False) -> Iterator[Datapoint]:
    """Read a flow, or another iterable, once; with `keep` the caller may keep all datapoints."""
    if not isinstance(data, DataFlow):
        return iter(data)
    return map(duplicate, data.iterate()) if keep and may_write_over(data) else data.iterate()


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
