"""Dynamic batching: which waiting requests are computed together, and which of them failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

Call = TypeVar("Call")
Answer = TypeVar("Answer")


class Request(NamedTuple, Generic[Call, Answer]):
    """A call that waits to be computed, and the future of its result."""

    call: Call
    key: object  # Calls with equal keys can be computed together.
    rows: int
    answer: Answer


def take(waiting: list[Request[Call, Answer]], max_rows: int) -> list[Request[Call, Answer]]:
    """Remove and return the first request, and later ones that can be computed together with it.

    Only a single request may have more than `max_rows` rows. The other requests keep their order.
    """
    taken, others, rows = list[Request[Call, Answer]](), list[Request[Call, Answer]](), 0
    for request in waiting:
        fits = not taken or (request.key == taken[0].key and rows + request.rows <= max_rows)
        (taken if fits else others).append(request)
        rows += request.rows * fits
    waiting[:] = others
    return taken


def compute_in_halves(
    compute: Callable[[Sequence[Call]], Sequence[Answer]],
    calls: Sequence[Call],
    errors: tuple[type[Exception], ...] = (Exception,),
) -> list[Answer | Exception]:
    """Compute calls together. If a batch fails, try its halves, down to the calls that fail alone.

    Return the result of each call, or the exception that it raises by itself. Exceptions that are
    not in `errors` are raised here.
    """
    try:
        return [*compute(calls)]
    except errors as error:
        if len(calls) == 1:
            return [error]
    # Not in the `except`: the errors of the halves would hold the one above, and its frames.
    middle = len(calls) // 2
    halves = (calls[:middle], calls[middle:])
    return [answer for half in halves for answer in compute_in_halves(compute, half, errors)]
