from typing import Annotated, Any, ClassVar, Final

from pydantic import Field, model_validator

from towerpack._core.naming import alike
from towerpack.apps._config import AnnotatedData, AppConfig, DecayedNetwork, Training
from towerpack.config import Name, Regex
from towerpack.zoo import has_pretrained

Side = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(ge=0, le=1)]
BACKBONE: Final = {"pretrained": "efficientnet-lite0", "trainable": "(?!stem|block[0-2]/).*"}


class DataConfig(AnnotatedData):
    """Settings for reading images with boxes and forming batches."""

    inputter: Name = "coco"
    "coco (JSON), voc (XML), yolo (text), or module:name."
    train: str | list[str] | None = None
    """Training data below path; several are joined. coco: JSON files; voc: lists of names, or
    folders of XML files; yolo: folders of pictures."""
    size: tuple[Side, Side] = (192, 192)
    "Height and width of the network's input, to which pictures are stretched."
    augmenter: Name = "ssd_lite"
    "ssd, ssd_lite, flip, none, or module:name."


class ModelConfig(DecayedNetwork):
    """Settings of the network, its loss and its postprocessing."""

    network: Name = "ssd_lite"
    "ssd300, ssd512, ssd_lite, or module:function."
    match: Share = 0.5
    "Minimum IoU at which an anchor is matched to a box."
    negatives: float = Field(default=3.0, gt=0)
    "Number of background anchors in the loss per matched anchor. Those of largest loss are used."
    box_weight: float = Field(default=1.0, gt=0)
    "Weight of the box loss relative to the class loss."
    l2_regex: Regex = ".*kernel"
    score: Share = 0.01
    "Minimum score of a detected box."
    suppress: Share = 0.45
    "IoU above which non-maximum suppression removes the box of lower score."
    max_boxes: int = Field(default=200, ge=1)
    "Maximum number of detected boxes per picture."
    shown: Share = 0.5
    "Minimum score of a box that inference draws."


class BoxTraining(Training):
    """Settings of training, with epochs of at least 20 steps."""

    least_steps: ClassVar[int] = 20
    epochs: int = Field(default=30, ge=1)
    "Passes over the training data, of at least 20 steps, unless `steps_per_epoch` is set."


class DetectionConfig(AppConfig):
    """Recipe of object detection."""

    task: str = "detection"
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: BoxTraining = BoxTraining()  # pyright: ignore[reportIncompatibleVariableOverride]

    @model_validator(mode="before")
    @classmethod
    def _start_from_backbone(cls, values: Any) -> Any:
        """Use packaged backbone weights for the default network, if they are installed."""
        model = values.get("model") if isinstance(values, dict) else {"network": "another"}
        network = model.get("network") if isinstance(model, dict) else getattr(model, "network", "")
        is_default = (not network or alike(network, ["ssd_lite"])) and "transfer" not in values
        return {**values, "transfer": BACKBONE} if is_default and has_pretrained() else values
