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
    """Process items in several threads. Iterate over the results in the order of the items.

    Reads up to two items per worker ahead, in the calling thread. If a worker fails on an item,
    raises the error in place of the item's result.

    Args:
        workers: Functions from an item to a result. Each processes one item at a time.
        items: Items to process.
        poll: Function that is called several times a second while waiting; may raise.
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
