"""Find what keeps a pipeline from being pickled, for messages."""

from __future__ import annotations

import inspect
from types import FunctionType, MethodType
from typing import Any, cast

from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow.parallel._pickles_and_errors import dump_code
from towerpack.dataflow.pipeline_names import pipeline_of

_DEEPEST = 24  # from the last stage to what does not pickle


def find_unpicklable(flow: DataFlow) -> str:
    """The stage, and the member of it, that does not pickle."""
    value: Any = flow
    path: list[str] = []
    for _ in range(_DEEPEST):
        bad = next((one for one in _members(value).items() if not _pickles(one[1])), None)
        if bad is None:
            break
        path.insert(0, bad[0])
        value = bad[1]
        if isinstance(value, DataFlow):
            flow, path = value, []
    where = f"{' in '.join(path)} (a {type(value).__name__})" if path else "a part"
    return f"{where} of {pipeline_of(flow)}"


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
    except Exception:  # noqa: BLE001  what it says is told already
        return False
    return True
