"""Many images at once: the same distributions, whatever the blocks, and no one else's memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scaling import scaled
from towerpack._core.errors import ConfigError
from towerpack.dataflow import (
    ItemRNG,
)
from towerpack.dataflow import images as im

pytest.importorskip("cv2")

IMAGES = np.random.default_rng(0).integers(0, 256, (40, 12, 10, 3), np.uint8)

NOT_RANDOM: list[im.ImageAugmentor] = [
    im.CenterPaste((16, 14)),
    im.CenterCrop(8),
    im.MeanVarianceNormalize(),
    im.MeanVarianceNormalize(all_channel=False),
    im.ToFloat32(1.0),
    im.ToUint8(),
    im.Identity(),
    im.Flip(horiz=True, prob=1),
    im.Flip(vert=True, prob=1),
    im.BrightnessScale((0.7, 0.7)),
    im.Contrast((1.7, 1.7)),
    im.Contrast((0.7, 0.7), rgb=False),
    im.RandomErasing(0),
]
RANDOM: list[im.ImageAugmentor] = [
    im.RandomCrop((8, 9)),
    im.Flip(horiz=True),
    im.Brightness(40),
    im.BrightnessScale((0.5, 1.5)),
    im.Contrast((0.5, 1.5), rgb=True),
    im.RandomCutout((2, 5), 3),
    im.RandomErasing(0.7),
    im.RandomErasing(0.7, fill=9),
]


def items(first: int = 0, count: int = 40) -> ItemRNG:
    return ItemRNG(5, 0, np.arange(first, first + count))


@pytest.mark.parametrize("aug", [*NOT_RANDOM, *RANDOM], ids=repr)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_blocks_do_not_matter(aug: im.ImageAugmentor, dtype: Any) -> None:
    augment = im.BatchAugment(aug)
    for channels in ((3,), (), (1,), (5,)):
        images = np.random.default_rng(1).integers(0, 256, (17, 12, 10, *channels)).astype(dtype)
        if getattr(aug, "rgb", None) is not None and channels != (3,):
            with pytest.raises(ConfigError, match="three color"):
                augment(images, items(0, 17))
            continue
        before = images.copy()
        whole = augment(images, items(0, 17))
        single = aug.augment(images[0], np.random.default_rng(0))
        assert whole.dtype == single.dtype and whole.shape == (17, *single.shape)
        for size in (1, 5, 16):
            blocks = [images[first : first + size] for first in range(0, 17, size)]
            parts = [augment(block, items(i * size, len(block))) for i, block in enumerate(blocks)]
            assert np.array_equal(np.concatenate(parts), whole)
        assert np.array_equal(images, before)


@pytest.mark.parametrize("aug", NOT_RANDOM, ids=repr)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_what_is_not_random_is_as_for_single_images(aug: im.ImageAugmentor, dtype: Any) -> None:
    images = IMAGES.astype(dtype)
    expected = np.stack([aug.augment(img) for img in images])
    found = im.BatchAugment(aug)(images, items())
    if dtype == np.uint8 and expected.dtype == np.uint8:
        # Halves may be rounded to either side: one does a table of levels, one arithmetic.
        assert np.abs(found.astype(int) - expected.astype(int)).max() <= 1
        assert (found != expected).mean() < 0.01
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-4)


def test_distributions() -> None:
    images = np.zeros((4000, 6, 7), np.uint8)
    images[:, 2, 3] = 200
    rng = ItemRNG(1, 2, np.arange(4000))
    numbers = np.broadcast_to(np.arange(42, dtype=np.uint8).reshape(6, 7), (4000, 6, 7))
    corners = im.BatchAugment(im.RandomCrop((3, 4)))(numbers, rng)[:, 0, 0]
    found, counts = np.unique(corners, return_counts=True)
    assert found.tolist() == [7 * y + x for y in range(4) for x in range(4)]
    assert counts.min() > 190  # of 4000 / 16
    flipped = im.BatchAugment(im.Flip(vert=True, prob=0.3))(images, rng) != images
    assert flipped.any(axis=(1, 2)).mean() == pytest.approx(0.3, abs=0.04)
    shifts = im.BatchAugment(im.Brightness(40))(images + 100, rng)[:, 0, 0].astype(int) - 100
    assert shifts.min() == -40 and shifts.max() == 40 and abs(shifts.mean()) < 1.5
    cut = im.BatchAugment(im.RandomCutout((1, 3), 2, fill=7))(images, rng) == 7
    rows = cut.any(axis=2).sum(axis=1)
    assert set(rows) == {1, 2, 3} and set(cut.any(axis=1).sum(axis=1)) == {2}
    assert cut.any(axis=2)[:, [0, 5]].mean(axis=0).min() > 0.1  # reaches the borders
    erased = im.BatchAugment(im.RandomErasing(0.5, (0.2, 0.4), (0.5, 2), fill=9))(images, rng) == 9
    assert erased.any(axis=(1, 2)).mean() == pytest.approx(0.5, abs=0.04)
    assert 0.15 < erased[erased.any(axis=(1, 2))].mean() < 0.45
    impossible = im.RandomErasing(1.0, (1.0, 1.0), (5.0, 5.0), fill=9)
    assert np.array_equal(im.BatchAugment(impossible)(images, rng), images)
    noise = im.BatchAugment(im.RandomErasing(1.0, (0.9, 1.0), (1, 1)))(images, rng)
    assert noise.std() > 50 and len(np.unique(noise)) == 256


def test_any_memory_layout() -> None:
    others = [im.Flip(horiz=True), im.Contrast((0.5, 2)), im.RandomErasing(1.0)]
    for seed in range(scaled(400)):
        draw = np.random.default_rng(seed)
        images = draw.integers(0, 256, draw.integers(1, 10, 4), np.uint8)
        images = images.transpose(draw.permutation(4))
        h, w = max(1, images.shape[1] - 1), max(1, images.shape[2] - 2)
        augment = im.BatchAugment([im.RandomCrop((h, w)), *others])
        found = augment(images, items(0, len(images)))
        assert found.shape == (len(images), h, w, images.shape[3])
        again = augment(np.ascontiguousarray(images), items(0, len(images)))
        assert np.array_equal(found, again), seed


def test_functions_and_lists() -> None:
    tried = {type(aug).__name__ for aug in (*NOT_RANDOM, *RANDOM)}
    assert tried == set(im.BatchAugment.KINDS)
    augment = im.BatchAugment([im.Flip(horiz=True), lambda x: x.astype(np.float32) / 255])
    assert augment(IMAGES, items()).dtype == np.float32
    both = [im.Flip(horiz=True), im.RandomCrop(8)]
    one = im.BatchAugment(im.AugmentorList(both))(IMAGES, items())
    assert np.array_equal(one, im.BatchAugment(both)(IMAGES, items()))


def test_errors() -> None:
    none: Any
    for none in (im.Hue((0, 5)), im.RandomPaste(20), "flip"):
        with pytest.raises(ConfigError, match="does not support"):
            im.BatchAugment([none])
    for bad in (IMAGES[0, 0], IMAGES.astype(np.int64), IMAGES[:, :0]):
        with pytest.raises(ConfigError, match="several images"):
            im.BatchAugment([im.Identity()])(bad, items())
    for aug in (im.RandomCrop(13), im.CenterCrop(13), im.CenterPaste(5), im.RandomCutout(13, 1)):
        with pytest.raises(ConfigError, match="does not fit"):
            im.BatchAugment(aug)(IMAGES, items())
