from __future__ import annotations

import inspect
from types import FunctionType, MethodType
from typing import Any, cast

from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow.parallel._pickles_and_errors import dump_code
from towerpack.dataflow.pipeline_names import pipeline_of

_DEEPEST = 24  # limit of the search


def find_unpicklable(flow: DataFlow) -> str:
    """Describe the part of a pipeline that cannot be pickled: the object and its stage."""
    value: Any = flow
    path: list[str] = []
    for _ in range(_DEEPEST):
        bad = next((member for member in _members(value).items() if not _pickles(member[1])), None)
        if bad is None:
            break
        path.insert(0, bad[0])
        value = bad[1]
        if isinstance(value, DataFlow):
            flow, path = value, []
    name = f"{' in '.join(path)} (a {type(value).__name__})" if path else "a part"
    return f"{name} of {pipeline_of(flow)}"


def _members(value: Any) -> dict[str, Any]:
    if isinstance(value, MethodType):
        return {f"the object of {value.__qualname__}": value.__self__}
    if isinstance(value, FunctionType):
        used = inspect.getclosurevars(value)
        members = {**used.globals, **used.nonlocals}
        return {f"{name} of {value.__qualname__}": member for name, member in members.items()}
    if isinstance(value, (dict, list, tuple)):
        held = cast("Any", value)
        items = held.items() if isinstance(value, dict) else enumerate(held)
        return {f"[{key!r}]": member for key, member in items}
    return getattr(value, "__dict__", {})


def _pickles(value: Any) -> bool:
    try:
        dump_code(value, lambda buffer: False)
    except Exception:  # noqa: BLE001  the caller reports the error
        return False
    return True
