"""A map over threads whose results come in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import Final, TypeVar

T = TypeVar("T")
R = TypeVar("R")

_AHEAD: Final = 2
_POLL_S: Final = 0.2


def in_order(
    workers: Sequence[Callable[[T], R]],
    items: Iterable[T],
    *,
    poll: Callable[[], None] = lambda: None,
) -> Iterator[R]:
    """Results of items in their order; each is made by the worker that is free first, in a thread.

    Up to two items for each worker are read ahead, in the thread that iterates.

    Args:
        workers: Each makes a result of an item, of one item at a time.
        items: What is worked on.
        poll: Called several times a second while waiting; may raise.

    Raises:
        Exception: Whatever a worker has raised, where its item stands.
    """
    idle: SimpleQueue[Callable[[T], R]] = SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def work(item: T) -> R:
        worker = idle.get()
        try:
            return worker(item)
        finally:
            idle.put(worker)

    def first() -> R:
        future = waiting.popleft()
        while not wait([future], _POLL_S).done:
            poll()
        return future.result()

    waiting: deque[Future[R]] = deque()
    pool = ThreadPoolExecutor(len(workers), "towerpack-in-order")
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) >= len(workers) * (1 + _AHEAD):
                yield first()
        while waiting:
            yield first()
    finally:
        pool.shutdown(cancel_futures=True)
