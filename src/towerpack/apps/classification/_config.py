"""Configuration of an image classification recipe."""

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
    "Share of the target that is spread evenly over all classes."
    mixup: float = Field(default=0.0, ge=0)
    "MixUp's alpha (Zhang et al. 2018); 0: no MixUp."
    cutmix: float = Field(default=0.0, ge=0)
    "CutMix's alpha (Yun et al. 2019); with `mixup`, each step uses one of them at random."
    class_weights: Literal["balanced"] | list[float] | None = None
    "Weights of the classes in the loss; balanced: inverse to their frequency in training."
    top_k: int = Field(default=5, ge=1)
    "Also count a prediction as correct if the class is among this many most likely ones."


class ClassificationConfig(AppConfig):
    """A recipe of image classification."""

    task: str = "classification"
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
