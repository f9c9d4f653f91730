"""Pictures with a class for each pixel, as batches."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack.apps._annotations import Checks, read_header
from towerpack.apps._coco import Id, MaskInstance, read_instances
from towerpack.apps._inputter import Inputter, Split
from towerpack.apps._label_pictures import LabelPicture, draw_instances, open_labels
from towerpack.apps._pictures import FilesInputter, listed, read_picture
from towerpack.apps._splits import places
from towerpack.apps.classification.augmenters import Augmenter
from towerpack.apps.segmentation._classes import VOID, Classes
from towerpack.apps.segmentation._config import DataConfig, SegmentationConfig
from towerpack.config import Registry
from towerpack.dataflow import AugmentImageComponents, DataFlow
from towerpack.dataflow.images import AugmentorList
from towerpack.dataflow.images._image import upright
from towerpack.ops.geometry import colours

_HERE = "towerpack.apps.segmentation"
_LOOKED_AT: Final = 128
_BACKGROUND: Final = re.compile("_*background_*", re.IGNORECASE)  # LabelMe: _background_
AUGMENTERS: Registry[Augmenter] = Registry(
    "augmenter",
    {name: f"{_HERE}.augmenters:{name}" for name in ("none", "fcn", "unet", "efficientnet_lite")},
)


@dataclass(frozen=True)
class Scene:
    """A picture and its labels.

    Attributes:
        picture: Name of the file.
        labels: Name of the label picture, or COCO's instances.
        where: What lists it.
    """

    picture: str
    labels: str | Sequence[MaskInstance]
    where: str

    def label_picture(self) -> LabelPicture:
        """Open the label picture."""
        return open_labels(str(self.labels), f"{self.where}: the label picture {self.labels}")


@dataclass(frozen=True)
class _Decode:
    """From a scene to (image uint8 [h, w, channels], label uint8 [h, w])."""

    classes: Classes
    channels: int
    categories: Mapping[Id, int]
    checks: Checks

    def __call__(self, scene: Scene) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        image = read_picture(scene.picture)
        size = image.shape[0], image.shape[1]
        turn = self.checks.orientation(read_header(scene.picture))
        if isinstance(scene.labels, str):
            label = self.classes.read(scene.label_picture())
        else:
            stored = size[::-1] if turn > 4 else size
            label = draw_instances(scene.labels, stored, self.categories, VOID)
        label = upright(label[..., None], turn)[..., 0]
        if label.shape != size:
            raise FormatError(
                f"{scene.where}: the picture and its labels differ in size.",
                got=f"{size[0]} x {size[1]} and {label.shape[0]} x {label.shape[1]} pixels",
            )
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
        self.categories: Mapping[Id, int] = {}
        super().__init__(config)

    @property
    def class_names(self) -> Sequence[str]:  # type: ignore[override]
        """Names of the classes."""
        return self.classes.names

    def decoder(self) -> Callable[[Any], Any]:
        """Of scenes."""
        checks = Checks(self.config)
        return _Decode(self.classes, self.config.channels, self.categories, checks)

    def _as_json(self, classes: Classes) -> Any:
        return {**asdict(classes), "void": sorted(classes.void)}

    def _from_json(self, content: Any) -> Classes:
        colours = tuple(tuple(colour) for colour in content["colours"])
        void = frozenset(content["void"])
        levels = tuple(tuple(pair) for pair in content.get("levels", ()))
        return Classes(tuple(content["names"]), colours, void, content["by_colour"], levels)

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
        return self._looked_at(Classes.of(self.config), parts), parts

    def _looked_at(self, classes: Classes, parts: Mapping[str, Sequence[Scene]]) -> Classes:
        """Check label pictures, evenly spread over each split; return classes that fit them.

        Raises:
            FormatError: A label picture does not fit its picture or the classes.
        """
        checks, levels = Checks(self.config), dict[int, Scene]()
        for scenes in parts.values():
            for scene in scenes[:: -(-len(scenes) // _LOOKED_AT)]:
                label = scene.label_picture()
                size = label.pixels.shape[1], label.pixels.shape[0]
                checks.header(Path(scene.picture), scene.where, size)
                if label.is_gray:
                    found = dict.fromkeys(np.unique(label.pixels).tolist(), scene)
                    levels = found | levels
                else:
                    classes.read(label)
        if self._kept is None:
            classes = classes.for_levels(levels, self.config.void)
        elif self._kept.levels:
            classes = replace(classes, levels=self._kept.levels, void=self._kept.void)
        for scene in dict.fromkeys(levels.values()):
            classes.read(scene.label_picture())
        return classes

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
    """COCO's instances. The classes are `background` and the other categories."""

    def find(self) -> tuple[Classes, dict[str, list[Scene]]]:
        """As the annotations say."""
        names, found = read_instances(self.config, MaskInstance)
        objects = list(dict.fromkeys(n for n in names.values() if not _BACKGROUND.fullmatch(n)))
        labels = {name: label for label, name in enumerate(objects, 1)}
        self.categories = {key: labels.get(name, 0) for key, name in names.items()}
        parts = {
            split: [Scene(str(one.path), one.instances, one.path.name) for one in pictures]
            for split, pictures in found.items()
        }
        return Classes.of(self.config, ["background", *objects]), parts


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
