from typing import Annotated, ClassVar, Literal

from pydantic import Field

from towerpack.apps._config import AnnotatedData, AppConfig, DecayedNetwork
from towerpack.config import Name

Side = Annotated[int, Field(ge=1)]
Byte = Annotated[int, Field(ge=0, le=255)]


class DataConfig(AnnotatedData):
    """Settings for reading images with label images and forming batches."""

    old_keys: ClassVar = {"colours": "colors"}
    inputter: Name = "csv"
    "csv (lines `image,label`), coco (instances as JSON), or module:name."
    train: str | list[str] | None = None
    "CSV or JSON files below path; several are joined."
    classes: str | None = None
    "File below path with one class per line, `name` or `name,red,green,blue`; null: classes.txt."
    colors: list[tuple[Byte, Byte, Byte]] | None = None
    "Red, green, blue of each class, to read color label images."
    void: list[int | str] = Field(default_factory=list)
    "Labels or class names whose pixels loss and metrics ignore."
    size: tuple[Side, Side] = (128, 128)
    "Height and width of the network's input."
    channels: Literal[1, 3] = 3
    "3: color, 1: gray; pictures are converted."
    augmenter: Name = "none"
    "none, fcn, unet (as fcn), efficientnet_lite, or module:name."


class ModelConfig(DecayedNetwork):
    """Settings of the network and its loss."""

    network: Name = "unet"
    "fcn, unet, deeplab, or module:function."
    class_weights: list[float] | None = None
    "Weights of the classes in the loss."


class SegmentationConfig(AppConfig):
    """Recipe of segmentation."""

    task: str = "segmentation"
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
