"""Augmentations that combine several images: MixUp and CutMix of a batch, and Mosaic."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Annotated, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow._compile import Wrapper
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._item_rng import position_rng
from towerpack.dataflow._plan import Node
from towerpack.dataflow._stacking import empty_alike
from towerpack.dataflow.arguments import integer_of
from towerpack.dataflow.datapoints import Datapoint, array_of, describe, name_of, replaced
from towerpack.dataflow.images import _arguments as args
from towerpack.dataflow.images._augmentor import RNG
from towerpack.dataflow.images._crop import draw_crop
from towerpack.dataflow.images._geometry import ResizeTransform
from towerpack.dataflow.images._stages import component_of
from towerpack.dataflow.images._transform import TransformList, clip_boxes
from towerpack.dataflow.images.image import Image, check_image, opencv
from towerpack.dataflow.pipeline_names import pipeline_of
from towerpack.dataflow.stage_context import StageContext
from towerpack.dataflow.stages._on_error import Mapper

Partners = NDArray[np.int64]
Ratios = NDArray[np.float32]
Mixed = tuple[Image, Ratios]

_MIDDLE = (0.25, 0.75)  # range of the point where the images of a mosaic meet, relative


@dataclass(eq=False, repr=False)
class BatchMix(ABC):
    """Base class of maps that mix every image of a batch with another image of the batch.

    Use it after `BatchData`: `MapData(ds, MixUp(num_classes=10), rng=True)`. A random permutation
    gives every image a partner. Ratios are drawn from Beta(alpha, alpha) for each image.

    Args:
        alpha: Parameter of the beta distribution. 1 is uniform; with less, one image dominates.
        num_classes: Number of classes, to convert integer labels [n] to [n, num_classes].
        prob: Probability to mix an image.
        labels: "soft" mixes labels like images, [n, classes]. "pair" leaves labels unchanged and
            appends two components, named "partner_label" and "ratio" in a dict: the partners'
            labels, and the fractions of the images that remain, float32 [n]. The loss is then
            `ratio * loss(label) + (1 - ratio) * loss(partner_label)`.
        image: Index of the images, uint8 or float32 [n, height, width] or with channels.
        label: Index of the labels: integers [n], or floats [n, classes].
    """

    alpha: Annotated[float, args.number(above=0)] = 1.0
    num_classes: Annotated[int | None, integer_of] = None
    _: KW_ONLY
    prob: args.Probability = 1.0
    labels: Literal["soft", "pair"] = "soft"
    image: Hashable = 0
    label: Hashable = 1

    def __post_init__(self) -> None:
        args.check_arguments(self)
        if self.labels not in ("soft", "pair"):
            raise ConfigError(f'labels must be "soft" or "pair", got {self.labels!r}.')

    @abstractmethod
    def mix(self, images: Image, partners: Partners, ratios: Ratios, rng: RNG) -> Mixed:
        """Return new, mixed images, and the fractions [n] of the original images that remain.

        Args:
            images, rng: Images [n, height, width, ...], and generator to draw from.
            partners, ratios: Index of each image's partner, and fraction of each image to keep.
        """

    def __call__(self, batch: Datapoint, rng: RNG | None = None) -> Datapoint:
        if not isinstance(rng, np.random.Generator):
            raise self._refused("needs a random generator")
        fix = "pass the indices of the components: image=..., label=..."
        images, labels = (
            np.asarray(component_of(batch, i, "mix", fix)) for i in (self.image, self.label)
        )
        right = images.ndim in (3, 4) and images.dtype.name in ("uint8", "float32")
        if not right or labels.shape[:1] != images.shape[:1]:
            got = f"images {describe(images)}, labels {describe(labels)}"
            raise self._refused("needs a batch of images and as many labels", got)
        count = len(images)
        partners = rng.permutation(count)
        ratios = rng.beta(self.alpha, self.alpha, count).astype(np.float32)
        ratios[rng.random(count) >= self.prob] = 1
        mixed, left = self.mix(images, partners, ratios, rng)
        if self.labels == "pair":
            return self._put(batch, mixed, labels, labels[partners], left)
        soft = soft_labels(labels, self.num_classes)
        left = left.reshape(-1, 1).astype(soft.dtype)
        return self._put(batch, mixed, soft * left + soft[partners] * (1 - left))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.alpha})"

    def _refused(self, why: str, got: str | None = None) -> ConfigError:
        name = type(self).__name__
        expected = "images [n, height, width] or [n, height, width, channels], uint8 or float32"
        fix = f"use MapData(BatchData(ds, n), {name}(image=..., label=...), rng=True)"
        return ConfigError(f"{name} {why}.", got=got, expected=f"{expected}; n labels", fix=fix)

    def _put(self, batch: Datapoint, images: Image, labels: Any, *more: Any) -> Datapoint:
        changed = {self.image: images, self.label: labels}
        if isinstance(batch, dict):
            changed |= zip(("partner_label", "ratio"), more, strict=False)
        mixed: Any = replaced(cast("Any", batch), changed)
        if not more or isinstance(batch, dict):
            return mixed
        return [*mixed, *more] if isinstance(batch, list) else (*mixed, *more)


class MixUp(BatchMix):
    """Blend every image of a batch, and its label, with another image of the batch.

    uint8 images are rounded to uint8. The arguments are those of `BatchMix`. Zhang et al. 2017,
    https://arxiv.org/abs/1710.09412, use alpha=0.2 for ImageNet.
    """

    def mix(self, images: Image, partners: Partners, ratios: Ratios, rng: RNG) -> Mixed:
        if not len(images):
            return images, ratios
        cv2 = opencv()
        mixed = np.empty(images.shape, images.dtype)
        rows = images.reshape(len(images), images.shape[1], -1)
        out = mixed.reshape(rows.shape)
        # NumPy would make three float copies of the whole batch.
        for i, (partner, ratio) in enumerate(zip(partners.tolist(), ratios.tolist(), strict=True)):
            cv2.addWeighted(rows[i], ratio, rows[partner], 1 - ratio, 0, dst=out[i])
        return mixed, ratios


class CutMix(BatchMix):
    """Paste a rectangle of another image into every image of a batch, and mix their labels.

    The rectangle has the aspect ratio of the image and a uniformly drawn center. It is clipped to
    the image, and labels are mixed by the fraction of remaining pixels. The arguments are those of
    `BatchMix`. Yun et al. 2019, https://arxiv.org/abs/1905.04899.
    """

    def mix(self, images: Image, partners: Partners, ratios: Ratios, rng: RNG) -> Mixed:
        height, width = images.shape[1:3]
        side = np.sqrt(1 - ratios)
        top, bottom = _span(height, side, rng)
        left, right = _span(width, side, rng)
        mixed = images.copy()
        for i, partner in enumerate(partners.tolist()):
            part = np.s_[top[i] : bottom[i], left[i] : right[i]]
            mixed[i][part] = images[partner][part]
        cut = (bottom - top) * (right - left)
        return mixed, (1 - cut / (height * width)).astype(np.float32)


@dataclass(frozen=True)
class MosaicLayout:
    """Function that combines four datapoints into one, with a random generator.

    The canvas is divided into four parts that meet at a random point in its middle half. Each image
    is resized, with its aspect ratio, to cover its part, and cropped at a random place. Boxes are
    moved and clipped, and dropped if too little of them is visible. Other components are those of
    the first datapoint.

    Args:
        shape: (height, width) of the canvas in pixels, or one number for both.
        image: Index of the image component.
        boxes: Index of the boxes [n, 4] (x0, y0, x1, y1); `None` for none.
        labels: Index or tuple of indices of components with one row per box; `None` for none.
        min_visible: Fraction of its area that must be visible to keep a box.
    """

    shape: args.Size = 640
    image: Hashable = 0
    boxes: Hashable | None = 1
    labels: Hashable | tuple[Hashable, ...] | None = 2
    min_visible: Annotated[float, args.number(0, 1)] = 0.1

    def __post_init__(self) -> None:
        args.check_arguments(self)

    def __call__(self, datapoints: Sequence[Datapoint], rng: RNG) -> Datapoint:
        images = [check_image(self._part(datapoint, self.image)) for datapoint in datapoints]
        if len({(image.dtype, image.shape[2:]) for image in images}) > 1:
            what = "The images of a mosaic must have the same dtype and number of channels."
            raise ConfigError(what, got=", ".join(map(describe, images)))
        for index in self._per_box():
            column = [array_of(self._part(dp, index), name_of(index)) for dp in datapoints]
            changes = zip(datapoints, empty_alike(column), strict=True)
            datapoints = [replaced(dp, {index: array}) for dp, array in changes]
        height, width = args.height_and_width(self.shape)
        canvas = np.empty((height, width, *images[0].shape[2:]), images[0].dtype)
        y, x = (int(size * rng.uniform(*_MIDDLE)) for size in (height, width))
        corners = [(0, y, 0, x), (0, y, x, width), (y, height, 0, x), (y, height, x, width)]
        rows = [
            self._show(datapoint, canvas, corner, rng)
            for datapoint, corner in zip(datapoints, corners, strict=True)
        ]
        changed: dict[Any, Any] = {self.image: canvas}
        for index, parts in zip(self._per_box(), zip(*rows, strict=True), strict=True):
            if len({part.dtype for part in parts}) > 1:
                what = f"{name_of(index)} must have the same dtype in all datapoints of a mosaic."
                raise ConfigError(what, got=", ".join(map(describe, parts)))
            changed[index] = np.concatenate(parts)
        return replaced(datapoints[0], changed)

    def _per_box(self) -> list[Any]:
        if self.boxes is None:
            return []
        several = isinstance(self.labels, tuple)
        labels = cast("tuple[Any, ...]", self.labels if several else (self.labels,))
        return [self.boxes, *(index for index in labels if index is not None)]

    def _show(
        self, datapoint: Datapoint, canvas: Image, corner: tuple[int, int, int, int], rng: RNG
    ) -> list[NDArray[Any]]:
        """Draw an image into its part of the canvas. Return its visible boxes and labels."""
        y0, y1, x0, x1 = corner
        image = datapoint[self.image]
        h, w = image.shape[:2]
        factor = max((y1 - y0) / h, (x1 - x0) / w)
        size = (max(y1 - y0, round(h * factor)), max(x1 - x0, round(w * factor)))
        section = draw_crop(size, (y1 - y0, x1 - x0), rng)
        transform = TransformList([ResizeTransform(h, w, *size), section])
        canvas[y0:y1, x0:x1] = transform.apply_image(image)
        if self.boxes is None:
            return []
        boxes, *others = (datapoint[index] for index in self._per_box())
        moved = transform.apply_boxes(boxes)
        clipped, keep = clip_boxes(moved, y1 - y0, x1 - x0, min_area=self.min_visible)
        shifted = clipped + np.array((x0, y0, x0, y0), clipped.dtype)
        return [rows[keep] for rows in (shifted, *others)]

    def _part(self, datapoint: Datapoint, index: Hashable) -> Any:
        fix = "pass the indices: image=..., boxes=..., labels=... (labels=None for none)"
        return component_of(datapoint, index, "combine", fix)


class Mosaic(Wrapper):
    """Combine every datapoint with three randomly drawn datapoints of the same pass.

    See `MosaicLayout`, and Bochkovskiy et al. 2020 (YOLOv4), https://arxiv.org/abs/2004.10934,
    section 3.3. Each datapoint is read four times on average, so consider `CacheData` before it.



    Args:
        ds: Flow over an indexable source.
        shape, image, boxes, labels, min_visible: See `MosaicLayout`.

    Raises:
        ConfigError: `ds` can only be read in order, or is infinite.
        MapError: Four datapoints cannot be combined. Raised during iteration.
    """

    random = True
    structural = True

    def __init__(
        self,
        ds: DataFlow,
        shape: int | tuple[int, int] = 640,
        *,
        image: Hashable = 0,
        boxes: Hashable | None = 1,
        labels: Hashable | tuple[Hashable, ...] | None = 2,
        min_visible: float = 0.1,
    ) -> None:
        super().__init__(ds)
        self.layout = MosaicLayout(shape, image, boxes, labels, min_visible)
        node = ds.compile_in(StageContext(0, serial=True))
        if node is None or node.size is None:
            what = f"Mosaic needs random access to a finite flow, got {pipeline_of(ds)}."
            fix = "map a function that calls MosaicLayout(...) over BatchData(ds, 4, stack='list')"
            raise ConfigError(what, fix=fix)

    def arguments(self) -> str:
        return "{} x {}".format(*args.height_and_width(self.layout.shape))

    def compile(self, context: StageContext) -> Node | None:
        inner = self.ds.compile_in(replace(context, serial=True))
        if inner is None or inner.size is None:
            return None
        mapper = Mapper(self.layout, f"Mosaic({self.arguments()})")
        return MosaicNode(inner, inner.size, mapper, context.key(self))


class MosaicNode(Node):
    def __init__(self, inner: Node, size: int, mapper: Mapper, key: int) -> None:
        self.inner = inner
        self.size = self._count = size
        self._mapper = mapper
        self._key = key

    def get(self, epoch: int, position: int) -> Datapoint:
        rng = position_rng(self._key, epoch, position)
        members = self._members(rng, position)
        datapoints = [self.inner.get(epoch, p) for p in members.tolist()]
        try:
            return self._mapper.f(datapoints, rng)
        except Exception as error:
            where = f"datapoints {', '.join(map(str, members))} of epoch {epoch}"
            raise self._mapper.failure(error, where, datapoints[0]) from error

    def members(self, epoch: int, position: int) -> NDArray[np.int64]:
        return self._members(position_rng(self._key, epoch, position), position)

    def _members(self, rng: RNG, position: int) -> NDArray[np.int64]:
        return np.array([position, *rng.integers(self._count, size=3)])


def soft_labels(labels: NDArray[Any], num_classes: int | None) -> NDArray[Any]:
    """Convert labels to floats [n, classes]. Integer labels are one-hot encoded."""
    if labels.dtype.kind == "f" and labels.ndim == 2:
        return labels
    if labels.dtype.kind not in "iu" or labels.ndim != 1 or num_classes is None:
        expected = "integers [n] and num_classes=, or floats [n, classes]"
        fix = 'pass num_classes, or labels="pair" to get both labels and the ratio'
        what = f"Labels of the form {describe(labels)} cannot be mixed."
        raise ConfigError(what, expected=expected, fix=fix)
    wrong = labels[(labels < 0) | (labels >= num_classes)]
    if wrong.size:
        raise ConfigError(f"Labels must be 0 to {num_classes - 1}, got {wrong[0]}.")
    soft = np.zeros((len(labels), num_classes), np.float32)
    soft[np.arange(len(labels)), labels] = 1
    return soft


def _span(size: int, fraction: Ratios, rng: RNG) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    length = (size * fraction).astype(np.int64)
    first = rng.integers(size, size=len(fraction)) - length // 2
    return np.maximum(first, 0), np.minimum(first + length, size)
