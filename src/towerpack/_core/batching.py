"""Dynamic batching: which waiting requests are computed together, and which of them failed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

Call = TypeVar("Call")
Answer = TypeVar("Answer")


class Request(NamedTuple, Generic[Call, Answer]):
    """A call that waits to be computed.

    Attributes:
        call: What is computed.
        key: Calls with equal keys can be computed together.
        rows: Number of rows that the call adds to a batch.
        answer: Future of the result.
    """

    call: Call
    key: object
    rows: int
    answer: Answer


def take(waiting: list[Request[Call, Answer]], max_rows: int) -> list[Request[Call, Answer]]:
    """Remove and return the first request, and later ones that can be computed together with it.

    Args:
        waiting: Requests in order. Those that are not taken keep their order.
        max_rows: The largest batch; only a single request may have more rows.
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

    Args:
        compute: Returns the result of each call.
        calls: At least one.
        errors: Exceptions that a call may raise. Others are raised here.

    Returns:
        The result of each call, or the exception that the call raises by itself.
    """
    try:
        return [*compute(calls)]
    except errors as error:
        if len(calls) == 1:
            return [error]
        middle = len(calls) // 2
        halves = (calls[:middle], calls[middle:])
        return [answer for half in halves for answer in compute_in_halves(compute, half, errors)]
