"""The thread that reads ahead, and what it hands over."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from processes import wait_until
from towerpack import DataFlowError
from towerpack.dataflow import DataFromGenerator, DataFromList, MapData, PrefetchData
from towerpack.dataflow._flow import Place, open_flow
from towerpack.dataflow._stream import Tally
from towerpack.dataflow.parallel._reader import Buffer, Entry, read_ahead


def _entry(number: int) -> Entry:
    return Entry((number,), number, 0)


def _put(buffer: Buffer, *numbers: int) -> None:
    for number in numbers:
        buffer.put(_entry(number))


def _taken(buffer: Buffer, count: int) -> list[int]:
    return [entry.state for entry in buffer.take(count)]


def test_whole_groups_are_taken_and_at_the_end_the_rest() -> None:
    buffer = Buffer(100, lambda: None, 3)
    _put(buffer, *range(8))
    assert _taken(buffer, 3) == [0, 1, 2]
    assert _taken(buffer, 300) == [3, 4, 5]
    assert _taken(buffer, 300) == []
    buffer.end(None, 0)
    assert not buffer.is_over()
    assert _taken(buffer, 300) == [6, 7]
    assert buffer.is_over()


def test_who_waits_is_woken_for_a_whole_group_an_error_or_the_end() -> None:
    woken: list[int] = []
    buffer = Buffer(100, lambda: woken.append(1), 3)
    _put(buffer, 0, 1, 2, 3)
    assert not woken, "nobody has waited yet"
    assert _taken(buffer, 3) == [0, 1, 2]
    _put(buffer, 4)
    assert not woken, "two of three"
    _put(buffer, 5, 6)
    assert len(woken) == 1
    assert _taken(buffer, 3) == [3, 4, 5]
    buffer.end(None, 0)
    assert len(woken) == 2
    assert _taken(buffer, 3) == [6]


def test_an_error_is_raised_when_nothing_whole_is_left_before_it() -> None:
    buffer = Buffer(100, lambda: None, 2)
    _put(buffer, 0, 1, 2)
    thread = threading.Thread(target=buffer.fail, args=(OSError("cannot read"),))
    thread.start()
    assert wait_until(lambda: buffer._error is not None, 5)
    buffer.raise_error()
    assert _taken(buffer, 2) == [0, 1]
    assert _taken(buffer, 2) == []
    with pytest.raises(OSError, match="cannot read"):
        buffer.raise_error()
    thread.join(5)
    assert not thread.is_alive(), "the source may try again"
    _put(buffer, 3)
    assert _taken(buffer, 2) == [2, 3]


def test_a_datapoint_that_cannot_be_kept_at_first_is_not_lost() -> None:
    failures = [MemoryError("no room"), MemoryError("still none")]

    def keep(dp: Any) -> Any:
        if dp[0] == 1 and failures:
            raise failures.pop()
        return dp

    stream = open_flow(DataFromList([(i,) for i in range(3)]), Place(0), 0, None)
    buffer = Buffer(100, lambda: None)
    read: list[Entry] = []
    read_ahead(stream, Tally(), buffer, keep)
    for _ in range(2):
        assert wait_until(lambda: buffer._error is not None, 5)
        read += buffer.take(100)
        with pytest.raises(MemoryError):
            buffer.raise_error()
    assert wait_until(lambda: buffer._ended, 5)
    read += buffer.take(100)
    assert read == [Entry((i,), i + 1, 0) for i in range(3)]


def test_a_source_that_fails_while_workers_end_what_nobody_waits_for() -> None:
    """Then nothing is issued at first: its error must wait for what was read before it."""
    broken = threading.Event()
    gate = threading.Event()

    def source() -> Iterator[Any]:
        for i in range(9):
            if i == 5 and broken.is_set():
                raise OSError("cannot read")
            yield (i,)

    def slow(dp: Any) -> Any:
        if dp[0]:
            gate.wait(5)
        return dp

    flow = PrefetchData(MapData(DataFromGenerator(source), slow), num_proc=1, backend="thread")
    left = flow.iterate(seed=0)
    assert next(left) == (0,)
    left.close()
    broken.set()
    threading.Timer(0.3, gate.set).start()
    found: list[int] = []
    with pytest.raises(DataFlowError, match="cannot read"):
        for dp in flow.iterate(seed=0):
            found.append(dp[0])
    assert found == [0, 1, 2, 3, 4]
