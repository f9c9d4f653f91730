"""Fixtures of the tests that train a small model."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest

from own_threads import threads
from processes import wait_until
from small_training import PacedBy, train
from towerpack.training import SimpleTrainer


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Fixes the number of steps that one call runs."""

    def pace(steps: int) -> None:
        monkeypatch.setattr("towerpack.training.loop.loop.Pace", PacedBy)
        monkeypatch.setattr(PacedBy, "fixed", steps)

    return pace


@pytest.fixture(scope="module")
def nothing_to_collect() -> None:
    """Frees whole networks of tests before: else a thread of ours might, for half a minute."""
    gc.collect()


@pytest.fixture
def no_thread_is_left() -> Iterator[None]:
    yield
    assert wait_until(lambda: not threads(), 60), threads()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> SimpleTrainer:
    return train(tmp_path_factory.mktemp("undisturbed"), max_epoch=3)
