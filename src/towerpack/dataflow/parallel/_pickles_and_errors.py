"""Pickles and exceptions that travel between a consumer and its own workers.

Both ends are ours and run the same code. Nothing that comes from a file or from the network passes
through here.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import pickle
import sys
import traceback
from collections import ChainMap
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, ClassVar, NamedTuple

from towerpack._core.errors import DataFlowError, TowerpackError, text_of

Keep = Callable[[pickle.PickleBuffer], bool]
"""Called with the memory of an array; true leaves it in the pickle."""

_LONGEST_CHAIN = 10


def dump(value: object, keep: Keep | None = None) -> bytes:
    return pickle.dumps(value, 5, buffer_callback=keep)


def dump_code(value: object, keep: Keep | None = None) -> bytes:
    """Pickle anything that cloudpickle can: lambdas, and what `__main__` defines, by value."""
    pickles = io.BytesIO()
    _pickler()(pickles, 5, keep).dump(value)
    return pickles.getvalue()


def dump_each(items: Iterable[object]) -> tuple[bytes, list[int]]:
    """Pickle many things, each by itself. Their pickles, and where each ends."""
    pickles = io.BytesIO()
    pickler = _pickler()(pickles, 5)  # making one for each item would take most of the time
    ends: list[int] = []
    for item in items:
        pickler.dump(item)
        pickler.clear_memo()
        ends.append(pickles.tell())
    return pickles.getvalue(), ends


def load(data: Any, buffers: Iterable[Any] = ()) -> Any:
    """Read a pickle of this process or of one that it started, and the memory outside of it."""
    return pickle.loads(data, buffers=buffers)  # noqa: S301  see above


@cache
def _pickler() -> Any:
    """Cloudpickle's class, which would send text files by what they hold, but without that."""
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


class Failure(NamedTuple):
    """An exception with its causes: of each its pickle if it has one, its type, and its text."""

    chain: list[tuple[bytes | None, str, str]]
    traceback: str


def describe_failure(error: BaseException) -> Failure:
    chain: list[tuple[bytes | None, str, str]] = []
    one: BaseException | None = error
    while one is not None and len(chain) < _LONGEST_CHAIN:
        chain.append((_pickled(one), type(one).__name__, text_of(one)))
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
    return Failure(chain, "".join(traceback.format_exception(error)).rstrip())


def restore_failure(failure: Failure) -> BaseException:
    """The exception in the consumer: of the same type where that can be had."""
    errors = [_restored(*link) for link in failure.chain]
    for error, cause in itertools.pairwise(errors):
        error.__cause__ = cause
    first = errors[0]
    story = f"Traceback in the worker:\n{failure.traceback}"
    if isinstance(first, TowerpackError):
        first.details = story if first.details is None else f"{first.details}\n{story}"
    else:
        first.add_note(story)
    return first


def _pickled(error: BaseException) -> bytes | None:
    """Only if it comes back as what it is: many exceptions do not."""
    with contextlib.suppress(Exception):  # whatever its own code does, its text can travel
        data = dump(error)
        again = load(data)
        return data if type(again) is type(error) and text_of(again) == text_of(error) else None


def _restored(data: bytes | None, name: str, text: str) -> BaseException:
    if data is not None:
        with contextlib.suppress(Exception):  # a type that only the worker could import
            return load(data)
    return DataFlowError(f"{name}: {text}")


def error_from(error: BaseException, what: str, **told: str) -> DataFlowError:
    made = DataFlowError(f"{what}: {type(error).__name__}: {error}", **told)
    made.__cause__ = error
    return made
