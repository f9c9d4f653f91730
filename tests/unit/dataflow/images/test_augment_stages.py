"""AugmentImageComponent and its kin: one transform for all, and the laws of flows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from towerpack._core.errors import ConfigError, MapError
from towerpack.dataflow import (
    AugmentImageComponent,
    AugmentImageComponents,
    AugmentImageCoordinates,
    CacheData,
    DataFromArrays,
    DataFromList,
    imgaug,
)

Array = np.ndarray[Any, Any]

PICTURES = np.random.default_rng(0).integers(0, 256, (9, 12, 14, 3), np.uint8)
AUGMENTORS = [
    imgaug.Resize((16, 18)),
    imgaug.RandomCrop(12),
    imgaug.Flip(horiz=True),
    imgaug.Brightness(30),
    imgaug.GaussianNoise(3),
]


def test_draws_depend_on_seed_epoch_and_position() -> None:
    ds = AugmentImageComponent(DataFromArrays(PICTURES[[0] * 6]), AUGMENTORS)
    seen = [dp[0].tobytes() for epoch in (0, 1) for dp in ds.iterate(seed=1, epoch=epoch)]
    seen += [dp[0].tobytes() for dp in ds.iterate(seed=2, epoch=0)]
    assert len(set(seen)) == 18


def test_one_transform_for_all() -> None:
    numbers = np.arange(12 * 14).reshape(12, 14)
    image = numbers.astype(np.float32)
    points = np.array([(3.5, 4.5), (10.5, 2.5)])
    boxes = np.array([(3, 4, 4, 5), (10, 2, 11, 3)], np.float32)
    persons = np.array([[(3.5, 4.5, 2), (10.5, 2.5, 0)]])
    dp = (image, "name", image[..., None], numbers, points, boxes, persons)
    moves = [imgaug.Flip(horiz=True), imgaug.Transpose(), imgaug.CenterPaste(20)]
    ds = AugmentImageComponents(
        DataFromList([dp] * 20), [*moves, imgaug.RandomCrop(15)], (0, 2), 4,
        masks=(3,), boxes=5, keypoints=[6],
    )  # fmt: skip
    shapes = set()
    for one, name, two, mask, moved, box, person in ds.iterate(seed=0):
        assert name == "name"
        assert np.array_equal(one, two[..., 0]) and np.array_equal(one, mask)
        shapes.add(tuple(moved[0].tolist()))
        assert np.array_equal(moved, person[0, :, :2]) and person[0, :, 2].tolist() == [2, 0]
        assert np.array_equal(box, np.concatenate([moved - 0.5, moved + 0.5], axis=1))
        for (x, y), (old_x, old_y) in zip(moved, points, strict=True):
            if 0 <= x < 15 and 0 <= y < 15:
                assert one[int(y), int(x)] == image[int(old_y), int(old_x)]
    assert len(shapes) > 10
    assert np.array_equal(image, numbers)


def test_image_and_coordinates() -> None:
    points = np.array([(0.0, 0.0), (14.0, 12.0)])
    ds = DataFromList([(PICTURES[0], points), [PICTURES[1], points]])
    ds = AugmentImageCoordinates(ds, [imgaug.Resize((24, 14)), imgaug.Flip(vert=True, prob=1)])
    for dp, kind in zip(ds, (tuple, list), strict=True):
        assert type(dp) is kind and dp[1].tolist() == [[0, 24], [14, 0]]


def test_what_the_source_holds_is_not_changed_or_shared() -> None:
    data = [(PICTURES[0].copy(), PICTURES[0].copy())]
    for aug in (imgaug.CenterCrop(4), imgaug.Identity()):
        (one,) = AugmentImageComponent(DataFromList(data), aug)
        (two,) = AugmentImageComponents(DataFromList(data), aug, 0, masks=1)
        for component in (one[0], *two):
            component[...] = 0
    assert all(np.array_equal(kept, PICTURES[0]) for kept in data[0])
    (view,) = AugmentImageComponent(DataFromList(data), imgaug.CenterCrop(4), copy=False)
    assert np.shares_memory(view[0], data[0][0])


def inverted(values: Array) -> Array:
    """As users write it: in place."""
    values[...] = 255 - values
    return values


class InPlace(imgaug.Transform):
    apply_image = apply_mask = apply_coords = staticmethod(inverted)  # type: ignore[assignment]


class Returning(imgaug.ImageAugmentor):
    def get_transform(self, img: Array, rng: Any = None) -> imgaug.Transform:
        return InPlace()


class Peeking(imgaug.Identity):
    def get_transform(self, img: Array, rng: Any = None) -> imgaug.Transform:
        inverted(img)
        return super().get_transform(img, rng)


class Leftover(imgaug.BackgroundFiller):
    def fill(self, background_shape: tuple[int, int], img: Array) -> Array:
        inverted(img)
        return np.full((*background_shape, 3), 7, img.dtype)


by_function = imgaug.MapImage(inverted, inverted, inverted)
IN_PLACE: dict[str, imgaug.ImageAugmentor | list[imgaug.ImageAugmentor]] = {
    "MapImage": by_function,
    "Transform": Returning(),
    "get_transform": Peeking(),
    "BackgroundFiller": imgaug.CenterPaste(20, Leftover()),
    "in a list, behind a crop": [imgaug.CenterCrop(2), imgaug.AugmentorList([by_function])],
    "RandomChooseAug": imgaug.RandomChooseAug([(by_function, 1.0)]),
}


@pytest.mark.parametrize("kind", IN_PLACE)
def test_code_of_the_users_may_work_in_place(kind: str) -> None:
    picture, points = np.zeros((4, 4, 3), np.uint8), np.zeros((1, 2))
    plain = DataFromList([[picture, picture.copy(), points]])
    for source in (plain, CacheData(plain)):
        for ds in (
            AugmentImageComponent(source, IN_PLACE[kind]),
            AugmentImageComponents(source, IN_PLACE[kind], (0, 1), 2),
        ):
            passes = [[component.tobytes() for dp in ds for component in dp] for _ in range(3)]
            assert passes[0] == passes[1] == passes[2]
            assert not picture.any() and not points.any()
        masked = AugmentImageComponents(source, by_function, 0, masks=1)
        assert [int(dp[1].max()) for _ in range(2) for dp in masked] == [255, 255]


def test_bad_images() -> None:
    pictures = [(PICTURES[0],), (PICTURES[1].astype(float),), (PICTURES[2][:5],), (PICTURES[3],)]
    ds = AugmentImageComponent(DataFromList(pictures), imgaug.CenterCrop(8))
    with pytest.raises(
        MapError, match=r"datapoint 1 of epoch 0: The dtype of an image .* float64"
    ) as caught:
        list(ds)
    assert "DataFromList(4) > AugmentImageComponent([CenterCrop], 0)" in str(caught.value)
    skipping = AugmentImageComponent(ds.ds, imgaug.CenterCrop(8), catch_exceptions=True)
    iterator = skipping.iterate()
    assert len(list(iterator)) == 2 and iterator.skipped == 2


def test_components_that_do_not_fit() -> None:
    dp = {"img": PICTURES[0], "low": PICTURES[1][:5], "points": np.zeros((3, 3)), "label": 3}
    ds, flip = DataFromList([dp]), imgaug.Flip(horiz=True)
    for options, words in (
        (
            {"index": "img", "masks": "low"},
            r"must have the same size(.|\n)*img: 12 x 14, low: 5 x 14",
        ),
        ({"index": "img", "coords_index": "points"}, "The shape of coordinates"),
        ({"index": ("img", "label")}, "got int"),
        ({"index": "absent"}, "'img', 'low'"),
        ({"index": "img", "boxes": "x"}, "no component 'x' to augment"),
    ):
        with pytest.raises(MapError, match=words):
            list(AugmentImageComponents(ds, flip, **options))
    for wrong in ({"index": ()}, {"index": (0, 1), "masks": 1}):
        with pytest.raises(ConfigError, match="include an image and name no component twice"):
            AugmentImageComponents(ds, flip, **wrong)
    with pytest.raises(ConfigError, match="augmentor is expected"):
        AugmentImageComponent(ds, [abs])  # pyright: ignore
