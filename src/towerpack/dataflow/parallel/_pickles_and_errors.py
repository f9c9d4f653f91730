"""Pickles and exceptions that a consumer exchanges with its own, trusted workers."""

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
"""Function that gets an array's memory and returns whether the memory stays in the pickle."""

_LONGEST_CHAIN = 10


def dump(value: object, keep: Keep | None = None) -> bytes:
    return pickle.dumps(value, 5, buffer_callback=keep)


def dump_code(value: object, keep: Keep | None = None) -> bytes:
    """Pickle a value with cloudpickle, which supports lambdas and definitions in `__main__`."""
    pickles = io.BytesIO()
    _pickler()(pickles, 5, keep).dump(value)
    return pickles.getvalue()


def dump_each(items: Iterable[object]) -> tuple[bytes, list[int]]:
    """Pickle each item separately. Return the concatenated pickles and the end of each."""
    pickles = io.BytesIO()
    pickler = _pickler()(pickles, 5)  # one for all items, since creating it is slow
    ends: list[int] = []
    for item in items:
        pickler.dump(item)
        pickler.clear_memo()
        ends.append(pickles.tell())
    return pickles.getvalue(), ends


def load(data: Any, buffers: Iterable[Any] = ()) -> Any:
    return pickle.loads(data, buffers=buffers)  # noqa: S301  see above


@cache
def _pickler() -> Any:
    """Return a subclass of cloudpickle's pickler that rejects open files."""
    cloudpickle: Any = importlib.import_module("cloudpickle")  # imported when needed: 40 ms
    by_name = cloudpickle.Pickler.dispatch_table[io.TextIOWrapper]

    def reduce_file(file: io.TextIOWrapper) -> Any:
        if file in (sys.stdout, sys.stderr):
            return by_name(file)
        raise pickle.PicklingError(f"the file {file.name!r} must be opened where it is read")

    class Pickler(cloudpickle.Pickler):
        dispatch_table: ClassVar[Any] = ChainMap(
            {io.TextIOWrapper: reduce_file}, cloudpickle.Pickler.dispatch_table
        )

    return Pickler


class Failure(NamedTuple):
    """Exception with its causes, in a form that can be sent: pickle or None, type name, text."""

    chain: list[tuple[bytes | None, str, str]]
    traceback: str


def describe_failure(error: BaseException) -> Failure:
    chain: list[tuple[bytes | None, str, str]] = []
    link: BaseException | None = error
    while link is not None and len(chain) < _LONGEST_CHAIN:
        chain.append((_pickled(link), type(link).__name__, text_of(link)))
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
    return Failure(chain, "".join(traceback.format_exception(error)).rstrip())


def restore_failure(failure: Failure) -> BaseException:
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
    # Many exceptions cannot be pickled, or change when they are unpickled.
    with contextlib.suppress(Exception):
        data = dump(error)
        copy = load(data)
        return data if type(copy) is type(error) and text_of(copy) == text_of(error) else None


def _restored(data: bytes | None, name: str, text: str) -> BaseException:
    if data is not None:
        with contextlib.suppress(Exception):  # only the worker could import the type
            return load(data)
    return DataFlowError(f"{name}: {text}")


def error_from(error: BaseException, what: str, *, fix: str) -> DataFlowError:
    result = DataFlowError(f"{what}: {type(error).__name__}: {error}", fix=fix)
    result.__cause__ = error
    return result
