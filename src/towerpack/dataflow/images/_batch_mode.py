from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

import towerpack.dataflow.images._color as color
from towerpack._core.errors import ConfigError
from towerpack.dataflow._item_rng import ItemRNG
from towerpack.dataflow.datapoints import describe
from towerpack.dataflow.images._arguments import height_and_width, side_limits
from towerpack.dataflow.images._augmentor import RNG, AugmentorList, Identity, ImageAugmentor
from towerpack.dataflow.images._crop import CenterCrop, CenterPaste, RandomCrop, free_space
from towerpack.dataflow.images._geometry import Flip
from towerpack.dataflow.images._noise import RandomCutout, RandomErasing
from towerpack.dataflow.images.image import like, mirrored, opencv, pixel_values, size_of

Images = NDArray[Any]
Positions = NDArray[np.int64]
Sides = tuple[Positions, Positions]
Step = ImageAugmentor | Callable[[Images], Images]

_BLOCK = 1 << 14  # values per block: more would not stay in the processor's cache
_TRIES = 10  # shapes that are drawn per image to erase


def _center_paste(aug: CenterPaste, images: Images, rng: ItemRNG) -> Images:
    place: Any = aug.get_transform(images[0])  # not random, so the same for all images
    pasted = np.empty((len(images), place.h, place.w, *images.shape[3:]), images.dtype)
    pasted[:] = place.filler.fill((place.h, place.w), images[0])
    height, width = images.shape[1:3]
    pasted[:, place.y0 : place.y0 + height, place.x0 : place.x0 + width] = images
    return pasted


def _center_crop(aug: CenterCrop, images: Images, rng: ItemRNG) -> Images:
    part: Any = aug.get_transform(images[0])
    return images[:, part.y0 : part.y0 + part.h, part.x0 : part.x0 + part.w]


def _random_crop(aug: RandomCrop, images: Images, rng: ItemRNG) -> Images:
    h, w = height_and_width(aug.crop_shape)
    free_y, free_x = free_space(size_of(images[0]), (h, w))
    y, x = rng.integers(0, free_y + 1), rng.integers(0, free_x + 1)
    images = np.ascontiguousarray(images)
    # One view of all windows. Rows of a window are contiguous, so that indexing copies rows.
    pixel = images.itemsize * math.prod(images.shape[3:])
    row = pixel * images.shape[2]
    windows = as_strided(
        images,
        (len(images), free_y + 1, free_x + 1, h, w * pixel // images.itemsize),
        (row * images.shape[1], row, pixel, row, images.itemsize),
        writeable=False,
    )
    return windows[np.arange(len(images)), y, x].reshape(len(images), h, w, *images.shape[3:])


def _flip(aug: Flip, images: Images, rng: ItemRNG) -> Images:
    flipped = images.copy()
    for i in np.flatnonzero(rng.random() < aug.prob).tolist():
        mirrored(images[i], 1 if aug.horiz else 0, flipped[i])
    return flipped


def _contrast(aug: color.Contrast, images: Images, rng: Any) -> Images:
    factor: Any = aug.draw(images, rng)
    mean, _ = _moments(images, all_channel=False)
    if aug.rgb is not None:
        color.check_color(images[0], aug)
        mean = (mean @ color.luma(aug.rgb))[:, None]
    return _linear(aug, images, factor, mean * (1 - factor)[:, None])


def _linear(aug: color.ClippingAugmentor, images: Images, factor: Any, shift: Any) -> Images:
    """Return images * factor + shift, with one factor and one shift for each image."""
    factors, shifts = (v if v is None else _per_image(v, images) for v in (factor, shift))
    changed = np.empty(images.shape, images.dtype)
    step = max(1, _BLOCK // images[0].size)
    for first in range(0, len(images), step):
        part = np.s_[first : first + step]
        values = images[part].astype(np.float32)
        if factors is not None:
            values *= factors[part]
        if shifts is not None:
            values += shifts[part]
        changed[part] = like(values, images[part], aug.limit)
    return changed


def _cutout(aug: RandomCutout, images: Images, rng: ItemRNG) -> Images:
    (low_h, high_h), (low_w, high_w) = side_limits(aug.h_range), side_limits(aug.w_range)
    free_space(size_of(images[0]), (high_h, high_w))
    sides = rng.integers(low_h, high_h + 1), rng.integers(low_w, high_w + 1)
    return _filled(images, sides, rng, aug.fill)


def _erasing(aug: RandomErasing, images: Images, rng: ItemRNG) -> Images:
    height, width = images.shape[1:3]
    wanted = rng.random() < aug.prob
    area = rng.uniform(*aug.area, size=_TRIES) * (height * width)
    ratio = np.exp(rng.uniform(*np.log(aug.aspect_ratio), size=_TRIES))
    h, w = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    fits = (h > 0) & (h <= height) & (w > 0) & (w <= width)
    first = np.arange(len(images)), fits.argmax(axis=1)
    chosen = wanted & fits[first]
    h, w = (np.where(chosen, side[first], 0).astype(np.int64) for side in (h, w))

    def noise() -> Images:
        size = images[0].size
        if images.dtype == np.uint8:
            words = rng.integers(0, 1 << 32, size=-(-size // 4)).astype(np.uint32)
            return words.view(np.uint8)[:, :size].reshape(images.shape)
        return (rng.random(size) * aug.max_value).astype(np.float32).reshape(images.shape)

    return _filled(images, (h, w), rng, noise if isinstance(aug.fill, str) else aug.fill)


def _filled(images: Images, sides: Sides, rng: ItemRNG, fill: Any) -> Images:
    """Fill a rectangle at a random place of each image. `fill` is a color or a noise function."""
    y, x = (
        (rng.random() * (size - side + 1)).astype(np.int64)
        for size, side in zip(images.shape[1:3], sides, strict=True)
    )
    noise: Any = fill() if callable(fill) else None
    value = pixel_values(fill, images[0]) if noise is None else None
    filled = images.copy()
    for i, (y0, x0, h, w) in enumerate(np.stack([y, x, *sides], axis=1).tolist()):
        if h:
            part = i, slice(y0, y0 + h), slice(x0, x0 + w)
            filled[part] = value if noise is None else noise[part]
    return filled


def _mean_variance(aug: color.MeanVarianceNormalize, images: Images, rng: ItemRNG) -> Images:
    mean, deviation = _moments(images, all_channel=aug.all_channel)
    count = images[0].size if aug.all_channel else images.shape[1] * images.shape[2]
    values = images.astype(np.float32)
    values -= _per_image(mean, images)
    values /= _per_image(np.maximum(deviation, count**-0.5), images)
    return values


def _alike(aug: color.ToFloat32 | color.ToUint8, images: Images, rng: ItemRNG) -> Images:
    # These augmentors change each value independently, so all images are changed as one.
    return aug.augment(images.reshape(-1, *images.shape[2:])).reshape(images.shape)


def _per_image(numbers: NDArray[np.float64], images: Images) -> NDArray[np.float32]:
    small = numbers.astype(np.float32)
    if small.size == len(images):
        return small.reshape(-1, *[1] * (images.ndim - 1))
    return np.tile(small, images.shape[2]).reshape(len(images), 1, *images.shape[2:])


def _moments(
    images: Images, *, all_channel: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    # Not by NumPy, whose rounding of sums may depend on the number of images.
    measure = opencv().meanStdDev
    rows = images.reshape(*images.shape[:2], -1) if all_channel else images
    moments = np.array([measure(row) for row in rows], np.float64)[..., 0]
    return moments[:, 0], moments[:, 1]


_KINDS: dict[type, Callable[[Any, Images, ItemRNG], Images]] = {
    CenterPaste: _center_paste,
    RandomCrop: _random_crop,
    CenterCrop: _center_crop,
    Flip: _flip,
    color.Brightness: lambda aug, imgs, rng: _linear(aug, imgs, None, aug.draw(imgs, rng)),
    color.BrightnessScale: lambda aug, imgs, rng: _linear(aug, imgs, aug.draw(imgs, rng), None),
    color.Contrast: _contrast,
    RandomCutout: _cutout,
    RandomErasing: _erasing,
    color.MeanVarianceNormalize: _mean_variance,
    color.ToFloat32: _alike,
    color.ToUint8: _alike,
    Identity: lambda aug, images, rng: images,
}


class BatchAugment:
    """Augment many small images in one call, at least five times as fast as one by one.

    With `batched=True` before `BatchData`, the result for an image does not depend on the block
    that contains it. After `BatchData`, results depend on the position of the batch. Random numbers
    have the same distributions as for single images, but different values.

    ```
    augment = BatchAugment([CenterPaste((40, 40)), RandomCrop(32), Flip(horiz=True)])
    ds = MapDataComponent(ds, augment, batched=True, rng=True)
    ```

    The result is a function of the images and the generator. The input stays unchanged.

    Args:
        augmentors: Augmentors of the classes in `BatchAugment.KINDS`, or functions from images
            [n, ...] to images [n, ...] that treat each image independently.

    Raises:
        ConfigError: An augmentor is not supported for many images.
    """

    KINDS = tuple(sorted(kind.__name__ for kind in _KINDS))

    def __init__(self, augmentors: Step | Sequence[Step]) -> None:
        if isinstance(augmentors, AugmentorList):
            augmentors = augmentors.augmentors
        self.steps: list[Step] = [augmentors] if callable(augmentors) else list(augmentors)
        for step in self.steps:
            function = callable(step) and not isinstance(step, ImageAugmentor)
            if type(step) not in _KINDS and not function:
                what = f"BatchAugment does not support {step!r:.60}."
                expected = f"one of {', '.join(self.KINDS)}, or a function of [n, ...]"
                fix = "use AugmentImageComponent(ds, augmentors), which supports every augmentor"
                raise ConfigError(what, expected=expected, fix=fix)

    def __call__(self, images: Images, rng: ItemRNG | RNG) -> Images:
        """Augment each of `images`: [n, height, width] or [n, height, width, channels]."""
        array: Images = np.asarray(images)
        right = array.dtype.name in ("uint8", "float32") and array.ndim in (3, 4) and array.size
        if not right:
            expected = "uint8 or float32, [n, height, width] or [n, height, width, channels]"
            fix = "pass batched=True to MapDataComponent, or leave it out if ds yields batches"
            what = "BatchAugment needs an array of several images."
            raise ConfigError(what, got=describe(images), expected=expected, fix=fix)
        if isinstance(rng, np.random.Generator):
            rng = ItemRNG(int(rng.integers(1 << 62)), 0, np.arange(len(images)))
        for step in self.steps:
            apply = _KINDS.get(type(step))
            images = step(images) if apply is None else apply(step, images, rng)
        return images

    def __repr__(self) -> str:
        return f"BatchAugment({self.steps!r})"
