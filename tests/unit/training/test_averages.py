"""Means over an epoch, moving averages over all steps."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towerpack.training.state.step_metrics import StepAverages


def test_numbers_by_hand() -> None:
    averages = StepAverages({"error": 0.5})
    averages.add(np.array([1.0, 2.0]), {"error": np.array([4.0, 8.0])})
    # ((0 · 0.5 + 4 · 0.5) · 0.5 + 8 · 0.5) / (0.25 + 0.5)
    assert averages.end_epoch() == {"cost": 1.5, "error": 5.0 / 0.75}
    averages.begin_epoch()
    averages.add(np.array([7.0]), {"error": np.array([0.0])})
    assert averages.end_epoch() == {"cost": 7.0, "error": 2.5 / 0.875}


def test_nothing_yet() -> None:
    assert StepAverages({"error": 0.9}).end_epoch() == {}


@given(
    values=st.lists(st.floats(-1e6, 1e6, width=32), min_size=1, max_size=12),
    cuts=st.lists(st.integers(0, 12), max_size=4),
    restart=st.integers(0, 12),
)
def test_calls_and_restarts_change_no_bit(
    values: list[float], cuts: list[int], restart: int
) -> None:
    array = np.array(values, np.float32)
    whole = StepAverages({"a": 0.9})
    whole.add(array, {"a": array})
    parts = StepAverages({"a": 0.9})
    for piece in np.split(array, sorted({*cuts, restart})):
        parts.add(piece, {"a": piece})
        state = json.loads(json.dumps(parts.state()))
        parts = StepAverages({"a": 0.9})
        parts.restore(state)
    assert parts.end_epoch() == whole.end_epoch()


def test_names_may_come_and_go_over_a_restart() -> None:
    old = StepAverages({"a": 0.5, "gone": 0.5})
    old.add(np.array([1.0]), {"a": np.array([3.0]), "gone": np.array([1.0])})
    new = StepAverages({"a": 0.5, "new": 0.5})
    new.restore(old.state())
    assert new.end_epoch() == {"cost": 1.0, "a": pytest.approx(3.0)}
