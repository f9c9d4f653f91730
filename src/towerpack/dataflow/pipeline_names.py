"""Names of pipelines and stages for messages, and signatures that identify saved states."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from towerpack.dataflow._flow import DataFlow

Length = int | float | None
"""Number of datapoints in a pass: an integer, `math.inf`, or `None` if unknown."""


class Described:
    """Base class of stages: attributes and methods that describe the stage."""

    transparent: bool = False  # passes on its input; states and random keys ignore the stage
    keeps_keys: bool = False  # random keys ignore the stage
    random: bool = False  # draws random numbers from the run's seed
    shard: bool = False  # is one of several parts, which need the same seed
    without_effect: tuple[str, ...] = ()  # names of arguments that do not change the datapoints

    @property
    def inputs(self) -> tuple[DataFlow, ...]:
        """Wrapped flows; empty for a source."""
        return ()

    def length(self) -> Length:
        """Return the number of datapoints in a pass, `math.inf`, or `None` if unknown."""
        return None

    def arguments(self) -> str:
        """Return the arguments to show in parentheses after the name of this stage."""
        return self.identity()

    def identity(self) -> str:
        """Return settings that a restored state must share, such as a source's length."""
        length = None if self.inputs else self.length()
        return "" if length is None else str(length)

    def content(self) -> str:
        """Return a text that, if possible, differs between stages with different datapoints."""
        seed = getattr(self, "seed", None)
        return self.arguments() if seed is None else f"{self.arguments()}, seed={seed}"


class Wrapping:
    """Base class of user-defined flows that wrap the flow in their attribute `ds`."""

    ds: DataFlow


def inputs_of(flow: DataFlow) -> tuple[DataFlow, ...]:
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
    return any(isinstance(stage, Described) and stage.shard for stage in flows_in(flow))


def height_of(flow: DataFlow) -> int:
    below = max((height_of(inner) + 1 for inner in inputs_of(flow)), default=0)
    ignored = isinstance(flow, Described) and (flow.transparent or flow.keeps_keys)
    return below - 1 if ignored else below


def pipeline_of(
    flow: DataFlow,
    describe: Callable[[Described], str] | None = None,
    leave_out: Callable[[Described], bool] = lambda stage: False,
) -> str:
    """Return the name of a flow: `DataFromArrays(50000) > MapData(decode) > BatchData(128)`."""
    paths = [pipeline_of(inner, describe, leave_out) for inner in inputs_of(flow)]
    if isinstance(flow, Described) and leave_out(flow):
        return paths[0]
    name = name_of_stage(flow, describe)
    if len(paths) == 1:
        return f"{paths[0]} > {name}"
    return f"{name}[{' | '.join(paths)}]" if paths else name


def signature_of(flow: DataFlow) -> str:
    """Return the text that identifies a pipeline in saved states."""
    return pipeline_of(flow, lambda stage: stage.identity(), lambda stage: stage.transparent)


def without_sizes(signature: str) -> str:
    """Remove sizes of sources and dropped rows from a signature, so that others are equal to it."""
    signature = re.sub(r" > WithoutRows\([^()]*\)", "", signature)
    return re.sub(r"(?<!> )\b(\w+)\([^()]*\)(?!\[)", r"\1", signature)


def name_of_stage(flow: DataFlow, describe: Callable[[Described], str] | None = None) -> str:
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
