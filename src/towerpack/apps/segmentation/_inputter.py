"""Pictures with a class for each pixel, as batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack.apps._coco import BadAnnotations, Mask, RunLengths, read_instances
from towerpack.apps._inputter import Inputter, Split
from towerpack.apps._label_pictures import draw_instances
from towerpack.apps._pictures import (
    FilesInputter,
    check_exist,
    header_of,
    listed,
    read_picture,
)
from towerpack.apps._splits import places
from towerpack.apps.classification.augmenters import Augmenter
from towerpack.apps.segmentation._classes import VOID, Classes
from towerpack.apps.segmentation._config import DataConfig, SegmentationConfig
from towerpack.config import Registry
from towerpack.dataflow import AugmentImageComponents, DataFlow
from towerpack.dataflow.images import AugmentorList
from towerpack.dataflow.images.image import upright
from towerpack.ops.geometry import colours

BACKGROUND = "background"
_TRIED = 32
"""Label pictures of each split, evenly spread, that are read before a run starts."""
_HERE = "towerpack.apps.segmentation"
AUGMENTERS: Registry[Augmenter] = Registry(
    "augmenter",
    {name: f"{_HERE}.augmenters:{name}" for name in ("none", "fcn", "unet", "efficientnet_lite")},
)


@dataclass(frozen=True)
class Scene:
    """A picture and its labels.

    Attributes:
        picture: Name of the file.
        labels: Name of the label picture, or COCO's annotations.
        where: What lists it.
    """

    picture: str
    labels: str | Sequence[Mapping[str, Any]]
    where: str


def drawn_size(picture: str | Path, stored: bool) -> tuple[int, int]:
    """Return the height and width of a picture as labels were drawn on it."""
    header = header_of(picture)
    return (header.height, header.width) if stored else header.upright_size


def _is_inside(polygon: Sequence[float], size: tuple[int, int]) -> bool:
    (x1, y1), (x2, y2) = ((f(polygon[::2]), f(polygon[1::2])) for f in (min, max))
    return x1 < min(x2, size[1]) and y1 < min(y2, size[0]) and x2 > 0 and y2 > 0


@dataclass(frozen=True)
class _Decode:
    """From a scene to (image uint8 [h, w, channels], label uint8 [h, w])."""

    classes: Classes
    channels: int
    categories: Mapping[int | str, int]
    stored: bool

    def __call__(self, scene: Scene) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        image = read_picture(scene.picture)
        size = image.shape[0], image.shape[1]
        # Only labels of stored pixels need what the header says.
        orientation = header_of(scene.picture).orientation if self.stored else 1
        drawn = size[::-1] if orientation > 4 else size
        if isinstance(scene.labels, str):
            label = self.classes.read(scene.labels, scene.where)
        else:
            label = draw_instances(scene.labels, drawn, self.categories, VOID, scene.where)
        if label.shape != drawn:
            other = label.shape == drawn[::-1] and header_of(scene.picture).orientation > 4
            raise FormatError(
                f"{scene.where}: the picture and its labels differ in size.",
                got=f"{drawn[0]} x {drawn[1]} and {label.shape[0]} x {label.shape[1]} pixels",
                fix=f"set data.boxes_on={'upright' if self.stored else 'stored'}"
                if other
                else None,
            )
        label = upright(label, orientation)
        return colours(self.channels).augment(image), label


class SceneInputter(FilesInputter):
    """Pictures with a class for each pixel, listed in CSV files: lines `image,label`.

    Batches are (image uint8 [n, height, width, channels], label uint8 [n, height, width]), 255
    where a pixel is void.

    Args:
        config: Which data, and how.
        augmenter: What happens to pictures and labels alike.

    Attributes:
        geometry: From a decoded picture to the network's input, where nothing is random.
    """

    config: DataConfig

    def __init__(self, config: DataConfig, augmenter: Augmenter) -> None:
        self.config, self.augmenter = config, augmenter
        self.geometry = replace(augmenter.geometry(config.size), channels=config.channels)
        self.categories: Mapping[int | str, int] = {}
        super().__init__(config)

    @property
    def class_names(self) -> Sequence[str]:  # type: ignore[override]
        """Names of the classes."""
        return self.classes.names

    def decoder(self) -> Callable[[Any], Any]:
        """Of scenes."""
        return self._decoder_of(self.classes)

    def _decoder_of(self, classes: Classes) -> _Decode:
        stored = self.config.boxes_on == "stored"
        return _Decode(classes, self.config.channels, self.categories, stored)

    def _checked(self, classes: Any, parts: dict[str, Any]) -> dict[str, Any]:
        parts = super()._checked(classes, parts)
        decode = self._decoder_of(classes)
        for scenes in parts.values():
            for scene in scenes[:: max(1, len(scenes) // _TRIED)]:
                decode(scene)
        return parts

    def _as_json(self, classes: Classes) -> Any:
        return {**asdict(classes), "void": sorted(classes.void)}

    def _from_json(self, content: Any) -> Classes:
        colours = tuple(tuple(colour) for colour in content["colours"])
        void = frozenset(content["void"])
        return Classes(tuple(content["names"]), colours, void, content["by_colour"])

    def find(self) -> tuple[Classes, dict[str, list[Scene]]]:
        """The classes and the scenes of each split: of lines `image,label` in CSV files."""
        if self.config.images is not None:
            raise ConfigError("data.images is for COCO's annotations.", fix="remove data.images")
        parts = {
            split: [
                Scene(*row.fields, where=str(row))
                for file in files
                for row in listed(file, ("image", "label"), self.config.encoding)
            ]
            for split, files in places(self.config, "{}.csv").items()
        }
        return Classes.of(self.config), parts

    def flow(self, split: Split) -> DataFlow:
        training, size = split == "train", self.config.size
        change = self.augmenter.train(size) if training else [self.geometry.scaling()]
        return self.batches(
            split, lambda ds: AugmentImageComponents(ds, change, index=0, masks=1, copy=False)
        )

    def prepare(self, sample: Any) -> tuple[NDArray[np.uint8]]:
        """(uint8 [height, width, channels],)."""
        return (AugmentorList(self.geometry.augmentors()).augment(sample),)


class CocoInputter(SceneInputter):
    """COCO's instances. The classes are the categories, after `background`.

    A category of that name is the background itself.
    """

    def find(self) -> tuple[Classes, dict[str, list[Scene]]]:
        """As the annotations say."""
        bad = BadAnnotations(self.config.bad_boxes)
        names, found = read_instances(self.config, self.config.images, Mask, bad)
        background = [key for key, name in names.items() if name.strip("_").lower() == BACKGROUND]
        others = [key for key in names if key not in background]
        self.categories = {key: i + 1 for i, key in enumerate(others)} | dict.fromkeys(
            background, 0
        )
        check_exist([str(one.path) for several in found.values() for one in several])
        parts: dict[str, list[Scene]] = {}
        for split, several in found.items():
            parts[split] = []
            for one in several:
                size = drawn_size(one.path, self.config.boxes_on == "stored")
                stated = one.entry.height, one.entry.width
                if all(stated) and stated != size:
                    fits = stated == drawn_size(one.path, self.config.boxes_on == "upright")
                    other = "upright" if self.config.boxes_on == "stored" else "stored"
                    raise FormatError(
                        f"{one.where}: the annotations of {one.path} are of another size.",
                        got=f"{stated[0]:g} x {stated[1]:g} pixels",
                        expected=f"{size[0]} x {size[1]}",
                        fix=f"set data.boxes_on={other}"
                        if fits
                        else "correct width and height in the annotations that data.train names",
                    )
                masks: list[Mapping[str, Any]] = []
                for where, mask in one.annotations:
                    runs = mask.segmentation
                    if isinstance(runs, RunLengths):
                        if runs.size != size:
                            got = f"{runs.size[0]} x {runs.size[1]} pixels"
                            bad.add(where, "its mask has another size than the picture.", got)
                            continue
                    elif not any(_is_inside(polygon, size) for polygon in runs):
                        bad.add(where, "its mask has no area within its picture.")
                        continue
                    masks.append(mask.model_dump())
                parts[split].append(Scene(str(one.path), masks, f"{one.where}, {one.path.name}"))
        bad.tell()
        return Classes.of(self.config, [BACKGROUND, *(names[key] for key in others)]), parts


INPUTTERS: Registry[Callable[..., Inputter]] = Registry(
    "inputter", {"csv": SceneInputter, "coco": CocoInputter}
)
"""Functions `(config, augmenter) -> Inputter`."""


def make_inputter(config: SegmentationConfig | DataConfig) -> Inputter:
    """The inputter of a recipe, or of its section `data`, with its augmenter.

    Raises:
        ConfigError: There is none of that name, or no such data, or a field does not apply.
        FormatError: A list of the data is damaged.
    """
    data = config if isinstance(config, DataConfig) else config.data
    return INPUTTERS.get(data.inputter)(data, AUGMENTERS.get(data.augmenter))
