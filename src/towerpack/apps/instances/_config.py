from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from towerpack.apps._config import AnnotatedData, AppConfig, DecayedNetwork
from towerpack.apps.detection._config import BACKBONE, BoxTraining
from towerpack.config import Name
from towerpack.zoo import has_pretrained

Side = Annotated[int, Field(ge=16)]
_SMALL: Final = "efficientnet-lite0"


class DataConfig(AnnotatedData):
    """Settings for reading images with masks of objects and forming batches."""

    inputter: Name = "coco"
    "coco (JSON with polygons or run lengths), voc (XML and SegmentationObject), or module:name."
    train: str | list[str] | None = None
    "Training data below path; several are joined. coco: JSON files; voc: lists of names."
    short_edge: tuple[Side, Side] = (192, 256)
    """Minimum and maximum length in pixels of a picture's shorter side. Training draws a length for
    each picture; otherwise the maximum is used."""
    long_edge: Side = 512
    "Maximum length in pixels of a picture's longer side."
    augmenter: Name = "flip"
    "flip, ssd, ssd_lite, none, or module:name."


class ModelConfig(DecayedNetwork):
    """Settings of the network and its loss."""

    network: Name = "mask_rcnn"
    "mask_rcnn, or module:name."
    backbone: Literal["efficientnet-lite0", "resnet50"] = _SMALL
    "Network that computes the feature maps."
    masks: bool = True
    "Whether to predict masks (Mask R-CNN) or only boxes (Faster R-CNN)."
    shown: Annotated[float, Field(ge=0, le=1)] = 0.5
    "Minimum score of an object that inference draws."


class InstancesConfig(AppConfig):
    """Recipe of instance segmentation."""

    task: str = "instances"
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: BoxTraining = BoxTraining()  # pyright: ignore[reportIncompatibleVariableOverride]

    @model_validator(mode="before")
    @classmethod
    def _start_from_backbone(cls, values: Any) -> Any:
        """Use packaged weights for the small backbone, if they are installed."""
        if not isinstance(values, dict) or "transfer" in values or not has_pretrained():
            return values
        model = values.get("model", {})
        backbone = model.get("backbone", _SMALL) if isinstance(model, dict) else model.backbone
        return {**values, "transfer": BACKBONE} if backbone == _SMALL else values
