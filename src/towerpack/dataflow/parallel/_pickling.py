"""Pickles between a consumer and its own workers: the one place where they are made and read.

Nothing that comes from a file or from the network passes through here.
"""

from __future__ import annotations

import importlib
import io
import pickle
from collections.abc import Callable, Iterable
from typing import Any

Keep = Callable[[pickle.PickleBuffer], bool]
"""Called with the memory of an array; true leaves it in the pickle."""


def dump(value: object, keep: Keep | None = None) -> bytes:
    """Pickle data."""
    return pickle.dumps(value, 5, buffer_callback=keep)


def dump_code(value: object, keep: Keep | None = None) -> bytes:
    """Pickle anything that cloudpickle can: lambdas, and what `__main__` defines, by value."""
    cloudpickle: Any = importlib.import_module("cloudpickle")  # only where it is needed: 40 ms
    return cloudpickle.dumps(value, 5, buffer_callback=keep)


def dump_each(items: Iterable[object]) -> tuple[bytes, list[int]]:
    """Pickle many things, each by itself. Their pickles, and where each ends."""
    cloudpickle: Any = importlib.import_module("cloudpickle")
    pickles = io.BytesIO()
    pickler = cloudpickle.Pickler(pickles, 5)  # making one for each item would take most of it
    ends: list[int] = []
    for item in items:
        pickler.dump(item)
        pickler.clear_memo()
        ends.append(pickles.tell())
    return pickles.getvalue(), ends


def load(data: Any, buffers: Iterable[Any] = ()) -> Any:
    """What was pickled.

    Args:
        data: A pickle of this process, or of one that it started.
        buffers: The memory that is not in it.
    """
    return pickle.loads(data, buffers=buffers)  # noqa: S301  see above
