"""Stages that augment images, and what belongs to them."""

from __future__ import annotations

import copy as copies
from collections.abc import Hashable, Sequence
from typing import Any, cast

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.dataflow._batch_rows import empty_row
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._user_code import is_ours
from towerpack.dataflow.datapoints import Datapoint, choices_of, name_of, replaced
from towerpack.dataflow.images._albumentations import Albumentations
from towerpack.dataflow.images._augmentor import RNG, AugmentorList, ImageAugmentor, MapImage
from towerpack.dataflow.images._crop import BackgroundFiller
from towerpack.dataflow.images.image import Image, check_image, size_of
from towerpack.dataflow.stages._map import MapData, MapDataComponent

Augmentors = ImageAugmentor | Sequence[ImageAugmentor]
Indices = Hashable | Sequence[Hashable]


class AugmentImageComponent(MapDataComponent):
    """Augment one image of every datapoint.

    Contract: as `MapData` with `rng=True`: in order; length of `ds`, unknown with
    `catch_exceptions`; what is drawn is a function of (seed, epoch, position); thread- and
    fork-safe and resumable as `ds` is.

    Args:
        ds: What to augment.
        augmentors: One, or several to be applied one after the other.
        index: Which component: an index, or the key of a dict.
        copy: The datapoint of `ds` stays as it is, and the result shares no memory with it.
            Functions and augmentors of your own may work in place.
        catch_exceptions: Leave out datapoints that cannot be augmented, log and count them
            (`on_error="skip"`).
    """

    def __init__(
        self,
        ds: DataFlow,
        augmentors: Augmentors,
        index: Hashable = 0,
        copy: bool = True,
        catch_exceptions: bool = False,
    ) -> None:
        self.augmentors = _as_one(augmentors)
        on_error = "skip" if catch_exceptions else "raise"
        f = _Augment(self.augmentors, copy).one
        super().__init__(ds, f, index, rng=True, on_error=on_error)

    def arguments(self) -> str:
        return f"{_names_of(self.augmentors)}, {self.index!r}"


class AugmentImageComponents(MapData):
    """Draw one transform for each datapoint, and apply it to all that belongs together.

    Contract: as `AugmentImageComponent`.

    Args:
        ds, augmentors, copy, catch_exceptions: See `AugmentImageComponent`.
        index: Which components are images: an index or key, or several. The transform is drawn
            for the first of them; all must have one size.
        coords_index: Which components are coordinates (x, y) of shape [n, 2].
        masks: Which components are label maps: they are moved, and never interpolated.
        boxes: Which components are boxes (x0, y0, x1, y1) of shape [n, 4]; see `clip_boxes`.
        keypoints: Which components are keypoints [..., 2 or more]; only x and y change.
    """

    def __init__(
        self,
        ds: DataFlow,
        augmentors: Augmentors,
        index: Indices = (0, 1),
        coords_index: Indices = (),
        copy: bool = True,
        catch_exceptions: bool = False,
        *,
        masks: Indices = (),
        boxes: Indices = (),
        keypoints: Indices = (),
    ) -> None:
        self.augmentors = _as_one(augmentors)
        self.kinds = {
            "apply_image": _as_list(index),
            "apply_mask": _as_list(masks),
            "apply_coords": _as_list(coords_index),
            "apply_boxes": _as_list(boxes),
            "apply_keypoints": _as_list(keypoints),
        }
        on_error = "skip" if catch_exceptions else "raise"
        # An image comes first: for it the transform is drawn.
        methods = {i: method for method, indices in self.kinds.items() for i in indices}
        f = _Augment(self.augmentors, copy, methods).together
        super().__init__(ds, f, rng=True, on_error=on_error)

    def arguments(self) -> str:
        return _names_of(self.augmentors)

    def _check(self) -> None:
        super()._check()
        every = [index for indices in self.kinds.values() for index in indices]
        if not self.kinds["apply_image"] or len(set(every)) < len(every):
            expected = "at least one image, and no component twice"
            raise ConfigError(f"The components to augment are {every}.", expected=expected)


class AugmentImageCoordinates(AugmentImageComponents):
    """Augment an image, and coordinates in it. Contract: as `AugmentImageComponents`."""

    def __init__(
        self,
        ds: DataFlow,
        augmentors: Augmentors,
        img_index: Hashable = 0,
        coords_index: Hashable = 1,
        copy: bool = True,
        catch_exceptions: bool = False,
    ) -> None:
        super().__init__(ds, augmentors, (img_index,), (coords_index,), copy, catch_exceptions)


class _Augment:
    def __init__(
        self, augmentors: ImageAugmentor, copy: bool, methods: dict[Any, str] | None = None
    ) -> None:
        self._augmentors = augmentors
        self._copy = copy
        self._copy_first = copy and _may_change_input(augmentors)
        self._methods = methods or {}

    def one(self, img: Image, rng: RNG) -> Image:
        return self._owned(self._augmentors.augment(self._lent(img), rng), img)

    def together(self, datapoint: Datapoint, rng: RNG) -> Datapoint:
        parts = {index: component_of(datapoint, index) for index in self._methods}
        self._check(parts)
        lent = {index: self._lent(part) for index, part in parts.items()}
        first, *others = self._methods
        image, transform = self._augmentors.augment_with_transform(lent[first], rng)
        changed = {first: image}
        for index in others:
            changed[index] = getattr(transform, self._methods[index])(lent[index])
        return replaced(datapoint, {i: self._owned(new, parts[i]) for i, new in changed.items()})

    def _lent(self, value: Any) -> Any:
        """A value that augmentors may write to; what is no array is refused elsewhere."""
        changeable = isinstance(cast("object", value), (np.ndarray, list))
        return copies.deepcopy(value) if changeable and self._copy_first else value

    def _owned(self, result: Image, given: Any) -> Image:
        if not self._copy or not np.may_share_memory(result, given):
            return result
        own = empty_row(result.shape, result.dtype)
        np.copyto(own, result)
        return own

    def _check(self, parts: dict[Hashable, Any]) -> None:
        """Look at all images and masks before anything is drawn."""
        sizes: dict[Hashable, tuple[int, int]] = {}
        for index, method in self._methods.items():
            if method in ("apply_image", "apply_mask"):
                sizes[index] = size_of(parts[index])
            if method == "apply_image":
                check_image(parts[index])
        if len(set(sizes.values())) > 1:
            got = ", ".join(f"{name_of(i)}: {h} x {w}" for i, (h, w) in sizes.items())
            what = "Images and masks that belong together differ in size."
            raise ConfigError(what, got=got, expected="one height and width")


def component_of(
    datapoint: Datapoint,
    index: Hashable,
    purpose: str = "augment",
    fix: str | None = None,
    pipeline: str | None = None,
) -> Any:
    """One component of a datapoint, or a `ConfigError` that says what for and what to do."""
    try:
        return datapoint[index]
    except (KeyError, IndexError, TypeError) as error:
        what, choices = f"There is no component {index!r} to {purpose}.", choices_of(datapoint)
        raise ConfigError(what, expected=choices, fix=fix, pipeline=pipeline) from error


def _as_one(augmentors: Augmentors) -> ImageAugmentor:
    return augmentors if isinstance(augmentors, ImageAugmentor) else AugmentorList(augmentors)


def _names_of(augmentor: ImageAugmentor) -> str:
    several = augmentor if isinstance(augmentor, AugmentorList) else [augmentor]
    return f"[{', '.join(type(one).__name__ for one in several)}]"


def _may_change_input(part: object) -> bool:
    """Whether code of the user's, which may work in place, is in an augmentor or a list of them."""
    if isinstance(part, (list, tuple)):
        return any(map(_may_change_input, cast("Sequence[object]", part)))
    if not isinstance(part, (ImageAugmentor, BackgroundFiller)):
        return False
    if not is_ours(type(part)) or isinstance(part, (MapImage, Albumentations)):
        return True
    return _may_change_input(list(vars(part).values()))


def _as_list(indices: Indices) -> list[Any]:
    several = isinstance(indices, (list, tuple))
    return list(cast("Sequence[Hashable]", indices)) if several else [indices]
