"""Lists and choices of augmentors, transforms of one's own, and the predecessor's classes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from augmentors import Array, picture, rng
from towerpack._core.errors import ConfigError
from towerpack.dataflow import images as im
from towerpack.dataflow.images._warp import affine, rotation


def test_repr_shows_what_is_not_by_default() -> None:
    assert repr(im.Resize((225, 225))) == "Resize((225, 225))"
    assert repr(im.Rotation(10, interp="cubic")) == "Rotation(10, interp='cubic')"
    assert repr(im.AugmentorList([im.RandomApplyAug(im.Transpose(), 0.5)])) == (
        "AugmentorList([RandomApplyAug(Transpose(), prob=0.5)])"
    )
    drawn = repr(im.Brightness(3).get_transform(picture((2, 2)), rng()))
    assert drawn.startswith("PhotometricTransform(Brightness(3), drawn as 0.8")


# Lists and choices


class Looks(im.ImageAugmentor):
    """Draws from what it sees."""

    def __init__(self) -> None:
        self.seen: list[tuple[tuple[int, ...], int]] = []

    def get_transform(self, img: Array, rng: np.random.Generator | None = None) -> im.Transform:
        self.seen.append((img.shape, int(img.flat[0])))
        return im.NoOpTransform()


def test_later_steps_see_once_what_earlier_ones_leave() -> None:
    looks = [Looks(), Looks(), Looks()]
    negative = im.MapImage(lambda img: 255 - img)
    inner = im.RandomApplyAug(im.AugmentorList([looks[1], negative]), 1)
    im.AugmentorList([looks[0], im.Resize(4), inner, looks[2]])(np.full((8, 8), 5, np.uint8))
    assert [look.seen for look in looks] == [[((8, 8), 5)], [((4, 4), 5)], [((4, 4), 250)]]


def test_lists_add_up() -> None:
    a, b, c = im.Identity(), im.Transpose(), im.Flip(vert=True)
    both = im.AugmentorList([a]) + [b] + im.AugmentorList([c])  # noqa: RUF005
    assert isinstance(both, im.AugmentorList) and both.augmentors == [a, b, c]
    before = [a] + im.AugmentorList([b])  # noqa: RUF005
    assert isinstance(before, im.AugmentorList) and before.augmentors == [a, b]
    assert list(im.AugmentorList([a, b])) == [a, b] and len(im.AugmentorList([])) == 0
    one, two = im.NoOpTransform(), im.ResizeTransform(1, 1, 2, 2)
    assert (im.TransformList([one]) + [two]).tfms == [one, two]  # noqa: RUF005


def test_boxes_of_which_a_corner_is_lost() -> None:
    losing = im.TransformFactory(
        "losing", apply_coords=lambda coords: np.where(coords[:, :1] > 10, np.nan, coords)
    )
    boxes = np.array([[0, 0, 20, 8], [-90, 2, 11, 8], [11, 0, 12, 3], [2, 3, 4, 5]], np.float32)
    shifted = im.TransformList([losing, im.CropTransform(1, 1, 5, 5)])
    for transform, shift in ((losing, 0), (shifted, 1)):
        moved = transform.apply_boxes(boxes) + shift
        assert moved.dtype == np.float32
        expected = [[0, 0, 10, 8], [-90, 2, 10, 8], [np.nan] * 4, [2, 3, 4, 5]]
        assert np.allclose(moved, expected, atol=1, equal_nan=True)
        assert np.isnan(transform.apply_boxes(np.full((1, 4), np.nan))).all()


def test_boxes_do_not_grow_with_every_step_and_may_be_moved_by_a_transform_of_ones_own() -> None:
    box = np.array([[4.0, 4, 6, 6]])
    own = im.TransformFactory("x", apply_boxes=lambda boxes: boxes * 2)
    turns = (affine(rotation(degrees), (5.0, 5.0)) for degrees in (30, -30))
    there, back = (im.WarpAffineTransform(turn, (10, 10)) for turn in turns)
    assert np.allclose(im.TransformList([there, back]).apply_boxes(box), box)
    nested = im.TransformList([im.TransformList([there, im.TransformList([back])]), own])
    shift = im.CropTransform(1, 1, 5, 5)
    for several in (im.TransformList([own]), nested, im.TransformList([own, there, back])):
        assert np.allclose(several.apply_boxes(box), box * 2)
    shifted = im.TransformList([shift, own, shift])
    assert np.allclose(shifted.apply_boxes(box), (box - 1) * 2 - 1)


def test_a_list_of_no_transforms_keeps_its_word_about_dtypes() -> None:
    for transform in (im.TransformList([]), im.NoOpTransform()):
        for method, columns in (("coords", 2), ("boxes", 4), ("keypoints", 3)):
            apply = getattr(transform, f"apply_{method}")
            assert apply(np.ones((1, columns), np.int64)).dtype == np.float64
            assert apply(np.ones((1, columns), np.float32)).dtype == np.float32
            assert len(apply(np.array([]))) == 0
            with pytest.raises(ConfigError):
                apply(np.zeros(3))


def test_apply_and_choose() -> None:
    image = picture((3, 5))
    applied = [im.RandomApplyAug(im.Transpose(1), 0.3)(image, rng(s)).shape for s in range(300)]
    assert 60 < applied.count((5, 3)) < 120
    weighted = im.RandomChooseAug([(im.Resize(1), 0.2), (im.Resize(2), 0.0), (im.Resize(3), 0.8)])
    chosen = [weighted(image, rng(s)).shape[0] for s in range(300)]
    assert 45 < chosen.count(1) < 75 and chosen.count(2) == 0
    even = im.RandomChooseAug([im.Resize(n) for n in (1, 2, 3)])
    assert {even(image, rng(s)).shape[0] for s in range(50)} == {1, 2, 3}
    order = im.RandomOrderAug([im.Resize((2, 6)), im.Transpose(1)])
    assert {order(image, rng(s)).shape for s in range(20)} == {(2, 6), (6, 2)}


# Transforms and augmentors of one's own


def test_what_a_transform_does_not_define() -> None:
    transform = im.TransformFactory("mine", apply_text=str.upper)
    for kind in ("image", "mask", "coords", "boxes", "keypoints"):
        with pytest.raises(ConfigError, match="cannot transform"):
            getattr(transform, f"apply_{kind}")(np.zeros((1, 4)))


def test_lists_hand_on_any_method() -> None:
    upper, strip = (im.TransformFactory(apply_text=f) for f in (str.upper, str.strip))
    assert im.TransformList([upper, strip]).apply_text(" a ") == "A"
    with pytest.raises(AttributeError):
        im.TransformList([im.NoOpTransform()]).apply_text("a")
    assert pickle.loads(pickle.dumps(im.TransformList([im.NoOpTransform()]))).tfms


def test_map_image() -> None:
    image = picture((3, 3))
    flip = im.MapImage(np.flipud, lambda xy: xy * (1, -1) + (0, 3), np.flipud)
    transform = flip.get_transform(image)
    for shown in (transform.apply_image(image), transform.apply_mask(image)):
        assert np.array_equal(shown, image[::-1])
    assert transform.apply_boxes(np.array([[0, 0, 1, 1.0]])).tolist() == [[0, 2, 1, 3]]
    with pytest.raises(ConfigError, match="coordinates"):
        im.MapImage(np.flipud).get_transform(image).apply_coords(np.zeros((1, 2)))


# Without a generator


def test_own_generators_differ() -> None:
    image = picture((50, 50)).astype(np.float32)  # of bytes, two draws may look alike
    aug = im.Brightness(100)
    outs = [aug(image), aug(image), im.Brightness(100)(image)]
    copy = pickle.loads(pickle.dumps(aug))
    outs += [copy(image), aug(image)]
    assert len({out.tobytes() for out in outs}) == 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_draws_differently_and_opencv_is_imported_late() -> None:
    program = """
import os, sys, numpy as np
from towerpack.dataflow.images import RandomCrop, Resize
aug, image = RandomCrop(1), np.arange(62500, dtype=np.float32).reshape(250, 250)
aug(image), Resize(5)
assert "cv2" not in sys.modules, "imported before it is used"
reader, writer = os.pipe()
if os.fork() == 0:
    os.write(writer, aug(image).tobytes())
    os._exit(0)
os.wait()
assert os.read(reader, 4) != aug(image).tobytes()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


# The predecessor's classes


class OldStyle(im.ImageAugmentor):
    def __init__(self, low: int = 0, high: int = 100) -> None:
        self._init(locals())

    def _get_augment_params(self, img: Array) -> Any:
        shift = self.rng.randint(self.low, self.high)  # pyright: ignore
        return shift, self._rand_range(), self._rand_range(5, size=3), self.rng.randn()

    def _augment(self, img: Array, param: Any) -> Array:
        img[:] = param[0]  # changes its input
        return img

    def _augment_coords(self, coords: Array, param: Any) -> Array:
        coords += param[0]
        return coords


class OldPhotometric(im.PhotometricAugmentor):
    def _get_augment_params(self, img: Array) -> float:
        return self._rand_range(-9.0, 9.0)

    def _augment(self, img: Array, param: float) -> Array:
        img += np.float32(param)
        return img


class WithoutGenerator(im.ImageAugmentor):
    def get_transform(self, img: Array) -> im.Transform:  # pyright: ignore
        shift = self.rng.uniform()
        return im.TransformFactory(apply_image=lambda img: img + np.float32(shift))


@pytest.mark.parametrize("aug", [OldStyle(), OldPhotometric(), WithoutGenerator()])
def test_old_subclasses(aug: im.ImageAugmentor) -> None:
    image = picture((4, 4), "f4")
    before = image.copy()
    for used in (aug, im.AugmentorList([im.Identity(), aug])):
        out = [used(image, rng(seed)) for seed in (1, 1, 2)]
        assert np.array_equal(out[0], out[1]) and not np.array_equal(out[0], out[2])
        transform = used.get_transform(image, rng(1))
        assert np.array_equal(transform.apply_image(image), out[0])
        assert np.array_equal(transform.apply_image(image), out[0])
    assert np.array_equal(image, before)
    assert len({aug(image).tobytes() for _ in range(30)}) > 1


def test_old_coordinates() -> None:
    aug = OldStyle(3, 4)
    assert (aug.low, aug.high) == (3, 4)  # pyright: ignore
    assert repr(aug) == "OldStyle(low=3, high=4)"
    points = np.zeros((2, 2))
    transform = aug.get_transform(picture((4, 4)), rng())
    assert transform.apply_coords(points).tolist() == [[3, 3], [3, 3]] and not points.any()
    assert transform.apply_boxes(np.array([[0, 0, 1, 1]])).tolist() == [[3, 3, 4, 4]]
    aug.reset_state()
    nothing = im.ImageAugmentor()
    with pytest.raises(NotImplementedError, match="_augment_coords"):
        nothing.get_transform(picture((4, 4))).apply_coords(points)
    with pytest.raises(NotImplementedError, match="must define get_transform or _augment"):
        nothing(picture((4, 4)))
