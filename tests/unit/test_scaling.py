from __future__ import annotations

import pytest

import scaling


def test_sample_is_evenly_spaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "SCALE", 0.05)
    assert scaling.sample(range(100)) == [0, 20, 40, 60, 80]
    assert scaling.sample(range(100), at_least=10) == list(range(0, 100, 10))
    assert scaling.sample("ab") == ["a"]
    assert scaling.sample([]) == []


def test_full_scale_is_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "SCALE", 1.0)
    assert scaling.sample(range(7), at_least=3) == list(range(7))
    assert scaling.scaled(1000) == 1000
