"""Pixels: numbers checked by hand, no wrap-around, both ranges of floats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augmentors import rng
from scaling import scaled
from towerpack._core.errors import ConfigError
from towerpack.dataflow.images import (
    Brightness,
    BrightnessScale,
    Clip,
    ColorSpace,
    Contrast,
    Gamma,
    GaussianBlur,
    GaussianNoise,
    Grayscale,
    Hue,
    ImageAugmentor,
    JpegNoise,
    Lighting,
    MeanVarianceNormalize,
    MinMaxNormalize,
    RandomCutout,
    SaltPepperNoise,
    Saturation,
    ToFloat32,
    ToUint8,
)

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


def values(aug: ImageAugmentor, pixels: Any, generator: np.random.Generator) -> list[Any]:
    """What becomes of grey values, as one row of an image of one channel."""
    array = np.array([pixels])
    array = array.astype(np.uint8 if array.dtype.kind == "i" else np.float32)[..., None]
    out = aug(array, generator)
    assert out.dtype == array.dtype and out.shape == array.shape
    return np.round(out[0, :, 0].astype(np.float64), 3).tolist()


def test_brightness(most: np.random.Generator) -> None:
    assert values(Brightness(10.6), [0, 100, 250, 255], most) == [11, 111, 255, 255]
    assert values(Brightness(10.6), [0.0, 250.0], most) == [10.6, 255]
    assert values(Brightness(10.6, clip=False), [0.0, 250.0], most) == [10.6, 260.6]
    assert values(Brightness(10.6, clip=False), [250], most) == [255]
    assert values(Brightness(0.5, max_value=1), [0.0, 0.75], most) == [0.5, 1]
    drawn = [Brightness(3).draw(picture(1, 1), rng(seed)) for seed in range(300)]
    assert -3 <= min(drawn) < -2.9 and 2.9 < max(drawn) <= 3


def test_brightness_scale(most: np.random.Generator) -> None:
    assert values(BrightnessScale((1, 1.5)), [0, 1, 101, 200], most) == [0, 2, 152, 255]
    assert values(BrightnessScale((1, 1.5), max_value=1), [0.5, 0.8], most) == [0.75, 1]
    assert values(BrightnessScale((-2, -1)), [0, 10], most) == [0, 0]


def test_contrast(most: np.random.Generator) -> None:
    assert values(Contrast((1, 2)), [100, 150, 200], most) == [50, 150, 250]
    assert values(Contrast((1, 3)), [100, 150, 200], most) == [0, 150, 255]
    assert values(Contrast((0, 0)), [100.0, 200.0], most) == [150, 150]
    image = np.zeros((1, 2, 3), np.float32)
    image[0, :, 0] = 0, 100  # means 50, 0, 0
    assert Contrast((0, 0))(image).tolist() == [[[50, 0, 0]] * 2]
    assert np.allclose(Contrast((0, 0), rgb=True)(image), 50 * 0.299)
    assert np.allclose(Contrast((0, 0), rgb=False)(image), 50 * 0.114)


def test_gamma(most: np.random.Generator) -> None:
    # 1 / (1 + 1) is a square root.
    assert values(Gamma((0, 1)), [0, 64, 255], most) == [0, 128, 255]
    assert values(Gamma((0, 1)), [63.75], most) == [127.5]
    assert values(Gamma((0, 1), max_value=1), [0.25, 1.5, -1.0], most) == [0.5, 1, 0]
    assert values(Gamma((0, 1), max_value=1), [64], most) == [128]


def test_clip() -> None:
    assert values(Clip(10, 20), [0, 15, 30], rng()) == [10, 15, 20]
    assert values(Clip(), [-1.0, 300.0], rng()) == [0, 255]


def test_blur() -> None:
    dot = np.zeros((7, 7, 1), np.float32)
    dot[3, 3] = 100
    assert np.array_equal(GaussianBlur((0, 1))(dot), dot)
    blurred = GaussianBlur((1, 2), (1.0, 1.0))(dot)
    side = np.exp(-0.5) / (1 + 2 * np.exp(-0.5))
    centre = 1 / (1 + 2 * np.exp(-0.5))
    assert blurred[3, 2:5, 0].tolist() == pytest.approx(
        [100 * side * centre, 100 * centre**2, 100 * side * centre]
    )
    assert blurred.sum() == pytest.approx(100)
    even = np.full((9, 9), 100, np.uint8)
    assert np.array_equal(GaussianBlur((3, 4))(even), even)
    assert GaussianBlur(max_size=5).size_range == (0, 5)
    sizes = {tuple(GaussianBlur(symmetric=False).draw(dot, rng(s))[0]) for s in range(200)}
    assert sizes == {(a, b) for a in (1, 3, 5) for b in (1, 3, 5)}
    assert {tuple(GaussianBlur().draw(dot, rng(s))[0]) for s in range(50)} == {
        (1, 1),
        (3, 3),
        (5, 5),
    }


def test_hue(most: np.random.Generator) -> None:
    red = np.array([[[200, 0, 0]]], np.uint8)
    for dtype in (np.uint8, np.float32):
        for angle, rgb, expected in (
            (60, True, [0, 200, 0]),
            (120, True, [0, 0, 200]),
            (60, False, [0, 0, 200]),  # blue becomes red
            (120, False, [0, 200, 0]),
        ):
            turned = Hue((0, angle), rgb=rgb)(red.astype(dtype), most)
            assert turned.dtype == dtype and np.abs(turned.astype(float) - expected).max() < 1
    unit = red.astype(np.float32) / 255
    assert np.allclose(Hue((0, 60))(unit, most), [[[0, 200 / 255, 0]]], atol=1e-3)
    image = picture(9, 9, 3)
    for around in (180, -180):
        out = Hue((around, around))(image).astype(int)
        assert np.abs(out - Hue((0, 0))(image)).max() == 0


def test_saturation(most: np.random.Generator) -> None:
    image = np.array([[[100, 50, 0]]], np.float32)
    grey = 100 * 0.299 + 50 * 0.587
    expected = np.clip(image * 2 - grey, 0, 255)
    assert np.allclose(Saturation(1)(image, most), expected, atol=1e-3)
    assert np.array_equal(
        Saturation(1)(image.astype(np.uint8), most), np.rint(expected).astype(np.uint8)
    )
    free = Saturation(1, clip=False)(image, most)
    assert free.min() < 0
    blue = 0.114 * 100 + 0.587 * 50
    assert np.allclose(Saturation(1, rgb=False)(image, most)[0, 0, 0], 200 - blue, atol=1e-3)


def test_lighting() -> None:
    vectors = [[0.0, 1, 0], [0, 0, 1], [1, 0, 0]]  # the first is the third channel
    aug = Lighting(1.0, [2.0, 3.0, 0.0], vectors)
    weights = rng(4).normal(0, 1, 3)
    expected = [3 * weights[1], 0, 2 * weights[0]]
    image = np.full((2, 2, 3), 100, np.float32)
    assert np.allclose(aug(image, rng(4))[0, 0] - 100, expected, atol=1e-4)
    assert aug(image.astype(np.uint8), rng(4)).dtype == np.uint8


def test_noise() -> None:
    image = np.full((100, 100, 3), 128, np.float32)
    noise = GaussianNoise(5)(image, rng()) - 128
    assert abs(noise.mean()) < 0.1 and abs(noise.std() - 5) < 0.1
    assert abs(np.corrcoef(noise[..., 0].ravel(), noise[..., 1].ravel())[0, 1]) < 0.05
    dark = GaussianNoise(50)(np.zeros((50, 50), np.uint8), rng())
    assert 0.4 < (dark == 0).mean() < 0.6 and dark.max() < 250
    assert GaussianNoise(50, clip=False)(image * 0, rng()).min() < -100
    assert GaussianNoise(5, max_value=1)(image / 255, rng()).max() == 1


def test_salt_and_pepper() -> None:
    image = np.full((200, 200, 3), 128, np.uint8)
    noisy = SaltPepperNoise(0.1, 0.3)(image, rng())
    assert (noisy == noisy[..., :1]).all()  # whole pixels
    assert abs((noisy == 255).mean() - 0.1) < 0.01 and abs((noisy == 0).mean() - 0.3) < 0.01
    assert SaltPepperNoise(1, 0, max_value=1)(image.astype(np.float32)).min() == 1
    assert np.array_equal(SaltPepperNoise(0, 0)(image), image)


@pytest.mark.parametrize("shape", [(16, 24), (16, 24, 1), (16, 24, 3), (1, 1, 3)])
def test_jpeg_noise_keeps_the_shape(shape: tuple[int, ...]) -> None:
    smooth = np.linspace(50, 200, int(np.prod(shape))).reshape(shape)
    for white in (255, 1):
        floats = (smooth * white / 255).astype(np.float32)
        out = JpegNoise((90, 91), max_value=white)(floats)
        assert out.shape == shape and out.dtype == np.float32
        assert np.abs(out - floats).max() < 0.1 * white
    image = smooth.astype(np.uint8)
    worse, better = (JpegNoise((q, q + 1))(image).astype(float) - image for q in (5, 100))
    assert np.abs(better).max() <= np.abs(worse).max() + 2
    if shape[-1] == 3:
        encoded = cv2.imencode(".jpg", image[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 30])[1]
        expected = cv2.imdecode(encoded, cv2.IMREAD_COLOR)
        assert expected is not None
        assert np.array_equal(JpegNoise((30, 31))(image), expected[..., ::-1])


def test_cutout() -> None:
    image = np.full((10, 12, 3), 9, np.uint8)
    areas = {int((RandomCutout(3, 4)(image, rng(s)) == 0).all(-1).sum()) for s in range(30)}
    assert areas == {12}
    sizes: set[tuple[int, int]] = set()
    corners: set[tuple[int, int]] = set()
    for seed in range(400):
        cut = RandomCutout((9, 10), (10, 12), fill=(1, 2, 3))(image, rng(seed))
        ys, xs = (cut == (1, 2, 3)).all(-1).nonzero()
        sizes.add((int(np.ptp(ys)) + 1, int(np.ptp(xs)) + 1))
        corners.add((int(ys.min()), int(xs.min())))
    assert sizes == {(h, w) for h in (9, 10) for w in (10, 11, 12)}
    assert corners == {(y, x) for y in (0, 1) for x in (0, 1, 2)}
    assert image.min() == 9
    with pytest.raises(ConfigError, match="does not fit"):
        RandomCutout(11, 3)(image)
    with pytest.raises(ConfigError, match=r"is no colour .*\n.*expected  one number, or 3"):
        RandomCutout(3, 3, fill=(1, 2))(image)
    mask = np.ones((10, 12), int)
    assert RandomCutout(3, 4).get_transform(image).apply_mask(mask).all()


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("shape", [(30, 20, 3), (30, 20)])
def test_normalize(together: bool, shape: tuple[int, ...]) -> None:
    image = picture(*shape)
    axes = None if together else (0, 1)
    out = MeanVarianceNormalize(together)(image)
    assert out.dtype == np.float32 and out.shape == shape
    assert np.allclose(out.mean(axis=axes), 0, atol=1e-5)
    assert np.allclose(out.std(axis=axes), 1, atol=1e-5)
    stretched = MinMaxNormalize(-1, 3, together)(image)
    assert stretched.dtype == np.float32 and stretched.shape == shape
    assert np.allclose(stretched.min(axis=axes), -1) and np.allclose(stretched.max(axis=axes), 3)
    even = np.full(shape, 7, np.uint8)
    assert not MeanVarianceNormalize(together)(even).any()
    assert (MinMaxNormalize(2, 5, together)(even) == 2).all()


def test_conversions() -> None:
    floats = np.array([[-1.0, 0.4, 0.6, 254.5, 300]], np.float32)
    assert ToUint8()(floats).tolist() == [[0, 0, 1, 254, 255]]
    assert ToUint8(max_value=1)(np.array([[0.5, 2.0]], np.float32)).tolist() == [[128, 255]]
    image = picture(4, 4, 3)
    assert np.array_equal(ToFloat32()(image), image.astype(np.float32))
    assert np.allclose(ToFloat32(max_value=1)(image) * 255, image)
    assert np.array_equal(ToUint8(max_value=1)(ToFloat32(max_value=1)(image)), image)


def test_grey() -> None:
    image = np.array([[[200, 100, 50]]], np.uint8)
    grey = round(200 * 0.299 + 100 * 0.587 + 50 * 0.114)
    assert Grayscale()(image).tolist() == [[[grey]]]
    assert Grayscale(keepdims=False)(image).tolist() == [[grey]]
    assert Grayscale(keepshape=True)(image).tolist() == [[[grey] * 3]]
    assert Grayscale(rgb=False)(image)[0, 0, 0] == round(50 * 0.299 + 100 * 0.587 + 200 * 0.114)
    assert ColorSpace(cv2.COLOR_RGB2GRAY)(image).tolist() == [[[grey]]]
    assert ColorSpace("RGB2GRAY", keepdims=False)(image).tolist() == [[grey]]
    assert ColorSpace("RGB2BGR")(image).tolist() == [[[50, 100, 200]]]


@pytest.mark.parametrize(
    "aug",
    [
        Hue(),
        Saturation(),
        Contrast((1, 2), rgb=True),
        Grayscale(),
        Lighting(1, [1] * 3, [[1] * 3] * 3),
    ],
)
@pytest.mark.parametrize("shape", [(5, 5), (5, 5, 1), (5, 5, 4)])
def test_colours_need_three_channels(aug: ImageAugmentor, shape: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="three colours") as caught:
        aug(picture(*shape))
    assert type(aug).__name__ in str(caught.value)


POINTWISE: list[tuple[ImageAugmentor, Callable[[Array, float], Array]]] = [
    (Brightness(90), lambda x, drawn: x + drawn),
    (BrightnessScale((0, 3)), lambda x, drawn: x * drawn),
    (Contrast((0, 3)), lambda x, drawn: (x - x.mean((0, 1))) * drawn + x.mean((0, 1))),
    (Gamma((-0.9, 3)), lambda x, drawn: 255 * (x / 255) ** (1 / (1 + drawn))),
]


@pytest.mark.parametrize(
    ("aug", "formula"), POINTWISE, ids=[type(a).__name__ for a, _ in POINTWISE]
)
@settings(max_examples=scaled(600))
@given(st.integers(0, 2**32), st.sampled_from([(5, 7), (5, 7, 1), (4, 4, 3), (3, 3, 6)]))
def test_tables_and_arithmetic_agree(
    aug: Any, formula: Callable[[Array, float], Array], seed: int, shape: tuple[int, ...]
) -> None:
    image = rng(seed).integers(0, 256, shape, np.uint8)
    drawn = aug.draw(image, rng(seed))
    expected = np.clip(formula(image.astype(np.float64), drawn), 0, 255)
    assert np.allclose(aug(image.astype(np.float32), rng(seed)), expected, atol=1e-2)
    assert np.abs(aug(image, rng(seed)) - expected).max() <= 0.51
