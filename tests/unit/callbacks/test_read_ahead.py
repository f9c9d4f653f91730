from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from own_threads import threads
from processes import stopwatch
from towerpack._core import read_ahead
from towerpack._core.read_ahead import ReadAhead


def pair(raw: int, position: int) -> tuple[int, int]:
    return raw, position


def nothing() -> None:
    pass


def test_items_come_in_order_and_once() -> None:
    with ReadAhead(lambda: iter(range(7, 12)), pair) as reader:
        assert list(reader.items(nothing)) == [(7, 0), (8, 1), (9, 2), (10, 3), (11, 4)]
    assert threads() == []


def test_one_is_read_ahead_and_no_more() -> None:
    read: list[int] = []

    def source() -> Iterator[int]:
        for i in range(10):
            read.append(i)
            yield i

    with ReadAhead(source, pair) as reader:
        items = reader.items(nothing)
        next(items)
        time.sleep(0.1)
        # One taken, one waiting, one that waits for its place.
        assert read == [0, 1, 2]
    assert threads() == []


def test_an_exception_comes_after_the_items_before_it() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise KeyError("broken")

    with ReadAhead(source, pair) as reader:
        items = reader.items(nothing)
        assert next(items) == (1, 0)
        with pytest.raises(KeyError, match="broken"):
            next(items)


def test_an_exception_in_opening_and_in_preparing_is_raised() -> None:
    def broken() -> Iterator[int]:
        raise OSError("no such file")

    with ReadAhead(broken, pair) as reader, pytest.raises(OSError, match="no such file"):
        list(reader.items(nothing))

    def refuse(raw: int, position: int) -> int:
        raise ValueError(f"datapoint {position}")

    with ReadAhead(lambda: iter([1]), refuse) as reader:
        with pytest.raises(ValueError, match="datapoint 0"):
            list(reader.items(nothing))


def test_a_wait_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "_JOIN_S", 0.1)
    release = threading.Event()
    polls: list[float] = []

    def stuck() -> Iterator[int]:
        release.wait(30)
        yield 1

    def poll() -> None:
        polls.append(time.monotonic())
        if len(polls) == 3:
            raise KeyboardInterrupt

    reader = ReadAhead(stuck, pair)
    with stopwatch() as watch, pytest.raises(KeyboardInterrupt):
        with reader:
            list(reader.items(poll))
    # Two waits, and the patience with a thread that does not come back.
    assert watch.seconds < 10
    release.set()
    reader._thread.join(10)
    assert threads() == []


@pytest.mark.parametrize("taken", [1, 5])
def test_the_iterator_is_closed(taken: int) -> None:
    class Source:
        def __init__(self) -> None:
            self.left = 5
            self.closed = False

        def __iter__(self) -> Source:
            return self

        def __next__(self) -> int:
            self.left -= 1
            if self.left < 0:
                raise StopIteration
            return self.left

        def close(self) -> None:
            self.closed = True

    source = Source()
    with ReadAhead(lambda: source, pair) as reader:
        items = reader.items(nothing)
        for _ in range(taken):
            next(items)
    assert source.closed
    assert threads() == []
