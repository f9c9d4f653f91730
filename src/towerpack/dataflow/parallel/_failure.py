"""Exceptions on their way from a worker to the consumer."""

from __future__ import annotations

import itertools
import traceback
from typing import NamedTuple

from towerpack._core.errors import DataFlowError, TowerpackError, text_of
from towerpack.dataflow.parallel._pickling import dump, load

_LONGEST_CHAIN = 10


class Failure(NamedTuple):
    """An exception with its causes, each as a pickle if it has one.

    Attributes:
        chain: For each its pickle or `None`, its type's name, and its text.
        traceback: The worker's.
    """

    chain: list[tuple[bytes | None, str, str]]
    traceback: str


def describe_failure(error: BaseException) -> Failure:
    """An exception as it travels."""
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
    try:
        data = dump(error)
        again = load(data)
    except Exception:  # noqa: BLE001  whatever its own code does, its text can travel
        return None
    return data if type(again) is type(error) and text_of(again) == text_of(error) else None


def _restored(data: bytes | None, name: str, text: str) -> BaseException:
    if data is not None:
        try:
            return load(data)
        except Exception:  # noqa: BLE001  a type that only the worker could import
            data = None
    return DataFlowError(f"{name}: {text}")
