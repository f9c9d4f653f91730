"""What of a pipeline does not pickle, named so that it can be found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pickle import PickleBuffer
from types import FunctionType, MethodType
from typing import Any, cast

from towerpack.dataflow._flow import DataFlow, inputs_of, pipeline_of
from towerpack.dataflow.parallel._pickling import dump_code

_DEEPEST = 12


def find_unpicklable(flow: DataFlow) -> str:
    """The stage and the member that does not pickle."""
    for stage in _stages(flow):
        inputs = inputs_of(stage)
        for name, member in vars(stage).items():
            if any(member is inner for inner in inputs) or member in (list(inputs), inputs):
                continue
            if not _pickles(member):
                path = " in ".join(reversed(_path(name, member)))
                return f"{path} of {pipeline_of(stage)}"
    return f"a part of {pipeline_of(flow)}"


def _stages(flow: DataFlow) -> Iterator[DataFlow]:
    for inner in inputs_of(flow):
        yield from _stages(inner)
    yield flow


def _path(name: str, value: Any) -> list[str]:
    path = [name]
    for _ in range(_DEEPEST):
        for part, member in _members(value):
            if not _pickles(member):
                path.append(part)
                value = member
                break
        else:
            break
    path[-1] += f" (a {type(value).__name__})"
    return path


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, MethodType):
        yield f"the object of {value.__qualname__}", value.__self__
    elif isinstance(value, FunctionType):
        names = value.__code__.co_freevars
        for name, cell in zip(names, value.__closure__ or (), strict=False):
            try:
                yield f"{name} of {value.__qualname__}", cell.cell_contents
            except ValueError:  # an empty cell
                continue
        for name in value.__code__.co_names:
            if name in value.__globals__:
                yield f"the global {name} of {value.__qualname__}", value.__globals__[name]
    elif isinstance(value, Mapping):
        for key, member in cast("Mapping[Any, Any]", value).items():
            yield f"[{key!r}]", member
    elif isinstance(value, (list, tuple)):
        for index, member in enumerate(cast("list[Any]", value)):
            yield f"[{index}]", member
    else:
        yield from getattr(value, "__dict__", {}).items()


def _pickles(value: Any) -> bool:
    try:
        dump_code(value, _out_of_band)
    except Exception:  # noqa: BLE001  which one is told already
        return False
    return True


def _out_of_band(buffer: PickleBuffer) -> bool:
    return False
