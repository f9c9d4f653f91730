from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from towerpack.apps._config import AppConfig, DecayedNetwork, PictureData
from towerpack.config import Name, NetworkName

Side = Annotated[int, Field(ge=1)]


class DataConfig(PictureData):
    """Settings for reading labeled images and forming batches."""

    inputter: Name = "digits"
    """csv, folder, tfrecord, cifar10, cifar100, mnist, fashion_mnist, digits, imagenet_classes (no
    pictures), or module:name."""
    path: str | None = None
    "Folder of the data; for cifar and mnist, folder for downloads."
    train: str | list[str] | None = None
    "CSV files, patterns of TFRecord files, or folders, below path; several are joined."
    num_classes: int | None = Field(default=None, ge=2)
    "Number of classes, if the data do not state it."
    class_names: list[str] | None = None
    "Names of the classes in the order of their labels, if the data do not state them."
    size: tuple[Side, Side] = (32, 32)
    "Height and width of the network's input."
    channels: Literal[1, 3] = 3
    "3: color, 1: gray; pictures are converted."
    batch_size: int = Field(default=64, ge=1)
    augmenter: Name = "none"
    """none, cifar, vgg, inception, randaugment, digits, efficientnet_lite, unmirrored, or
    module:name."""
    samples: int | None = Field(default=None, ge=1)
    "Train only on this many pictures."
    synthetic: bool = False
    "Train on one constant batch, to measure speed without data."

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        names = self.class_names
        if names and (len(set(names)) < len(names) or self.num_classes not in (None, len(names))):
            raise ValueError(f"class_names has {len(set(names))} different names, not num_classes")
        return self


class ModelConfig(DecayedNetwork):
    """Settings of the network and its loss."""

    network: NetworkName = "resnet32"
    """lenet, resnet20 … resnet110, resnet50, inception_v4, nasnet_A_large, efficientnet_lite0,
    keras:NAME of keras.applications, or module:function."""
    label_smoothing: float = Field(default=0.0, ge=0, lt=1)
    "Share of the target that is spread evenly over all classes."
    mixup: float = Field(default=0.0, ge=0)
    "MixUp's alpha (Zhang et al. 2018); 0: no MixUp."
    cutmix: float = Field(default=0.0, ge=0)
    "CutMix's alpha (Yun et al. 2019); with `mixup`, each step uses one of them at random."
    class_weights: Literal["balanced"] | list[float] | None = None
    "Weights of the classes in the loss; balanced: inversely proportional to their frequency."
    top_k: int = Field(default=5, ge=1)
    "Also count a prediction as correct if the class is among this many most likely ones."


class ClassificationConfig(AppConfig):
    """Recipe of image classification."""

    task: str = "classification"
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
