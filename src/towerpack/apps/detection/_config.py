"""Settings of a recipe of detection."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, model_validator

from towerpack._core.naming import alike
from towerpack.apps._config import AppConfig, DecayedNetwork, PictureData, Training
from towerpack.config import Name, Regex
from towerpack.zoo import has_pretrained

Side = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]


BACKBONE: Final = {
    "pretrained": "efficientnet-lite0",
    "trainable": "(?!stem|block[0-2]/).*",
}


class DataConfig(PictureData):
    """Pictures with boxes, and their way to a network's input."""

    inputter: Name = "coco"
    "coco (JSON), voc (XML), yolo (text), or module:name."
    train: str | list[str] | None = None
    "Below path; several are joined. coco: JSON files; voc: lists of names, or folders of XML; "
    "yolo: folders of pictures."
    images: str | None = None
    "coco, voc: the folder of the pictures below path, where it is not the usual one."
    class_names: list[str] | None = None
    "Names of the classes: of voc which ones and in which order, of yolo where no file says it."
    bad_boxes: Literal["error", "skip"] = "error"
    "What boxes do that have no area within their picture, and annotations that are damaged or "
    "incomplete; skip: they are counted and left out."
    boxes_on: Literal["upright", "stored"] = "upright"
    "On which picture boxes were measured: as it is shown, or as its pixels are stored, before "
    "EXIF's orientation is applied."
    size: tuple[Side, Side] = (192, 192)
    "Height and width of the network's input; pictures are stretched to it."
    augmenter: Name = "ssd_lite"
    "ssd, ssd_lite, none, or module:name."


class ModelConfig(DecayedNetwork):
    """The network, its loss, and what is made of its predictions."""

    network: Name = "ssd_lite"
    "ssd300, ssd512, ssd_lite, or module:function."
    match: Share = 0.5
    "Overlap above which an anchor learns a box."
    negatives: float = Field(default=3.0, gt=0)
    "Background anchors that are learnt from, for each with a box: those of greatest loss."
    box_weight: float = Field(default=1.0, gt=0)
    "Weight of the boxes' loss beside that of the classes."
    l2_regex: Regex = ".*kernel"
    "Which variables: a regular expression for names."
    score: Share = 0.01
    "Least score of a box that is given."
    suppress: Share = 0.45
    "Overlap above which the worse of two boxes of a class is left out."
    max_boxes: int = Field(default=200, ge=1)
    "Given for a picture."
    shown: Share = 0.5
    "Least score of a box that inference draws."


class BoxTraining(Training):
    """Length, devices and precision of a training."""

    least_steps: ClassVar[int] = 20
    epochs: int = Field(default=30, ge=1)
    "Passes over the training data, of at least 20 steps, unless `steps_per_epoch` is given."


class DetectionConfig(AppConfig):
    """A recipe of detection."""

    task: str = "detection"
    "The application."
    data: DataConfig = DataConfig()
    "Pictures and their boxes."
    model: ModelConfig = ModelConfig()
    "The network, its loss, and what is made of its predictions."
    train: BoxTraining = BoxTraining()  # pyright: ignore[reportIncompatibleVariableOverride]
    "Length, devices and precision of a training."

    @model_validator(mode="before")
    @classmethod
    def _start_from_backbone(cls, values: Any) -> Any:
        """Start the default network from packaged weights, if their extra is installed."""
        model = values.get("model") if isinstance(values, dict) else {"network": "another"}
        network = model.get("network") if isinstance(model, dict) else getattr(model, "network", "")
        usual = (not network or alike(network, ["ssd_lite"])) and "transfer" not in values
        return {**values, "transfer": BACKBONE} if usual and has_pretrained() else values
