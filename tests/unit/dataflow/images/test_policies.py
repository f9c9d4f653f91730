"""RandAugment and its operations, beside Pillow's; random erasing."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from scaling import sample
from towerpack._core.errors import ConfigError
from towerpack.dataflow import images as im

pytest.importorskip("cv2")
pil_image = pytest.importorskip("PIL.Image")
from PIL import ImageEnhance, ImageOps  # noqa: E402


def noise(height: int = 37, width: int = 50, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Not all values occur, and low ones more often than high ones."""
    rng = np.random.default_rng(seed)
    return (rng.random((height, width, channels)) ** 2 * 200 + 10).astype(np.uint8)


IMAGES = [noise(), noise(3, 400, seed=1), np.full((9, 9, 3), 77, np.uint8), noise(1, 1)]


def photometric(name: str, strength: float, img: np.ndarray) -> np.ndarray:
    return im.RandAugment().operation(name, strength, img.shape[:2]).apply_image(img)


def test_tables_are_pillows() -> None:
    for img in IMAGES:
        pil = pil_image.fromarray(img)
        assert np.array_equal(photometric("equalize", 1, img), np.asarray(ImageOps.equalize(pil)))
        for bits in range(4, 9):
            expected = np.asarray(ImageOps.posterize(pil, bits))
            assert np.array_equal(photometric("posterize", (8 - bits) / 4, img), expected)
        for threshold in (0, 1, 77, 78, 255, 256):
            expected = np.asarray(ImageOps.solarize(pil, threshold))
            assert np.array_equal(photometric("solarize", 1 - threshold / 256, img), expected)
    for low in sample(range(256)):
        for high in range(low, 256, 5):
            img = np.arange(low, high + 1, dtype=np.uint8)[None]
            expected = np.asarray(ImageOps.autocontrast(pil_image.fromarray(img)))
            assert np.array_equal(photometric("autocontrast", 1, img), expected), (low, high)


@pytest.mark.parametrize("name", ["color", "contrast", "brightness", "sharpness"])
def test_enhancements_are_pillows(name: str) -> None:
    enhancer = getattr(ImageEnhance, name.capitalize())
    for img, strength in itertools.product(IMAGES, (-1.0, -0.4, 0.0, 0.5, 1.0)):
        ours = photometric(name, strength, img).astype(int)
        theirs = np.asarray(enhancer(pil_image.fromarray(img)).enhance(1 + 0.9 * strength))
        # They cut fractions off, twice; we round, once.
        assert np.abs(ours - theirs).max() <= 2, strength


def test_strengths() -> None:
    img = noise()
    assert np.array_equal(photometric("posterize", -1.0, img), img & 0xF0)
    for name in im.RandAugment.OPS:
        if name not in ("autocontrast", "equalize"):
            transform = im.RandAugment().operation(name, 0.0, (37, 50))
            assert np.array_equal(transform.apply_image(img), img), name


def test_geometry() -> None:
    for name, strength, expected in (
        ("translate_x", 1.0, [160.0, 20.0]),
        ("translate_y", -1.0, [10.0, 20.0 - 15000 / 331]),
        ("shear_x", 1.0, [16.0, 20.0]),
        ("shear_y", -0.5, [10.0, 18.5]),
    ):
        transform = im.RandAugment().operation(name, strength, (100, 331))
        assert transform.apply_coords(np.array([[10.0, 20.0]]))[0] == pytest.approx(expected)


def test_what_comes_in_is_grey() -> None:
    img = np.zeros((40, 40, 3), np.uint8)
    mask = np.ones((40, 40), np.int32)
    aug = im.RandAugment(1, 10, ops=("translate_x",), fill=(1, 2, 3), mask_value=9)
    transform = aug.get_transform(img, np.random.default_rng(0))
    shown, labels = transform.apply_image(img), transform.apply_mask(mask)
    assert {tuple(pixel) for pixel in shown.reshape(-1, 3).tolist()} >= {(0, 0, 0), (1, 2, 3)}
    assert set(np.unique(labels)) == {1, 9}


def test_all_operations_are_drawn_in_both_directions() -> None:
    rng = np.random.default_rng(0)
    img = noise()
    seen = {repr(t) for _ in range(300) for t in im.RandAugment(1, 5).get_transform(img, rng)}  # type: ignore[attr-defined]
    for name in ("color", "contrast", "brightness", "sharpness"):
        assert {f"PhotometricTransform({name}, {s}0.50)" for s in "+-"} <= seen
    assert len([text for text in seen if text.startswith("WarpAffine")]) == 10


def test_only_uint8() -> None:
    with pytest.raises(ConfigError, match="before ToFloat32"):
        im.RandAugment(1, 5, ops=("equalize",)).augment(noise().astype(np.float32))
    with pytest.raises(ConfigError, match="three channels"):
        im.RandAugment(1, 5, ops=("color",)).augment(noise(channels=4))


def test_erasing() -> None:
    rng = np.random.default_rng(0)
    img = np.zeros((60, 80, 3), np.uint8)
    erasing = im.RandomErasing(0.5, (0.1, 0.2), (0.5, 2.0), fill=(1, 2, 3))
    outs = [out for _ in range(200) if (out := erasing.augment(img, rng)).any()]
    for out in outs:
        changed = out[:, :, 0] == 1
        rows, columns = np.flatnonzero(changed.any(1)), np.flatnonzero(changed.any(0))
        h, w = np.ptp(rows) + 1, np.ptp(columns) + 1
        assert changed.sum() == h * w == (out[:, :, 2] == 3).sum()  # one rectangle
        assert 0.09 < h * w / 4800 < 0.21 and 0.48 < h / w < 2.1
    assert 75 < len(outs) < 125
