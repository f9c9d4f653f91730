"""Random numbers by position."""

from __future__ import annotations

import numpy as np
import pytest

from towerpack._core.errors import ConfigError
from towerpack.dataflow import ItemRNG
from towerpack.dataflow._draws import position_rng


def rng(positions: list[int] | range, epoch: int = 0, key: int = 9) -> ItemRNG:
    return ItemRNG(key, epoch, np.asarray(positions, np.int64))


def test_blocks_do_not_matter() -> None:
    whole, part = rng(range(100)), rng([50, 3, 99])
    for draw in (
        lambda r: r.random(),
        lambda r: r.random(3),
        lambda r: r.integers(5, 10, (2, 2)),
        lambda r: r.normal(),
        lambda r: r.uniform(-1, 1),
    ):
        assert np.array_equal(draw(whole)[[50, 3, 99]], draw(part))


def test_calls_epochs_and_keys_give_other_numbers() -> None:
    one = rng(range(1000))
    drawn = [one.random(), one.random(), rng(range(1000), 1).random()]
    drawn.append(rng(range(1000), key=10).random())
    for i in range(4):
        for j in range(i):
            assert not np.any(drawn[i] == drawn[j])
            assert abs(np.corrcoef(drawn[i], drawn[j])[0, 1]) < 0.15


def test_uniform() -> None:
    values = rng(range(20_000)).random(4)
    assert values.shape == (20_000, 4)
    assert values.min() >= 0 and values.max() < 1
    assert abs(values.mean() - 0.5) < 0.005
    assert abs(values.var() - 1 / 12) < 0.002
    assert np.abs(np.corrcoef(values.T) - np.eye(4)).max() < 0.03
    assert abs(np.corrcoef(values[:-1, 0], values[1:, 0])[0, 1]) < 0.03


def test_integers_cover_their_range_evenly() -> None:
    counts = np.bincount(rng(range(60_000)).integers(0, 6), minlength=6)
    assert len(counts) == 6
    assert np.abs(counts - 10_000).max() < 500
    assert set(rng(range(100)).integers(-3, -1).tolist()) == {-3, -2}
    with pytest.raises(ConfigError, match="0 values"):
        rng(range(3)).integers(5, 5)


def test_normal() -> None:
    values = rng(range(40_000)).normal(2.0, 3.0)
    assert abs(values.mean() - 2) < 0.06
    assert abs(values.std() - 3) < 0.06


def test_one_generator_for_each_position() -> None:
    first = position_rng(1, 2, 3).random(4)
    assert np.array_equal(position_rng(1, 2, 3).random(4), first)
    for other in (position_rng(0, 2, 3), position_rng(1, 0, 3), position_rng(1, 2, 4)):
        assert not np.any(other.random(4) == first)
