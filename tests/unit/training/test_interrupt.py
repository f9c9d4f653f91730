"""SIGTERM and Ctrl-C are remembered, and leave only where they may."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from towerpack.training.interrupt import Interrupted, InterruptFlag


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.001)  # The handler runs between two bytecodes.


def test_it_is_noticed_when_asked() -> None:
    flag = InterruptFlag()
    with flag.listening():
        flag.check()
        terminate()
        terminate()
        with pytest.raises(Interrupted):
            flag.check()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert flag.exit_code == 143


def test_raised_immediately() -> None:
    flag = InterruptFlag()
    after = []
    with flag.listening():
        with pytest.raises(Interrupted):
            with flag.raised_immediately():
                terminate()
                after.append("not left")
        assert not after
        terminate()  # No longer at once.
        with pytest.raises(Interrupted):
            with flag.raised_immediately():
                after.append("not entered")
    assert not after


def test_no_except_exception_catches_it() -> None:
    assert not issubclass(Interrupted, Exception)


def test_in_another_thread_the_program_keeps_its_handler() -> None:
    seen = []

    def run() -> None:
        with InterruptFlag().listening():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]


def test_a_handler_of_the_program_is_put_back() -> None:
    def own(number: int, frame: object) -> None: ...

    before = signal.signal(signal.SIGTERM, own)
    try:
        with InterruptFlag().listening():
            assert signal.getsignal(signal.SIGTERM) is not own
        assert signal.getsignal(signal.SIGTERM) is own
    finally:
        signal.signal(signal.SIGTERM, before)


def test_ctrl_c_is_remembered_too_unless_the_program_has_a_plan_for_it() -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        flag = InterruptFlag()
        with flag.listening():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.001)
            with pytest.raises(Interrupted):
                flag.check()
            assert flag.exit_code == 130
            assert signal.getsignal(signal.SIGINT) is signal.SIG_DFL  # the next one ends at once
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        with InterruptFlag().listening():
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
