"""Settings of a recipe of image classification."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from towerpack.apps._config import AppConfig, DecayedNetwork
from towerpack.apps.classification._data_config import DataConfig
from towerpack.config import Name


class ModelConfig(DecayedNetwork):
    """The network and its loss."""

    network: Name = "resnet32"
    "lenet, resnet20 … resnet110, resnet50, inception_v4, nasnet_A_large, or module:function."
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    "Share of the target that goes to all classes alike."
    mixup: float = Field(default=0.0, ge=0)
    "MixUp's alpha (Zhang et al. 2018); 0 for none."
    cutmix: float = Field(default=0.0, ge=0)
    "CutMix's alpha (Yun et al. 2019); with `mixup`, steps take turns by chance."
    class_weights: Literal["balanced"] | list[float] | None = None
    "Weights of the classes in the loss; balanced: as rare as they are in the training data."
    top_k: int = Field(default=5, ge=1)
    "Also count whether the class is among so many."


class ClassificationConfig(AppConfig):
    """A recipe of image classification."""

    task: str = "classification"
    "The application."
    data: DataConfig = DataConfig()
    "Pictures and labels."
    model: ModelConfig = ModelConfig()
    "The network and its loss."
