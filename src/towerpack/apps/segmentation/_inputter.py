from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack.apps._coco import BadAnnotations, CocoPicture, Mask, has_mask, read_instances
from towerpack.apps._inputter import Inputter, Split, class_list
from towerpack.apps._label_pictures import draw_instances
from towerpack.apps._pictures import (
    FilesInputter,
    check_exist,
    header_of,
    listed_by_split,
    read_picture,
    size_error,
)
from towerpack.apps.classification.augmenters import Augmenter
from towerpack.apps.segmentation._classes import VOID, Classes
from towerpack.apps.segmentation._config import DataConfig, SegmentationConfig
from towerpack.config import Registry
from towerpack.dataflow import AugmentImageComponents, DataFlow
from towerpack.dataflow.images.image import upright
from towerpack.ops.geometry import colours

BACKGROUND = "background"
_NUM_CHECKED = 32  # label images of each split, evenly spaced, that are checked at the start
_HERE = "towerpack.apps.segmentation"
AUGMENTERS: Registry[Augmenter] = Registry(
    "augmenter",
    {name: f"{_HERE}.augmenters:{name}" for name in ("none", "fcn", "unet", "efficientnet_lite")},
)


@dataclass(frozen=True)
class Scene:
    """Image file, its label image or annotations, and the location of the entry for errors."""

    picture: str
    labels: str | Sequence[Mapping[str, Any]]
    where: str


def _drawn_size(picture: str | Path, stored: bool) -> tuple[int, int]:
    """Return the width and height of the pixels to which labels refer."""
    header = header_of(picture)
    height, width = (header.height, header.width) if stored else header.upright_size
    return width, height


@dataclass(frozen=True)
class _Decode:
    """Function from a scene to (image uint8 [h, w, channels], label uint8 [h, w])."""

    classes: Classes
    channels: int
    categories: Mapping[int | str, int]
    stored: bool

    def __call__(self, scene: Scene) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        image = read_picture(scene.picture)
        size = image.shape[0], image.shape[1]
        # The orientation is needed only if labels refer to the stored pixels.
        orientation = header_of(scene.picture).orientation if self.stored else 1
        drawn = size[::-1] if orientation > 4 else size
        if isinstance(scene.labels, str):
            label = self.classes.read(scene.labels, scene.where)
        else:
            label = draw_instances(scene.labels, drawn, self.categories, VOID, scene.where)
        if label.shape != drawn:
            fits = label.shape == drawn[::-1] and header_of(scene.picture).orientation > 4
            other = "upright" if self.stored else "stored"
            raise FormatError(
                f"{scene.where}: the label picture must have the size of the picture.",
                got=f"{label.shape[0]} x {label.shape[1]} pixels",
                expected=f"{drawn[0]} x {drawn[1]} pixels",
                fix=f"set data.boxes_on={other}" if fits else None,
            )
        label = upright(label, orientation)
        return colours(self.channels).augment(image), label


class SceneInputter(FilesInputter):
    """Inputter of images with a class for each pixel, listed in CSV files (`image,label`).

    A batch is (image uint8 [n, height, width, channels], label uint8 [n, height, width]). Void
    pixels have label 255.

    Args:
        config: Section `data` of a recipe.
        augmenter: Augmentation of images and labels, and normalization.
    """

    config: DataConfig

    def __init__(self, config: DataConfig, augmenter: Augmenter) -> None:
        self.config, self.augmenter = config, augmenter
        self.geometry = replace(augmenter.geometry(config.size), channels=config.channels)
        self.categories: Mapping[int | str, int] = {}
        super().__init__(config)

    @property
    def class_names(self) -> Sequence[str]:  # type: ignore[override]
        return self.classes.names

    def decoder(self) -> Callable[[Any], Any]:
        return self._decoder_of(self.classes)

    def _decoder_of(self, classes: Classes) -> _Decode:
        stored = self.config.boxes_on == "stored"
        return _Decode(classes, self.config.channels, self.categories, stored)

    def _checked(self, classes: Any, parts: dict[str, Any]) -> dict[str, Any]:
        parts = super()._checked(classes, parts)
        decode = self._decoder_of(classes)
        for scenes in parts.values():
            for scene in scenes[:: max(1, len(scenes) // _NUM_CHECKED)]:
                decode(scene)
        return parts

    def _as_json(self, classes: Classes) -> Any:
        return {**asdict(classes), "void": sorted(classes.void)}

    def _from_json(self, content: Any) -> Classes:
        names, void = class_list(content["names"]), frozenset(map(int, content["void"]))
        colors = tuple((int(r), int(g), int(b)) for r, g, b in content["colours"])
        return Classes(tuple(names), colors, void, bool(content["by_colour"]))

    def find(self) -> tuple[Classes, dict[str, list[Scene]]]:
        if self.config.images is not None:
            raise ConfigError("data.images needs data.inputter=coco.", fix="remove data.images")
        rows = listed_by_split(self.config, ("image", "label")).items()
        parts = {split: [Scene(*r.fields, where=str(r)) for r in some] for split, some in rows}
        return Classes.from_config(self.config), parts

    def flow(self, split: Split) -> DataFlow:
        training, size = split == "train", self.config.size
        change = self.augmenter.train(size) if training else [self.geometry.scaling()]
        return self.batches(
            split, lambda ds: AugmentImageComponents(ds, change, index=0, masks=1, copy=False)
        )


class CocoInputter(SceneInputter):
    """Inputter of COCO instances. The classes are `background` and the categories.

    A category with the name `background` is the background.
    """

    def find(self) -> tuple[Classes, dict[str, list[Scene]]]:
        bad = BadAnnotations(self.config.bad_boxes)
        names, pictures = read_instances(self.config, self.config.images, Mask, bad)
        background = [key for key, name in names.items() if name.strip("_").lower() == BACKGROUND]
        others = [key for key in names if key not in background]
        numbers = {key: number for number, key in enumerate(others, 1)}
        self.categories = numbers | dict.fromkeys(background, 0)
        check_exist([str(p.path) for split_pictures in pictures.values() for p in split_pictures])
        parts = {s: [self._scene(p, bad) for p in some] for s, some in pictures.items()}
        bad.warn()
        names_in_order = [BACKGROUND, *(names[key] for key in others)]
        return Classes.from_config(self.config, names_in_order), parts

    def _scene(self, picture: CocoPicture[Mask], bad: BadAnnotations) -> Scene:
        is_stored, path = self.config.boxes_on == "stored", picture.path
        size, stated = _drawn_size(path, is_stored), (picture.entry.width, picture.entry.height)
        if all(stated) and stated != size:
            other = "upright" if is_stored else "stored"
            fits_other = stated == _drawn_size(path, not is_stored)
            what = f"{picture.where}: the annotations of {path}"
            raise size_error(what, stated, size, other if fits_other else None)
        annotations = picture.annotations
        masks = [m.model_dump() for where, m in annotations if has_mask(where, m, size, bad)]
        return Scene(str(path), masks, f"{picture.where}, {path.name}")


INPUTTERS: Registry[Callable[..., Inputter]] = Registry(
    "inputter", {"csv": SceneInputter, "coco": CocoInputter}
)
"""Functions from the section `data` of a recipe and an augmenter to an `Inputter`, by name."""


def make_inputter(config: SegmentationConfig | DataConfig) -> Inputter:
    """Create the inputter of a recipe with its augmenter.

    Args:
        config: Recipe, or its section `data`.
    """
    data = config if isinstance(config, DataConfig) else config.data
    return INPUTTERS.get(data.inputter)(data, AUGMENTERS.get(data.augmenter))
