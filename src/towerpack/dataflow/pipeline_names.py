"""Names of pipelines and their stages: in messages, and as signatures of states."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from towerpack.dataflow._flow import DataFlow

Length = int | float | None
"""Datapoints in a pass: an integer, `math.inf`, or `None` for unknown."""


class Described:
    """Base of stages: how each describes itself.

    Attributes:
        transparent: Hands on what it wraps, unchanged; states and random keys ignore it.
        random: Draws from the run's seed.
        shard: Is one of several parts, which fit together if they are given one seed.
        without_effect: Names of arguments that do not change the datapoints.
    """

    transparent: bool = False
    random: bool = False
    shard: bool = False
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


class Wrapping:
    """Base of users' flows whose attribute `ds` is the flow that they wrap."""

    ds: DataFlow


def inputs_of(flow: DataFlow) -> tuple[DataFlow, ...]:
    """Return the flows that a flow reads from."""
    if isinstance(flow, Described):
        return flow.inputs
    return (flow.ds,) if isinstance(flow, Wrapping) else ()


def flows_in(flow: DataFlow) -> Iterator[DataFlow]:
    """Iterate over a flow and all flows below it."""
    yield flow
    for inner in inputs_of(flow):
        yield from flows_in(inner)


def is_shard(flow: DataFlow) -> bool:
    """Return whether a pipeline reads only one shard of its data."""
    return any(isinstance(one, Described) and one.shard for one in flows_in(flow))


def height_of(flow: DataFlow) -> int:
    """How many stages lie between a flow and the source furthest below it."""
    below = max((height_of(inner) + 1 for inner in inputs_of(flow)), default=0)
    return below - 1 if isinstance(flow, Described) and flow.transparent else below


def pipeline_of(
    flow: DataFlow,
    describe: Callable[[Described], str] | None = None,
    leave_out: Callable[[Described], bool] = lambda stage: False,
) -> str:
    """Name of a flow in messages: `DataFromArrays(50000) > MapData(decode) > BatchData(128)`."""
    paths = [pipeline_of(inner, describe, leave_out) for inner in inputs_of(flow)]
    if isinstance(flow, Described) and leave_out(flow):
        return paths[0]
    name = name_of_stage(flow, describe)
    if len(paths) == 1:
        return f"{paths[0]} > {name}"
    return f"{name}[{' | '.join(paths)}]" if paths else name


def signature_of(flow: DataFlow) -> str:
    """Signature by which a state of this flow is told from states of others."""
    return pipeline_of(flow, lambda stage: stage.identity(), lambda stage: stage.transparent)


def without_sizes(signature: str) -> str:
    """Return a signature without the sizes of sources: equal for pipelines over other rows."""
    return re.sub(r"(?<!> )\b(\w+)\([^()]*\)(?!\[)", r"\1", signature)


def name_of_stage(flow: DataFlow, describe: Callable[[Described], str] | None = None) -> str:
    """Name of one stage in messages: `MapData(decode)`."""
    if isinstance(flow, Described):
        arguments = flow.arguments() if describe is None else describe(flow)
    else:
        length = measured_length(flow)
        arguments = "" if length is None else str(length)
    name = type(flow).__name__
    return f"{name}({arguments})" if arguments else name


def measured_length(flow: DataFlow) -> int | None:
    """Return the length of a flow, or None if the length is unknown."""
    try:
        return len(flow)
    except (TypeError, NotImplementedError):
        return None
