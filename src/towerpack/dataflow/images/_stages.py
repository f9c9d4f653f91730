from __future__ import annotations

import copy as copies
from collections.abc import Hashable, Sequence
from typing import Any, cast

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack.dataflow._batch_rows import empty_row
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._user_code import is_in_towerpack
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

    Random numbers are a function of (seed, epoch, position). The length is unknown with
    `catch_exceptions`.

    ```
    ds = AugmentImageComponent(ds, [RandomCrop(224), Flip(horiz=True)])
    ```

    Args:
        ds: Flow of datapoints with images.
        augmentors: One augmentor, or several to apply in order.
        index: Index or dict key of the image.
        copy: Do not change the datapoints of `ds`, and share no memory with them. User-defined
            functions and augmentors may then work in place.
        catch_exceptions: Skip, log and count datapoints that raise an error (`on_error="skip"`).
    """

    def __init__(
        self,
        ds: DataFlow,
        augmentors: Augmentors,
        index: Hashable = 0,
        copy: bool = True,
        catch_exceptions: bool = False,
    ) -> None:
        self.augmentors = _as_augmentor(augmentors)
        on_error = "skip" if catch_exceptions else "raise"
        f = _Augment(self.augmentors, copy).image
        super().__init__(ds, f, index, rng=True, on_error=on_error)

    def arguments(self) -> str:
        return f"{_names_of(self.augmentors)}, {self.index!r}"


class AugmentImageComponents(MapData):
    """Draw one transform per datapoint and apply it to images, masks, boxes and points.

    Args:
        ds, augmentors, copy, catch_exceptions: See `AugmentImageComponent`.
        index: Index (or several) of images. The transform is drawn for the first image, and all
            images and masks must have the same size.
        coords_index: Index (or several) of coordinates [n, 2] (x, y).
        masks: Index (or several) of label maps, which are never interpolated.
        boxes: Index (or several) of boxes [n, 4] (x0, y0, x1, y1). See `clip_boxes`.
        keypoints: Index (or several) of keypoints [..., 2 or more], of which only x and y change.
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
        self.augmentors = _as_augmentor(augmentors)
        self.kinds = {
            "apply_image": _as_list(index),
            "apply_mask": _as_list(masks),
            "apply_coords": _as_list(coords_index),
            "apply_boxes": _as_list(boxes),
            "apply_keypoints": _as_list(keypoints),
        }
        on_error = "skip" if catch_exceptions else "raise"
        # An image comes first, because the transform is drawn for it.
        methods = {i: method for method, indices in self.kinds.items() for i in indices}
        f = _Augment(self.augmentors, copy, methods).datapoint
        super().__init__(ds, f, rng=True, on_error=on_error)

    def arguments(self) -> str:
        return _names_of(self.augmentors)

    def _check(self) -> None:
        super()._check()
        every = [index for indices in self.kinds.values() for index in indices]
        if not self.kinds["apply_image"] or len(set(every)) < len(every):
            what = "The indices must include an image and name no component twice"
            raise ConfigError(f"{what}, got {every}.")


class AugmentImageCoordinates(AugmentImageComponents):
    """Augment an image and coordinates in it, by `AugmentImageComponents`.

    Args:
        ds, augmentors, copy, catch_exceptions: See `AugmentImageComponent`.
        img_index: Index of the image.
        coords_index: Index of the coordinates [n, 2] (x, y).
    """

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

    def image(self, img: Image, rng: RNG) -> Image:
        return self._unshared(self._augmentors.augment(self._writable(img), rng), img)

    def datapoint(self, datapoint: Datapoint, rng: RNG) -> Datapoint:
        parts = {index: component_of(datapoint, index) for index in self._methods}
        self._check(parts)
        inputs = {index: self._writable(part) for index, part in parts.items()}
        first, *others = self._methods
        image, transform = self._augmentors.augment_with_transform(inputs[first], rng)
        changed = {first: image}
        for index in others:
            changed[index] = getattr(transform, self._methods[index])(inputs[index])
        return replaced(datapoint, {i: self._unshared(new, parts[i]) for i, new in changed.items()})

    def _writable(self, value: Any) -> Any:
        """Copy an array or list if augmentors may write to it. Other types are checked later."""
        changeable = isinstance(cast("object", value), (np.ndarray, list))
        return copies.deepcopy(value) if changeable and self._copy_first else value

    def _unshared(self, result: Image, source: Any) -> Image:
        if not self._copy or not np.may_share_memory(result, source):
            return result
        copied = empty_row(result.shape, result.dtype)
        np.copyto(copied, result)
        return copied

    def _check(self, parts: dict[Hashable, Any]) -> None:
        sizes: dict[Hashable, tuple[int, int]] = {}
        for index, method in self._methods.items():
            if method in ("apply_image", "apply_mask"):
                sizes[index] = size_of(parts[index])
            if method == "apply_image":
                check_image(parts[index])
        if len(set(sizes.values())) > 1:
            got = ", ".join(f"{name_of(i)}: {h} x {w}" for i, (h, w) in sizes.items())
            raise ConfigError("Images and masks of a datapoint must have the same size.", got=got)


def component_of(
    datapoint: Datapoint,
    index: Hashable,
    purpose: str = "augment",
    fix: str | None = None,
    pipeline: str | None = None,
) -> Any:
    """Return a component of a datapoint. The error for a missing component names the `purpose`."""
    try:
        return datapoint[index]
    except (KeyError, IndexError, TypeError) as error:
        what, choices = f"There is no component {index!r} to {purpose}.", choices_of(datapoint)
        raise ConfigError(what, expected=choices, fix=fix, pipeline=pipeline) from error


def _as_augmentor(augmentors: Augmentors) -> ImageAugmentor:
    return augmentors if isinstance(augmentors, ImageAugmentor) else AugmentorList(augmentors)


def _names_of(augmentor: ImageAugmentor) -> str:
    augmentors = augmentor if isinstance(augmentor, AugmentorList) else [augmentor]
    return f"[{', '.join(type(augmentor).__name__ for augmentor in augmentors)}]"


def _may_change_input(part: object) -> bool:
    """Return whether an augmentor, or a list of them, has user code that may work in place."""
    if isinstance(part, (list, tuple)):
        return any(map(_may_change_input, cast("Sequence[object]", part)))
    if not isinstance(part, (ImageAugmentor, BackgroundFiller)):
        return False
    if not is_in_towerpack(type(part)) or isinstance(part, (MapImage, Albumentations)):
        return True
    return _may_change_input(list(vars(part).values()))


def _as_list(indices: Indices) -> list[Any]:
    several = isinstance(indices, (list, tuple))
    return list(cast("Sequence[Hashable]", indices)) if several else [indices]
