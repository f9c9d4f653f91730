"""Pickles between a consumer and its own workers: the one place where they are made and read.

Nothing that comes from a file or from the network passes through here.
"""

from __future__ import annotations

import importlib
import io
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, ClassVar

Keep = Callable[[pickle.PickleBuffer], bool]
"""Called with the memory of an array; true leaves it in the pickle."""


def dump(value: object, keep: Keep | None = None) -> bytes:
    """Pickle data."""
    return pickle.dumps(value, 5, buffer_callback=keep)


def dump_code(value: object, keep: Keep | None = None) -> bytes:
    """Pickle anything that cloudpickle can: lambdas, and what `__main__` defines, by value."""
    pickles = io.BytesIO()
    _pickler()(pickles, 5, keep).dump(value)
    return pickles.getvalue()


@cache
def _pickler() -> Any:
    """Cloudpickle's class, but for text files that are open.

    It would send what they hold, and each worker would read its copy from the beginning.
    """
    cloudpickle: Any = importlib.import_module("cloudpickle")  # only where it is needed: 40 ms
    by_name = cloudpickle.Pickler.dispatch_table[io.TextIOWrapper]

    def reduce_file(file: io.TextIOWrapper) -> Any:
        if file in (sys.stdout, sys.stderr):
            return by_name(file)
        raise pickle.PicklingError(f"the open file {file.name!r}: open it where it is read")

    class Pickler(cloudpickle.Pickler):
        dispatch_table: ClassVar[Any] = ChainMap(
            {io.TextIOWrapper: reduce_file}, cloudpickle.Pickler.dispatch_table
        )

    return Pickler


def dump_each(items: Iterable[object]) -> tuple[bytes, list[int]]:
    """Pickle many things, each by itself. Their pickles, and where each ends."""
    pickles = io.BytesIO()
    pickler = _pickler()(pickles, 5)  # making one for each item would take most of it
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
