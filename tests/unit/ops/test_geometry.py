"""Laws of the preprocessing of pictures: in data and in graphs alike."""

import io
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from towerpack import ConfigError
from towerpack.apps.classification import augmenters
from towerpack.apps.classification.augmenters import Augmenter, RandomShortestEdge
from towerpack.dataflow.images import AugmentorList, decode_image
from towerpack.ops.geometry import Geometry
from towerpack.ops.picture_files import picture_of

NAMES = (
    "none", "cifar", "vgg", "inception", "randaugment", "digits", "efficientnet_lite", "unmirrored"
)  # fmt: skip
ALL = [getattr(augmenters, name) for name in NAMES]


def picture(rng: np.random.Generator, h: int, w: int, channels: int) -> np.ndarray:
    return rng.integers(0, 256, (h, w, channels), np.uint8)


@pytest.fixture(scope="module")
def rng() -> np.random.Generator:
    return np.random.default_rng(5)


def test_graphs_and_data_agree(rng: np.random.Generator) -> None:
    for case in range(60):
        geometry = Geometry(
            height=int(rng.integers(1, 80)),
            width=int(rng.integers(1, 80)),
            channels=(1, 3)[case % 2],
            fraction=(1, 0.875, 0.5)[case % 3],
            shortest_edge=(None, int(rng.integers(1, 90)))[case // 6 % 2],
        )
        h, w = (int(side) for side in rng.integers(1, 200, 2))
        img = picture(rng, h, w, (1, 3)[case // 2 % 2])
        data = AugmentorList(geometry.augmentors()).augment(img)
        tensor = geometry.tensors(tf.constant(img)).numpy()
        assert data.dtype == tensor.dtype == np.uint8
        assert data.shape == tensor.shape == (geometry.height, geometry.width, geometry.channels)
        apart = np.abs(data.astype(int) - tensor)
        assert apart.max() <= 2, (geometry, img.shape)
        assert np.mean(apart <= 1) > 0.98, (geometry, img.shape)


def test_graphs_take_pictures_of_any_size(rng: np.random.Generator) -> None:
    for geometry in (augmenters.vgg.geometry((20, 30)), augmenters.inception.geometry((20, 30))):
        anything = tf.TensorSpec([None, None, 3], tf.uint8)
        graph = tf.function(geometry.tensors, autograph=False).get_concrete_function(anything)
        assert graph.output_shapes == (20, 30, 3)
        for h, w in ((9, 200), (64, 64), (31, 17)):
            img = picture(rng, h, w, 3)
            data = AugmentorList(geometry.augmentors()).augment(img)
            assert np.abs(data.astype(int) - graph(tf.constant(img)).numpy()).max() <= 2


def files(rng: np.random.Generator) -> Iterator[tuple[str, bytes]]:
    colour = Image.fromarray(np.kron(picture(rng, 9, 7, 3), np.ones((3, 5, 1), np.uint8)))
    for orientation, endian in itertools.product((1, 2, 3, 4, 5, 6, 7, 8, 9), "<>"):
        exif = Image.Exif()
        exif.endian = endian
        exif[0x010E], exif[0x0112] = "a tag before it", orientation
        out = io.BytesIO()
        colour.save(out, "JPEG", exif=exif, quality=80)
        yield f"turned {orientation}{endian}", out.getvalue()
    modes = (("L", "JPEG"), ("CMYK", "JPEG"), ("RGB", "PNG"), ("RGBA", "PNG"), ("L", "PNG"))
    for mode, format in (*modes, ("P", "PNG"), ("RGB", "BMP"), ("P", "GIF"), ("RGB", "WEBP")):
        out = io.BytesIO()
        colour.convert(mode).save(out, format)
        yield f"{mode} {format}", out.getvalue()


def test_graphs_read_files_as_data_do(rng: np.random.Generator) -> None:
    """Upright, and the same to the last bit, but for what each makes of four inks."""
    read = tf.function(picture_of, input_signature=[tf.TensorSpec([], tf.string)], autograph=False)
    for name, file in files(rng):
        expected = decode_image(file)
        found = read(file).numpy()
        assert found.shape == expected.shape, name
        apart = np.abs(expected.astype(int) - found).max()
        assert apart <= (2 if name == "CMYK JPEG" else 0), name


def test_what_is_kept() -> None:
    """The middle, upright, with its aspect ratio; black around what is too small."""
    img = np.zeros((100, 200, 3), np.uint8)
    img[:, 50:150] = 255, 128, 0
    square = Geometry(height=50, width=50, shortest_edge=50)
    assert (AugmentorList(square.augmentors()).augment(img) == (255, 128, 0)).all()
    small = Geometry(height=60, width=60, shortest_edge=20)
    padded = AugmentorList(small.augmentors()).augment(img)
    assert (padded[:20] == 0).all() and (padded[40:] == 0).all() and padded[20:40].any()
    stretched = Geometry(height=10, width=10, channels=1)
    grey = AugmentorList(stretched.augmentors()).augment(img)
    assert grey.shape == (10, 10, 1) and grey[5, 5, 0] == round(0.299 * 255 + 0.587 * 128)
    assert grey[5, 0, 0] == 0


def test_the_right_size_stays_as_it_is(rng: np.random.Generator) -> None:
    img = picture(rng, 32, 32, 3)
    geometry = augmenters.cifar.geometry((32, 32))
    assert np.array_equal(AugmentorList(geometry.augmentors()).augment(img), img)
    assert np.array_equal(geometry.tensors(tf.constant(img)), img)


@pytest.mark.parametrize(
    "numbers",
    [
        {"height": 0},
        {"channels": 2},
        {"channels": 4},
        {"fraction": 0},
        {"fraction": 1.1},
        {"shortest_edge": 0},
    ],
)
def test_numbers_that_make_no_sense(numbers: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="A geometry needs"):
        Geometry(**{"height": 4, "width": 4, **numbers})


def test_the_metadata_are_the_geometry() -> None:
    for augmenter in ALL:
        geometry = augmenter.geometry((20, 30))
        assert Geometry(**geometry.as_dict()) == geometry


@pytest.mark.parametrize("augmenter", ALL, ids=lambda a: a.name)
def test_training_pictures(augmenter: Augmenter, rng: np.random.Generator) -> None:
    """uint8, of the size, of pictures of any size; random, where anything is; a function of rng."""
    for size in ((24, 24), (20, 40)):
        made = AugmentorList(augmenter.train(size))
        for h, w in ((8, 8), (60, 30), (30, 90), (200, 200)):
            img = picture(rng, h, w, 3)
            one, same, other = (made.augment(img, np.random.default_rng(s)) for s in (0, 0, 1))
            assert one.shape == (*size, 3) and one.dtype == np.uint8
            assert np.array_equal(one, same)
            assert np.array_equal(one, other) == (augmenter.name == "none")


def test_random_edges(rng: np.random.Generator) -> None:
    augmentor = RandomShortestEdge(10, 12)
    sizes = {augmentor.augment(picture(rng, 40, 80, 3), rng).shape for _ in range(50)}
    assert sizes == {(edge, 2 * edge, 3) for edge in (10, 11, 12)}


def test_numbers_of_a_network() -> None:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (4, 6, 6, 3), np.uint8)
    images[3] = 7
    as_floats = images.astype(np.float64)
    spread = as_floats.std((1, 2, 3), keepdims=True)
    mean = as_floats.mean((1, 2, 3), keepdims=True)
    expected = {
        "none": as_floats / 255,
        "cifar": (as_floats - mean) / np.maximum(spread, 108**-0.5),
        "vgg": as_floats - (123.68, 116.78, 103.94),
        "inception": as_floats / 127.5 - 1,
        "randaugment": as_floats / 127.5 - 1,
        "digits": as_floats / 127.5 - 1,
        "efficientnet_lite": (as_floats - 127) / 128,
        "unmirrored": (as_floats - 127) / 128,
    }
    for augmenter in ALL:
        numbers = augmenter.normalize(tf.constant(images))
        assert numbers.dtype == tf.float32
        np.testing.assert_allclose(numbers, expected[augmenter.name], atol=1e-4)
    grey = augmenters.vgg.normalize(tf.zeros([1, 2, 2, 1], tf.uint8))
    np.testing.assert_allclose(grey, -(0.299 * 123.68 + 0.587 * 116.78 + 0.114 * 103.94), 1e-5)
