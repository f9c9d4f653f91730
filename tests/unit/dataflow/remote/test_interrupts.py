"""A signal that comes while pyzmq frees messages must not be lost."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import zmq

from towerpack.dataflow.remote._interrupts import keep_lost_interrupts, raise_lost_interrupt
from towerpack.dataflow.remote._post import Post


@pytest.fixture
def post(tmp_path: Path) -> Iterator[Post]:
    post = Post([f"ipc://{tmp_path}/s"], bind=True, keys=None, hwm=4, max_nbytes=1000)
    yield post
    post.close()


def lose(error: BaseException) -> None:
    """Let a handler raise it while 300,000 messages are freed."""

    def handler(number: int, frame: FrameType | None) -> None:
        raise error

    before = signal.signal(signal.SIGALRM, handler)
    try:
        while not _lost_while_freeing(error):
            pass
    finally:
        signal.signal(signal.SIGALRM, before)


def _lost_while_freeing(error: BaseException) -> bool:
    frames = [zmq.Frame(b"x") for _ in range(300_000)]
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.002)
        del frames
        signal.setitimer(signal.ITIMER_REAL, 0)
    except BaseException as raised:
        if raised is not error:
            raise
        return False  # on a busy machine it may come too early
    return True


@pytest.mark.parametrize("call", ["receive", "wait"])
def test_what_a_handler_raises_while_messages_are_freed_is_raised_later(
    post: Post, call: str, capfd: pytest.CaptureFixture[str]
) -> None:
    lose(KeyboardInterrupt("lost"))
    with pytest.raises(KeyboardInterrupt, match="lost"):
        post.receive() if call == "receive" else post.wait(0.01)
    assert post.receive() is None  # once
    assert capfd.readouterr().err == ""  # a program that is ended by Ctrl-C prints no traceback


def test_hooks_of_others_that_were_put_in_place_since_do_not_hide_ours(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def open_and_close() -> None:
        Post([f"ipc://{tmp_path}/s"], bind=True, keys=None, hwm=4, max_nbytes=1000).close()

    open_and_close()
    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)  # so does an app of Typer's
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    open_and_close()
    ours = sys.excepthook, sys.unraisablehook
    lose(KeyboardInterrupt("lost"))
    with pytest.raises(KeyboardInterrupt, match="lost"):
        raise_lost_interrupt()
    assert capfd.readouterr().err == ""
    open_and_close()
    assert (sys.excepthook, sys.unraisablehook) == ours  # they do not pile up


def test_what_ends_a_program_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: seen.append(error[1]))
    keep_lost_interrupts()
    error = ValueError("the end")
    sys.excepthook(ValueError, error, None)
    with pytest.raises(TypeError) as caught:
        zmq.Frame("no bytes")
    sys.excepthook(TypeError, caught.value, caught.value.__traceback__)
    assert seen == [error, caught.value]


def test_other_things_that_cannot_be_raised_go_where_they_went(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    keep_lost_interrupts()

    class Bad:
        def __del__(self) -> None:
            raise ValueError("bad")

    Bad()
    assert [type(u.exc_value) for u in seen] == [ValueError]
    raise_lost_interrupt()
