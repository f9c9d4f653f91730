"""Settings of a recipe of segmentation."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from towerpack.apps._config import AppConfig, DecayedNetwork, PictureData
from towerpack.config import Name

Side = Annotated[int, Field(ge=1)]
Byte = Annotated[int, Field(ge=0, le=255)]


class DataConfig(PictureData):
    """Pictures and pictures of labels, and their way to a network's input."""

    inputter: Name = "csv"
    "csv (lines `image,label`), coco (instances as JSON), or module:name."
    train: str | list[str] | None = None
    "CSV or JSON files below path; several are joined."
    images: str | None = None
    "COCO: the folder of the pictures, below path; null where annotations say it."
    classes: str | None = None
    "A file below path with a class a line, `name` or `name,red,green,blue`; null: classes.txt."
    class_names: list[str] | None = None
    "Names of the classes in the order of their labels, instead of a file."
    colours: list[tuple[Byte, Byte, Byte]] | None = None
    "Red, green, blue of each class; label pictures in colour are read by them."
    void: list[int | str] = Field(default_factory=list)
    "Labels, or names of classes, whose pixels count neither for loss nor metrics."
    bad_boxes: Literal["error", "skip"] = "error"
    "What COCO's annotations do that have no mask, or are damaged; skip: they are counted and left "
    "out."
    boxes_on: Literal["upright", "stored"] = "upright"
    "On which picture labels were drawn: as it is shown, or as its pixels are stored, before "
    "EXIF's orientation is applied."
    size: tuple[Side, Side] = (128, 128)
    "Height and width of the network's input."
    channels: Literal[1, 3] = 3
    "3: colour, 1: grey; pictures are converted."
    augmenter: Name = "none"
    "none, fcn, unet (as fcn), efficientnet_lite, or module:name."


class ModelConfig(DecayedNetwork):
    """The network and its loss."""

    network: Name = "unet"
    "fcn, unet, deeplab, or module:function."
    class_weights: list[float] | None = None
    "Weights of the classes in the loss."


class SegmentationConfig(AppConfig):
    """A recipe of segmentation."""

    task: str = "segmentation"
    "The application."
    data: DataConfig = DataConfig()
    "Pictures and their labels."
    model: ModelConfig = ModelConfig()
    "The network and its loss."
