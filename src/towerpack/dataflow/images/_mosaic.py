"""Mosaic: four images in one, with their boxes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow._blocks import Block, Positions, as_ints
from towerpack.dataflow._datapoints import Datapoint, describe, replaced
from towerpack.dataflow._draws import position_rng
from towerpack.dataflow._flow import (
    DataFlow,
    Place,
    Wrapper,
    compile_flow,
    pipeline_of,
    sequential_part,
)
from towerpack.dataflow._plan import Node
from towerpack.dataflow.images._arguments import Size, check_arguments, height_and_width, number
from towerpack.dataflow.images._augmentor import RNG
from towerpack.dataflow.images._crop import draw_crop
from towerpack.dataflow.images._geometry import ResizeTransform
from towerpack.dataflow.images._image import Image, check_image
from towerpack.dataflow.images._stages import component_of
from towerpack.dataflow.images._transform import TransformList, clip_boxes
from towerpack.dataflow.stages._mapping import Mapper

_MIDDLE = (0.25, 0.75)  # where the four images may meet, in fractions of the sides


@dataclass(frozen=True)
class MosaicLayout:
    """Puts four datapoints together into one.

    The canvas is cut into four parts that meet at a random point in its middle half. Each image is
    scaled, with its aspect ratio, until it covers its part, and a random section that fits is
    shown. Boxes are moved, clipped to what is shown, and left out where little of them is.

    Args:
        shape: (height, width) of the canvas, or one number for both.
        image: Which component is the image.
        boxes: Which component is the boxes, [n, 4]: x0, y0, x1, y1. `None`: there are none.
        labels: Which component, or components, have a row for each box.
        min_visible: Boxes of which less than this fraction is shown are left out.
    """

    shape: Size = 640
    image: Hashable = 0
    boxes: Hashable | None = 1
    labels: Hashable | tuple[Hashable, ...] | None = 2
    min_visible: Annotated[float, number(0, 1)] = 0.1

    def __post_init__(self) -> None:
        check_arguments(self)
        if min(height_and_width(self.shape)) < 4:
            raise ConfigError(f"A mosaic of {self.shape} is too small.", expected="4 or more")

    def __call__(self, datapoints: Sequence[Datapoint], rng: RNG) -> Datapoint:
        """One datapoint made of four; components not named here are those of the first.

        Raises:
            ConfigError: The images differ in dtype or channels, or boxes and labels in number.
        """
        images = [check_image(_part(datapoint, self.image)) for datapoint in datapoints]
        if len({(image.dtype, image.shape[2:]) for image in images}) > 1:
            raise ConfigError(
                "The images of a mosaic differ in kind.",
                got=", ".join(map(describe, images)),
                expected="one dtype and number of channels",
            )
        height, width = height_and_width(self.shape)
        canvas = np.empty((height, width, *images[0].shape[2:]), images[0].dtype)
        y, x = (int(size * rng.uniform(*_MIDDLE)) for size in (height, width))
        corners = [(0, y, 0, x), (0, y, x, width), (y, height, 0, x), (y, height, x, width)]
        rows = [
            self._show(datapoint, canvas, corner, rng)
            for datapoint, corner in zip(datapoints, corners, strict=True)
        ]
        changed: dict[Any, Any] = {self.image: canvas}
        for index, parts in zip(self._per_box(), zip(*rows, strict=True), strict=True):
            changed[index] = np.concatenate(parts)
        return replaced(datapoints[0], changed)

    def _per_box(self) -> list[Any]:
        """The components with a row for each box: the boxes, and labels."""
        if self.boxes is None:
            return []
        several = isinstance(self.labels, tuple)
        labels = cast("tuple[Any, ...]", self.labels if several else (self.labels,))
        return [self.boxes, *(index for index in labels if index is not None)]

    def _show(
        self, datapoint: Datapoint, canvas: Image, corner: tuple[int, int, int, int], rng: RNG
    ) -> list[NDArray[Any]]:
        """Draw one image into its part; what of boxes and labels is seen there."""
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
        boxes, *others = (np.asarray(_part(datapoint, index)) for index in self._per_box())
        moved = transform.apply_boxes(boxes)
        clipped, keep = clip_boxes(moved, y1 - y0, x1 - x0, min_area=self.min_visible)
        for rows in others:
            if rows.shape[:1] != keep.shape:
                raise ConfigError(
                    f"There are {len(keep)} boxes, and labels that are {describe(rows)}.",
                    expected="a row for each box",
                )
        shifted = clipped + np.array((x0, y0, x0, y0), clipped.dtype)
        return [rows[keep] for rows in (shifted, *others)]


def _part(datapoint: Datapoint, index: Hashable) -> Any:
    fix = "image=..., boxes=..., labels=... say which are; labels=None if boxes have none"
    return component_of(datapoint, index, "put together", fix)


class Mosaic(Wrapper):
    """Puts every datapoint together with three others of the pass, drawn at random, into one.

    Bochkovskiy et al. 2020 (YOLOv4), https://arxiv.org/abs/2004.10934, section 3.3. See
    `MosaicLayout` for how. Each datapoint is read four times on average, so decoding comes to four
    times the work; `CacheData` below helps where memory allows.

    Contract: in order; length of `ds`; random; thread- and fork-safe as `ds` is; resumable at once.

    Args:
        ds: Over an indexable source.
        shape: (height, width) of the result, or one number for both.
        image: Which component is the image; see `MosaicLayout`, as for the rest.
        boxes: Which component is the boxes.
        labels: Which component, or components, have a row for each box.
        min_visible: Boxes of which less than this fraction is shown are left out.

    Raises:
        ConfigError: `ds` can only be read in order, or is infinite.
        MapError: Four datapoints do not go together; raised while iterating.
    """

    random = True
    lifts = True

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
        node = compile_flow(ds, Place(0, serial=True))
        if node is None or node.size is None:
            raise ConfigError(
                f"Mosaic needs random access to a finite flow, not "
                f"{pipeline_of(sequential_part(ds))}.",
                fix="for four datapoints in a row, MapData(BatchData(ds, 4, stack='list'), ...) "
                "with a function that calls MosaicLayout(...)",
            )

    def arguments(self) -> str:
        height, width = height_and_width(self.layout.shape)
        return f"{height} x {width}"

    def compile(self, place: Place) -> Node | None:
        inner = compile_flow(self.ds, replace(place, serial=True))
        if inner is None or inner.size is None:
            return None
        mapper = Mapper(self.layout, f"Mosaic({self.arguments()})", None)
        return MosaicNode(inner, inner.size, mapper, place.key(self))


class MosaicNode(Node):
    """Reads four positions of another plan for each of its own."""

    def __init__(self, inner: Node, size: int, mapper: Mapper, key: int) -> None:
        self.inner = inner
        self.size = self._count = size
        self._mapper = mapper
        self._key = key

    def read(self, epoch: int, positions: Positions) -> Block:
        return [self.get(epoch, position) for position in as_ints(positions)]

    def get(self, epoch: int, position: int) -> Datapoint:
        rng = position_rng(self._key, epoch, position)
        others: list[int] = rng.integers(self._count, size=3).tolist()
        datapoints = [self.inner.get(epoch, p) for p in (position, *others)]
        try:
            return self._mapper.f(datapoints, rng)
        except Exception as error:
            where = f"datapoints {position}, {', '.join(map(str, others))} of epoch {epoch}"
            raise self._mapper.failure(error, where, datapoints[0]) from error
