"""Pixels: numbers checked by hand, no wrap-around, both ranges of floats."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest

from augmentors import rng
from towerpack._core.errors import ConfigError
from towerpack.dataflow import images as im

Array = np.ndarray[Any, Any]


def picture(*shape: int) -> Array:
    return rng(5).integers(0, 256, shape, np.uint8)


class Always(np.random.Generator):
    """A generator whose uniform numbers are the greatest possible."""

    def uniform(self, low: float = 0.0, high: float = 1.0, size: Any = None) -> Any:
        return high if size is None else np.full(size, high)


@pytest.fixture
def most() -> np.random.Generator:
    return Always(np.random.Philox(0))


def test_values(most: np.random.Generator) -> None:
    for aug, pixels, expected in (
        (im.Brightness(10.6), [0, 100, 250, 255], [11, 111, 255, 255]),
        (im.Brightness(10.6), [0.0, 250.0], [10.6, 255]),
        (im.Brightness(10.6, clip=False), [0.0, 250.0], [10.6, 260.6]),
        (im.Brightness(10.6, clip=False), [250], [255]),
        (im.Brightness(0.5, max_value=1), [0.0, 0.75], [0.5, 1]),
        (im.BrightnessScale((1, 1.5)), [0, 1, 101, 200], [0, 2, 152, 255]),
        (im.BrightnessScale((1, 1.5), max_value=1), [0.5, 0.8], [0.75, 1]),
        (im.BrightnessScale((-2, -1)), [0, 10], [0, 0]),
        (im.Contrast((1, 2)), [100, 150, 200], [50, 150, 250]),
        (im.Contrast((1, 3)), [100, 150, 200], [0, 150, 255]),
        (im.Contrast((0, 0)), [100.0, 200.0], [150, 150]),
        (im.Gamma((0, 1)), [0, 64, 255], [0, 128, 255]),  # 1 / (1 + 1) is a square root
        (im.Gamma((0, 1)), [63.75], [127.5]),
        (im.Gamma((0, 1), max_value=1), [0.25, 1.5, -1.0], [0.5, 1, 0]),
        (im.Gamma((0, 1), max_value=1), [64], [128]),
        (im.Clip(10, 20), [0, 15, 30], [10, 15, 20]),
        (im.Clip(), [-1.0, 300.0], [0, 255]),
    ):
        # Grey values, as one row of an image of one channel.
        image = np.array([pixels])[..., None]
        image = image.astype(np.uint8 if image.dtype.kind == "i" else np.float32)
        out = aug(image, most)
        assert out.dtype == image.dtype and out.shape == image.shape
        assert np.round(out[0, :, 0].astype(np.float64), 3).tolist() == expected, (aug, pixels)
    drawn = [im.Brightness(3).draw(picture(1, 1), rng(seed)) for seed in range(300)]
    assert -3 <= min(drawn) < -2.9 and 2.9 < max(drawn) <= 3
    image = np.zeros((1, 2, 3), np.float32)
    image[0, :, 0] = 0, 100  # means 50, 0, 0
    assert im.Contrast((0, 0))(image).tolist() == [[[50, 0, 0]] * 2]
    assert np.allclose(im.Contrast((0, 0), rgb=True)(image), 50 * 0.299)
    assert np.allclose(im.Contrast((0, 0), rgb=False)(image), 50 * 0.114)


def test_blur() -> None:
    dot = np.zeros((7, 7, 1), np.float32)
    dot[3, 3] = 100
    assert np.array_equal(im.GaussianBlur((0, 1))(dot), dot)
    blurred = im.GaussianBlur((1, 2), (1.0, 1.0))(dot)
    side = np.exp(-0.5) / (1 + 2 * np.exp(-0.5))
    centre = 1 / (1 + 2 * np.exp(-0.5))
    expected = np.array([side, centre, side]) * centre * 100
    assert blurred[3, 2:5, 0].tolist() == pytest.approx(expected)
    assert blurred.sum() == pytest.approx(100)
    assert im.GaussianBlur(max_size=5).size_range == (0, 5)
    sizes = {tuple(im.GaussianBlur(symmetric=False).draw(dot, rng(s))[0]) for s in range(200)}
    assert sizes == {(a, b) for a in (1, 3, 5) for b in (1, 3, 5)}


def test_hue(most: np.random.Generator) -> None:
    red = np.array([[[200, 0, 0]]], np.uint8)
    green, blue = [0, 200, 0], [0, 0, 200]
    for dtype in (np.uint8, np.float32):
        # Without `rgb`, what is red here is blue, and becomes red.
        for angle, rgb, expected in ((60, True, green), (120, True, blue), (60, False, blue)):
            turned = im.Hue((0, angle), rgb=rgb)(red.astype(dtype), most)
            assert turned.dtype == dtype and np.abs(turned.astype(float) - expected).max() < 1
    image = picture(9, 9, 3)
    for around in (180, -180):
        assert np.array_equal(im.Hue((around, around))(image), im.Hue((0, 0))(image))


def test_saturation(most: np.random.Generator) -> None:
    image = np.array([[[100, 50, 0]]], np.float32)
    grey = 100 * 0.299 + 50 * 0.587
    expected = np.clip(image * 2 - grey, 0, 255)
    assert np.allclose(im.Saturation(1)(image, most), expected, atol=1e-3)
    rounded = im.Saturation(1)(image.astype(np.uint8), most)
    assert np.array_equal(rounded, np.rint(expected).astype(np.uint8))
    assert im.Saturation(1, clip=False)(image, most).min() < 0
    blue = 0.114 * 100 + 0.587 * 50
    assert np.allclose(im.Saturation(1, rgb=False)(image, most)[0, 0, 0], 200 - blue, atol=1e-3)


def test_lighting() -> None:
    vectors = [[0.0, 1, 0], [0, 0, 1], [1, 0, 0]]  # the first is the third channel
    aug = im.Lighting(1.0, [2.0, 3.0, 0.0], vectors)
    weights = rng(4).normal(0, 1, 3)
    expected = [3 * weights[1], 0, 2 * weights[0]]
    image = np.full((2, 2, 3), 100, np.float32)
    assert np.allclose(aug(image, rng(4))[0, 0] - 100, expected, atol=1e-4)
    assert aug(image.astype(np.uint8), rng(4)).dtype == np.uint8


def test_noise() -> None:
    image = np.full((100, 100, 3), 128, np.float32)
    noise = im.GaussianNoise(5)(image, rng()) - 128
    assert abs(noise.mean()) < 0.1 and abs(noise.std() - 5) < 0.1
    assert abs(np.corrcoef(noise[..., 0].ravel(), noise[..., 1].ravel())[0, 1]) < 0.05
    dark = im.GaussianNoise(50)(np.zeros((50, 50), np.uint8), rng())
    assert 0.4 < (dark == 0).mean() < 0.6 and dark.max() < 250
    assert im.GaussianNoise(50, clip=False)(image * 0, rng()).min() < -100
    assert im.GaussianNoise(5, max_value=1)(image / 255, rng()).max() == 1


def test_salt_and_pepper() -> None:
    image = np.full((200, 200, 3), 128, np.uint8)
    noisy = im.SaltPepperNoise(0.1, 0.3)(image, rng())
    assert (noisy == noisy[..., :1]).all()  # whole pixels
    assert abs((noisy == 255).mean() - 0.1) < 0.01 and abs((noisy == 0).mean() - 0.3) < 0.01
    assert im.SaltPepperNoise(1, 0, max_value=1)(image.astype(np.float32)).min() == 1


@pytest.mark.parametrize("shape", [(16, 24), (16, 24, 1), (16, 24, 3), (1, 1, 3)])
def test_jpeg_noise_keeps_the_shape(shape: tuple[int, ...]) -> None:
    smooth = np.linspace(50, 200, int(np.prod(shape))).reshape(shape)
    for white in (255, 1):
        floats = (smooth * white / 255).astype(np.float32)
        out = im.JpegNoise((90, 91), max_value=white)(floats)
        assert out.shape == shape and out.dtype == np.float32
        assert np.abs(out - floats).max() < 0.1 * white
    if shape[-1] == 3:
        image = smooth.astype(np.uint8)
        encoded = cv2.imencode(".jpg", image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 30])[1]
        expected: Any = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
        assert np.array_equal(im.JpegNoise((30, 31))(image), expected[..., ::-1])


def test_cutout() -> None:
    image = np.full((10, 12, 3), 9, np.uint8)
    sizes: set[tuple[int, int]] = set()
    corners: set[tuple[int, int]] = set()
    for seed in range(150):
        cut = im.RandomCutout((9, 10), (10, 12), fill=(1, 2, 3))(image, rng(seed))
        ys, xs = (cut == (1, 2, 3)).all(-1).nonzero()
        sizes.add((int(np.ptp(ys)) + 1, int(np.ptp(xs)) + 1))
        corners.add((int(ys.min()), int(xs.min())))
    assert sizes == {(h, w) for h in (9, 10) for w in (10, 11, 12)}
    assert corners == {(y, x) for y in (0, 1) for x in (0, 1, 2)}
    with pytest.raises(ConfigError, match="does not fit"):
        im.RandomCutout(11, 3)(image)


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("shape", [(30, 20, 3), (30, 20)])
def test_normalize(together: bool, shape: tuple[int, ...]) -> None:
    image = picture(*shape)
    axes = None if together else (0, 1)
    out = im.MeanVarianceNormalize(together)(image)
    assert out.dtype == np.float32 and out.shape == shape
    assert np.allclose(out.mean(axis=axes), 0, atol=1e-5)
    assert np.allclose(out.std(axis=axes), 1, atol=1e-5)
    stretched = im.MinMaxNormalize(-1, 3, together)(image)
    assert stretched.dtype == np.float32 and stretched.shape == shape
    assert np.allclose(stretched.min(axis=axes), -1) and np.allclose(stretched.max(axis=axes), 3)
    even = np.full(shape, 7, np.uint8)
    assert not im.MeanVarianceNormalize(together)(even).any()
    assert (im.MinMaxNormalize(2, 5, together)(even) == 2).all()


def test_conversions() -> None:
    floats = np.array([[-1.0, 0.4, 0.6, 254.5, 300]], np.float32)
    assert im.ToUint8()(floats).tolist() == [[0, 0, 1, 254, 255]]
    assert im.ToUint8(max_value=1)(np.array([[0.5, 2.0]], np.float32)).tolist() == [[128, 255]]
    image = picture(4, 4, 3)
    assert np.array_equal(im.ToFloat32()(image), image.astype(np.float32))
    assert np.allclose(im.ToFloat32(max_value=1)(image) * 255, image)
    assert np.array_equal(im.ToUint8(max_value=1)(im.ToFloat32(max_value=1)(image)), image)


def test_grey() -> None:
    image = np.array([[[200, 100, 50]]], np.uint8)
    grey = round(200 * 0.299 + 100 * 0.587 + 50 * 0.114)
    assert im.Grayscale()(image).tolist() == [[[grey]]]
    assert im.Grayscale(keepdims=False)(image).tolist() == [[grey]]
    assert im.Grayscale(keepshape=True)(image).tolist() == [[[grey] * 3]]
    assert im.Grayscale(rgb=False)(image)[0, 0, 0] == round(50 * 0.299 + 100 * 0.587 + 200 * 0.114)
    assert im.ColorSpace(cv2.COLOR_RGB2GRAY)(image).tolist() == [[[grey]]]
    assert im.ColorSpace("RGB2GRAY", keepdims=False)(image).tolist() == [[grey]]
    assert im.ColorSpace("RGB2BGR")(image).tolist() == [[[50, 100, 200]]]


def test_colours_need_three_channels() -> None:
    lighting = im.Lighting(1, [1] * 3, [[1] * 3] * 3)
    for aug in (im.Hue(), im.Saturation(), im.Contrast((1, 2), rgb=True), im.Grayscale(), lighting):
        for shape in ((5, 5), (5, 5, 1), (5, 5, 4)):
            with pytest.raises(ConfigError, match=rf"{type(aug).__name__}\(.*three color"):
                aug(picture(*shape))
