"""MixUp, CutMix and mosaic: pixels, labels and boxes that agree with each other."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from augmentors import rng
from scaling import scaled
from towerpack._core.errors import ConfigError, MapError
from towerpack.dataflow import (
    BatchData,
    DataFromArrays,
    DataFromGenerator,
    DataFromList,
    MapData,
    RepeatedData,
)
from towerpack.dataflow.images import BatchMix, CutMix, MixUp, Mosaic, MosaicLayout

pytest.importorskip("cv2")


def flat_batch(count: int = 8, shape: tuple[int, ...] = (12, 10, 3), dtype: Any = np.uint8) -> Any:
    """Image i has the value 10 * i everywhere, so pixels tell whose they are."""
    values = (np.arange(count) * 10).astype(dtype)
    images = np.broadcast_to(values.reshape(-1, *[1] * len(shape)), (count, *shape)).copy()
    return images, np.arange(count)


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
@pytest.mark.parametrize("shape", [(12, 10, 3), (5, 7)])
def test_mixup(dtype: Any, shape: tuple[int, ...]) -> None:
    batch = flat_batch(8, shape, dtype)
    images, soft = MixUp(0.4, 8)(batch, rng())
    assert images.dtype == dtype and images.shape == (8, *shape)
    assert soft.dtype == np.float32 and np.allclose(soft.sum(1), 1)
    expected = soft @ (np.arange(8) * 10)  # what the labels say about the pixels
    means = images.reshape(8, -1).astype(float).mean(1)
    assert np.abs(means - expected).max() <= (0.51 if dtype == np.uint8 else 1e-4)
    assert np.array_equal(batch[0], flat_batch(8, shape, dtype)[0])  # untouched


@pytest.mark.parametrize("shape", [(12, 10, 3), (5, 7), (1, 1, 1), (40, 3, 1)])
def test_cutmix(shape: tuple[int, ...]) -> None:
    changed = 0
    for seed in range(10):
        images, soft = CutMix(1.0, 8)(flat_batch(8, shape), rng(seed))
        for i in range(8):
            own, partner = images[i] == 10 * i, np.argmax(soft[i] * (np.arange(8) != i))
            assert soft[i, i] == pytest.approx(own.mean(), abs=1e-6)
            assert np.isin(images[i], [10 * i, 10 * int(partner)]).all()
            plane = ~own.reshape(*shape[:2], -1)[:, :, 0]
            changed += bool(plane.any())
            if plane.any():  # one rectangle
                rows, columns = np.flatnonzero(plane.any(1)), np.flatnonzero(plane.any(0))
                assert plane.sum() == (np.ptp(rows) + 1) * (np.ptp(columns) + 1)
    assert changed > 15 or shape == (1, 1, 1)


def test_prob_leaves_images_alone() -> None:
    for kind in (MixUp, CutMix):
        mix = kind(1.0, prob=0.3, labels="pair")
        images, labels, _, ratio = mix(flat_batch(25), rng())
        alone = ratio == 1
        assert 10 < alone.sum() < 25
        assert np.array_equal(images[alone], flat_batch(25)[0][alone])
        assert np.array_equal(labels, np.arange(25))


def test_kinds_of_batches() -> None:
    images, labels = flat_batch()
    extra = np.arange(8) + 100
    mixed = MixUp(1.0, 8)([images, labels, extra], rng())
    assert isinstance(mixed, list) and np.array_equal(mixed[2], extra)
    pair = MixUp(1.0, labels="pair")((images, labels, extra), rng())
    assert isinstance(pair, tuple) and len(pair) == 5 and np.array_equal(pair[2], extra)
    named = {"x": images, "y": labels}
    mix = CutMix(1.0, labels="pair", image="x", label="y")
    assert list(mix(named, rng())) == ["x", "y", "partner_label", "ratio"]
    soft = MixUp(1.0)((images, np.eye(8, dtype=np.float64)), rng())[1]
    assert soft.dtype == np.float64 and np.allclose(soft, MixUp(1.0, 8)((images, labels), rng())[1])


def test_bad_batches() -> None:
    images = flat_batch()[0]
    for batch, words in (
        ((images, np.full(8, 8)), "got 8"),
        ((images, np.full(8, -1)), "got -1"),
        ((images, np.zeros(8)), "cannot be mixed"),
        ((images, np.zeros(7, int)), "images and as many labels"),
        ((images.astype(int), np.zeros(8, int)), "images and as many labels"),
        ((np.zeros((8, 3), np.uint8), np.zeros(8, int)), "images and as many labels"),
        ((images[0], 1), "images and as many labels"),
    ):
        with pytest.raises(ConfigError, match=words):
            CutMix(1.0, 8)(batch, rng())


def test_a_batch_of_nothing() -> None:
    images, labels = np.zeros((0, 4, 4, 3), np.uint8), np.zeros(0, int)
    for mix in (MixUp(1.0, 8), CutMix(1.0, 8)):
        mixed, soft = mix((images, labels), rng())
        assert mixed.shape == (0, 4, 4, 3) and soft.shape == (0, 8)


def test_components_that_are_missing() -> None:
    with pytest.raises(ConfigError, match=r"no component 1 to mix(.|\n)*label=\.\.\."):
        MixUp(1.0, 8)((flat_batch()[0],), rng())
    without_labels = [(img, boxes) for img, boxes, _ in SPOTTED]
    with pytest.raises(ConfigError, match=r"no component 2 to combine(.|\n)*labels=None"):
        MosaicLayout(40)(without_labels[:4], rng())
    assert len(MosaicLayout(40, labels=None)(without_labels[:4], rng())) == 2


# --- Mosaic


def spotted(index: int, height: int, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A dark image with bright rectangles: the boxes."""
    draw = np.random.default_rng(index)
    img = np.zeros((height, width, 3), np.uint8)
    boxes = []
    for label in range(2):
        x0, y0 = draw.integers(width // 2), draw.integers(height // 2)
        x1 = x0 + draw.integers(width // 4, width // 2)
        y1 = y0 + draw.integers(height // 4, height // 2)
        img[y0:y1, x0:x1, label] = 255
        boxes.append([x0, y0, x1, y1])
    return img, np.array(boxes, np.float32), np.array([0, 1]) + 10 * index


SIZES = [(60, 80), (31, 200), (200, 31), (64, 64), (50, 50), (120, 90)]
SPOTTED = [spotted(i, *size) for i, size in enumerate(SIZES)]


def near_edges_of_parts(height: int, width: int, seed: int) -> np.ndarray:
    """Which pixels of a mosaic are less than 3 from where one of its four images ends."""
    draw = rng(seed)
    near = []
    for size in (height, width):
        i, middle = np.arange(size), int(size * draw.uniform(0.25, 0.75))
        near.append((i < 3) | (i >= size - 3) | (abs(i + 0.5 - middle) < 3))
    return near[0][:, None] | near[1][None]


def test_boxes_contain_their_pixels() -> None:
    boxes_contain_their_pixels(13210500, [0] * 4, (64, 128))  # a box ends just outside its part
    for seed in range(scaled(500)):
        picks = rng(seed).integers(6, size=4).tolist()
        boxes_contain_their_pixels(seed, picks, (96, (64, 128), (33, 57))[seed % 3])


def boxes_contain_their_pixels(seed: int, picks: list[int], shape: Any) -> None:
    parts = [SPOTTED[i] for i in picks]
    layout = MosaicLayout(shape, min_visible=0.0)
    img, boxes, labels = layout(parts, rng(seed))
    h, w = (shape, shape) if isinstance(shape, int) else shape
    assert img.shape == (h, w, 3) and boxes.dtype == np.float32
    assert len(boxes) == len(labels) and set(labels // 10) <= set(picks)
    assert (boxes >= 0).all() and (boxes <= [w, h, w, h]).all()
    # Of a box that ends outside of its part, interpolation brings less than half across the edge.
    ends = near_edges_of_parts(h, w, seed)
    for channel in range(2):
        left = img[:, :, channel] > np.where(ends, 127, 0)
        for x0, y0, x1, y1 in boxes[labels % 10 == channel]:
            # Inside it is bright, but for what interpolation mixes at the edge.
            bottom, right = max(0, int(y1 - 2)), max(0, int(x1 - 2))
            inner = img[int(y0 + 3) : bottom, int(x0 + 3) : right, channel]
            assert (inner > 100).all()
            grown = [max(0, int(v - 3)) for v in (y0, x0)] + [int(v + 4) for v in (y1, x1)]
            left[grown[0] : grown[2], grown[1] : grown[3]] = False
        assert not left.any()  # and nothing is bright that no box contains


def test_hardly_visible_boxes_are_left_out() -> None:
    few, more, most = (
        sum(len(MosaicLayout(96, min_visible=v)(SPOTTED[:4], rng(s))[1]) for s in range(30))
        for v in (0.9, 0.3, 0.0)
    )
    assert 0 < few < more < most <= 240


def test_mosaic_starts_with_its_own_datapoint() -> None:
    grey = [(np.full((20, 30), 40 * i, np.uint8), i) for i in range(6)]
    for i, (img, number) in enumerate(Mosaic(DataFromList(grey), 16, boxes=None).iterate(seed=3)):
        assert number == i and img[0, 0] == 40 * i and img.shape == (16, 16)


def test_mosaic_of_dicts_and_no_boxes() -> None:
    datapoints = [
        {"image": img, "box": boxes[:0], "label": labels[:0], "area": np.zeros(0)}
        for img, boxes, labels in SPOTTED
    ]
    layout = MosaicLayout(40, image="image", boxes="box", labels=("label", "area"))
    result = layout(datapoints[:4], rng())
    assert result["box"].shape == (0, 4) and len(result["label"]) == len(result["area"]) == 0


def test_mosaic_errors() -> None:
    for flow in (DataFromGenerator(lambda: iter(SPOTTED)), RepeatedData(DataFromList(SPOTTED))):
        with pytest.raises(ConfigError, match="random access"):
            Mosaic(flow)
    mixed = [*SPOTTED, (SPOTTED[0][0].astype(np.float32), *SPOTTED[0][1:])]
    with pytest.raises(MapError, match="must have the same dtype and number of channels"):
        list(Mosaic(DataFromList(mixed), 16))
    bad = [(img, boxes, labels[:1]) for img, boxes, labels in SPOTTED]
    with pytest.raises(MapError, match="datapoints 0, "):
        list(Mosaic(DataFromList(bad), 16))


@pytest.mark.parametrize("mix", [MixUp(1.0, 10), CutMix(labels="pair")], ids=repr)
def test_where_it_stands(mix: BatchMix) -> None:
    ds = DataFromArrays(*flat_batch(8))
    fix = rf"MapData\(BatchData\(ds, n\), {type(mix).__name__}\(.*\), rng=True\)"
    for options in ({"rng": True}, {"rng": True, "batched": True}, {}):
        with pytest.raises(MapError, match=fix):
            list(MapData(ds if options else BatchData(ds, 4), mix, **options))
    batches = [BatchData(ds, 4, stack=stack) for stack in ("list", "array")]
    as_list, stacked = (list(MapData(b, mix, rng=True).iterate(seed=3)) for b in batches)
    np.testing.assert_equal(as_list, stacked)
