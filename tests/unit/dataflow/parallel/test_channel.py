"""Messages and exceptions between processes."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest

from towerpack import DataFlowError, MapError
from towerpack.dataflow.parallel._messages import (
    Channel,
    describe_failure,
    dump,
    load,
    restore_failure,
)


@pytest.fixture
def ends() -> Any:
    one, other = map(Channel, socket.socketpair())
    yield one, other
    one.close()
    other.close()


def test_messages_keep_their_order_and_size(ends: Any) -> None:
    one, other = ends
    small = [("unit", i, "x" * i) for i in range(10)]
    for message in small:
        one.send(message)
    assert [other.receive() for _ in small] == small
    large = ("large", b"x" * 150_000)
    one.send(large)
    assert other.poll() == []  # a part of it
    assert other.receive() == large
    assert other.poll() == []


def test_descriptors_come_with_their_message(ends: Any) -> None:
    one, other = ends
    read, write = os.pipe()
    one.send(("job", 1), (write,))
    assert other.receive() == ("job", 1)
    copy = other.fds.popleft()
    os.write(copy, b"x")
    assert os.read(read, 1) == b"x"
    for fd in (read, write, copy):
        os.close(fd)


def test_the_end_of_the_other_side_is_an_end_of_file(ends: Any) -> None:
    one, other = ends
    one.send(("last",))
    one.close()
    assert other.receive() == ("last",)
    with pytest.raises(EOFError):
        other.receive()
    with pytest.raises(EOFError):
        other.poll()


class TwoArgumentsError(ValueError):
    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


class UnpicklableError(ValueError):
    def __reduce__(self) -> Any:
        raise TypeError("no")


def raised(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        raise error from cause
    except BaseException as caught:
        return restore_failure(load(dump(describe_failure(caught))))


def test_errors_come_back_as_they_are() -> None:
    error = raised(MapError("bad", got="this", fix="that", details="more"), KeyError("x"))
    assert type(error) is MapError
    assert (error.got, error.fix) == ("this", "that")
    assert error.details is not None
    assert error.details.startswith("more\nTraceback in the worker")
    assert "in raised" in error.details
    assert isinstance(error.__cause__, KeyError)


def test_foreign_errors_keep_their_type_and_tell_the_story() -> None:
    error = raised(FileNotFoundError(2, "No such file", "x.jpg"))
    assert type(error) is FileNotFoundError
    assert error.filename == "x.jpg"
    assert "in raised" in error.__notes__[0]


@pytest.mark.parametrize("error", [TwoArgumentsError(1, "x"), UnpicklableError("1: x")])
def test_errors_that_do_not_pickle_become_text(error: Exception) -> None:
    found = raised(error)
    assert isinstance(found, DataFlowError)
    assert f"{type(error).__name__}: 1: x" in str(found)
