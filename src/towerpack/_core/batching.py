from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

Call = TypeVar("Call")
Answer = TypeVar("Answer")


class Request(NamedTuple, Generic[Call, Answer]):
    """Call that waits in a queue, and the future for its result."""

    call: Call
    key: object  # Calls with equal keys can be computed together.
    rows: int
    answer: Answer


def take(waiting: list[Request[Call, Answer]], max_rows: int) -> list[Request[Call, Answer]]:
    """Remove and return the first request, and later requests that fit into the same batch.

    A batch of several requests has equal keys and at most `max_rows` rows. Others keep their order.
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
    """Compute calls as one batch. If the batch fails, compute its halves, down to single calls.

    Return the result of each call, or the exception that the call raises alone. Exceptions of
    other types than `errors` are not caught.
    """
    try:
        return [*compute(calls)]
    except errors as error:
        if len(calls) == 1:
            return [error]
    # Outside of `except`, so that errors of the halves do not refer to the error above.
    middle = len(calls) // 2
    halves = (calls[:middle], calls[middle:])
    return [answer for half in halves for answer in compute_in_halves(compute, half, errors)]
