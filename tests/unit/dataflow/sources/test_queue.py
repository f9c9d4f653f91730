from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
from typing import Any

import numpy as np
import pytest

from towerpack import ConfigError
from towerpack.dataflow import DataFromQueue


def filled(*items: Any) -> queue.Queue[Any]:
    source: queue.Queue[Any] = queue.Queue()
    for item in items:
        source.put(item)
    return source


def test_until_the_sentinel_pass_by_pass() -> None:
    ds = DataFromQueue(filled((1,), (2,), None, (3,), None))
    assert (list(ds), list(ds)) == ([(1,), (2,)], [(3,)])
    with pytest.raises(TypeError, match="not known"):
        len(ds)


def test_other_sentinels() -> None:
    assert list(DataFromQueue(filled("a", "en" + "d"), sentinel="end")) == ["a"]
    stop = object()
    items = [np.arange(3), np.zeros(2), None, 0, False]
    assert len(list(DataFromQueue(filled(*items, stop), sentinel=stop))) == 5
    # An array is compared with nothing, and 0 is not False.
    assert len(list(DataFromQueue(filled(*items), sentinel=False))) == 4


def test_a_state_counts_and_a_resume_takes_what_is_there() -> None:
    source = filled((1,), (2,), (3,), None)
    ds = DataFromQueue(source)
    iterator = iter(ds)
    next(iterator)
    resumed = ds.iterate(state=iterator.state())
    assert resumed.state() == iterator.state()
    assert list(resumed) == [(2,), (3,)]
    assert resumed.state()["at"] == 3


def test_process_queues_and_closed_ones() -> None:
    context = multiprocessing.get_context("spawn")
    source, simple = context.Queue(), context.SimpleQueue()
    for one in (source, simple):
        one.put((1,))
        one.put(None)
        assert list(DataFromQueue(one)) == [(1,)]
        one.close()
    source.join_thread()
    assert list(DataFromQueue(source)) == []


class Odd:
    def __init__(self, *results: Any) -> None:
        self.results = list(results)

    def get(self) -> Any:
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result


def test_anything_with_get() -> None:
    assert list(DataFromQueue(Odd(1, 2, EOFError()))) == [1, 2]
    with pytest.raises(ValueError, match="a mistake"):
        list(DataFromQueue(Odd(1, ValueError("a mistake"))))
    with pytest.raises(ConfigError, match="must have a method"):
        DataFromQueue([])


def test_ctrl_c_while_waiting() -> None:
    threading.Timer(0.1, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        list(DataFromQueue(queue.Queue()))
