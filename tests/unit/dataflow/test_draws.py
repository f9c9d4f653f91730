"""Random numbers by position."""

from __future__ import annotations

import pickle
import random
import zlib

import numpy as np
import pytest

from scaling import scaled
from towerpack._core.errors import ConfigError
from towerpack.dataflow import ItemRNG
from towerpack.dataflow._item_rng import ItemRNGs, position_rng


def rng(positions: list[int] | range, epoch: int = 0, key: int = 9) -> ItemRNG:
    return ItemRNG(key, epoch, np.asarray(positions, np.int64))


def test_calls_epochs_and_keys_give_other_numbers() -> None:
    one = rng(range(1000))
    drawn = [one.random(), one.random(), rng(range(1000), 1).random()]
    drawn.append(rng(range(1000), key=10).random())
    for i in range(4):
        for j in range(i):
            assert not np.any(drawn[i] == drawn[j])
            assert abs(np.corrcoef(drawn[i], drawn[j])[0, 1]) < 0.15


def test_distributions() -> None:
    normal = rng(range(40_000)).normal(2.0, 3.0)
    assert abs(normal.mean() - 2) < 0.06 and abs(normal.std() - 3) < 0.06
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
    with pytest.raises(ConfigError, match=r"must be in 1\.\.2\*\*32"):
        rng(range(3)).integers(5, 5)


def test_one_generator_for_each_position() -> None:
    first = position_rng(1, 2, 3).random(4)
    assert np.array_equal(position_rng(1, 2, 3).random(4), first)
    for other in (position_rng(0, 2, 3), position_rng(1, 0, 3), position_rng(1, 2, 4)):
        assert not np.any(other.random(4) == first)


@pytest.mark.parametrize("seed", range(scaled(400)))
def test_drawing_ahead_changes_nothing(seed: int) -> None:
    drawn = random.Random(seed)
    rngs = ItemRNGs(9, drawn.choice([None, 800, 1000]))
    for _ in range(8):
        epoch, start, count = drawn.randrange(2), drawn.randrange(601), drawn.randrange(1, 201)
        block = range(start, start + count)
        ahead, alone, part = rngs(epoch, block), rng(block, epoch), rng([*block][::-3], epoch)
        assert len(ahead) == len(alone) == count
        for shape in drawn.choices([(), 3, (2, 2), [2], (0,), (300,), (70, 70)], k=3):
            whole = ahead.random(shape)
            assert np.array_equal(whole, alone.random(shape))
            assert np.array_equal(whole[::-3], part.random(shape))


def test_what_was_drawn_belongs_to_the_caller() -> None:
    rngs = ItemRNGs(9)
    for draw in (
        lambda r: r.random(),
        lambda r: r.random(2),
        lambda r: r.integers(0, 1 << 32),
        lambda r: r.uniform(),
        lambda r: r.normal(),
    ):
        first = draw(rngs(0, range(10, 20)))
        kept = first.copy()
        first[:] = 0
        assert np.array_equal(draw(rngs(0, range(10, 20))), kept)


def test_pickles_without_what_was_drawn() -> None:
    rngs = ItemRNGs(9)
    first = rngs(0, range(100)).random(30)
    sent = pickle.dumps(rngs)
    assert len(sent) < 1000
    assert np.array_equal(pickle.loads(sent)(0, range(100)).random(30), first)


def test_numbers_stay_as_they_are() -> None:
    """A run that continues draws the numbers that it would have drawn: no change may alter them."""
    drawn = rng([0, 1, 7, 10**12], epoch=3, key=42)
    assert [zlib.crc32(drawn.random((2, 3)).tobytes()), drawn.integers(0, 1000, 3)[0].tolist()] == [
        4258796781,
        [996, 28, 631],
    ]
    assert position_rng(42, 3, 7).integers(0, 1000, 3).tolist() == [435, 424, 874]
