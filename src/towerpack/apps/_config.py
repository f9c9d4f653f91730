"""Settings that all applications share."""

from typing import Any, ClassVar, Final, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from towerpack._core.naming import alike
from towerpack.config import Config, Name, NamesCode, PathText, Regex
from towerpack.zoo import IMAGENET, PRETRAINED

_RATES: Final = dict(sgd=0.1, momentum=0.02, adagrad=0.01, adadelta=1.0, ftrl=0.1, lion=1e-4)
"""Default learning rates of optimizers, where the default is not 0.001."""


class Optimizer(Config):
    """Optimizer and learning rate."""

    name: Name = "adam"
    "momentum, sgd, adam, adamw, rmsprop, adagrad, adadelta, ftrl, nadam, lion, or module:name."
    learning_rate: float = Field(default=None, gt=0, validate_default=True)
    "Maximum learning rate; if omitted, the optimizer's default, such as 0.001 for adam."
    options: dict[str, Any] = Field(default_factory=dict)
    "Additional arguments of the Keras optimizer."
    schedule: Literal["constant", "step", "linear", "cosine"] = "cosine"
    "Decay of the learning rate: `step` at `boundaries`, the others from warm-up to the end."
    boundaries: list[float] = Field(default_factory=list)
    "Epochs at which `step` changes the learning rate."
    factors: list[float] = Field(default_factory=list)
    "Factor of the learning rate after each boundary."
    warmup: float = Field(default=0.0, ge=0)
    "Epochs in which the learning rate rises from 0."
    clip_norm: float | None = Field(default=None, gt=0)
    "Maximum global norm of the gradients; larger gradients are scaled down."
    accumulate: int = Field(default=1, ge=1)
    "Number of steps whose gradients are averaged before they are applied."

    @field_validator("learning_rate", mode="before")
    @classmethod
    def _default_rate(cls, value: Any, info: ValidationInfo) -> Any:
        return _RATES.get(info.data.get("name", ""), 1e-3) if value is None else value


class Training(Config):
    """Length, devices and precision of a training."""

    least_steps: ClassVar[int] = 1
    "Minimum number of steps in an epoch. Small data are repeated, unless `steps_per_epoch` is set."
    epochs: int = Field(default=10, ge=1)
    "Passes over the training data, unless `steps_per_epoch` sets the length of an epoch."
    steps_per_epoch: int | None = Field(default=None, ge=1)
    "Steps in an epoch; null: one pass over the training data."
    trainer: Name = "simple"
    "simple, sync, shared, async, workers, ps, or module:name."
    devices: int | list[str] | None = None
    "Number or names of the devices; null: all GPUs. Without a GPU, the CPU is divided."
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    "Data type of the computation; weights stay float32."
    xla: bool = False
    "Compile training steps with XLA."
    deterministic: bool = False
    "Make runs reproducible bit by bit."
    seed: int | None = 0
    "Seed of all random numbers; null: a random seed."
    ema: float | None = Field(default=None, gt=0, lt=1)
    "Decay per step of moving averages of the weights, which evaluation then uses; null: none."
    keep: int = Field(default=3, ge=1)
    "Number of latest checkpoints to keep, in addition to the best one."
    best: str | None = None
    """Metric whose best checkpoint is kept; null: the default of the task. Write max:NAME or
    min:NAME if the metric does not declare a direction."""
    patience: int | None = Field(default=None, ge=1)
    "Stop if `best` has not improved for this many epochs."
    callbacks: NamesCode[list[str | dict[str, dict[str, Any]]]] = Field(default_factory=list)
    "Additional callbacks: names, `{name: {argument: value}}`, or module:name."
    fast_dev_run: bool = False
    "Try every stage in a few seconds, in a separate run directory."
    overfit_batches: int | None = Field(default=None, ge=1)
    "Train only on this many batches, to check whether the model can learn."


class Transfer(Config):
    """Initial weights from another training."""

    pretrained: PathText | None = None
    """Run, checkpoint, file of weights, name of a packaged network, or imagenet: Keras's weights of
    a network keras:NAME."""
    skip: Regex = ""
    "Variables that keep their random initial values: a regular expression for whole names."
    trainable: Regex = ""
    "Variables to train; all others, including batch statistics, stay constant."
    ignore_mismatch: bool = False
    "Skip weights of a different shape instead of raising an error."

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.pretrained is not None:
            names = [*PRETRAINED, IMAGENET]
            self.pretrained = alike(self.pretrained, names) or self.pretrained
        if self.pretrained is None and (self.skip or self.ignore_mismatch):
            raise ValueError("skip and ignore_mismatch have no effect unless `pretrained` is set")
        return self

    @property
    def is_whole(self) -> bool:
        """Whether the recipe uses all weights of a pretrained network, without training."""
        return self.pretrained in PRETRAINED and not self.skip


class Data(Config):
    """Settings for reading data and forming batches."""

    inputter: Name = ""
    "Reader of the data."
    path: str | None = None
    "Folder of the data."
    train: str | list[str] | None = None
    "Training data: files or folders below path; several are joined. null: the usual names."
    val: str | list[str] | None = None
    "Validation data, in the same form."
    test: str | list[str] | None = None
    "Test data, in the same form."
    validation: float = Field(default=0.1, ge=0, lt=1)
    "Fraction of the training data to use for validation if there are no validation data."
    encoding: str | None = None
    "Encoding of lists, tables and texts without a byte order mark, such as cp1252. null: UTF-8."
    batch_size: int = Field(default=16, ge=1)
    "Datapoints in a batch."


class PictureData(Data):
    """Settings for reading pictures and forming batches."""

    workers: int = Field(default=0, ge=0)
    "Number of processes that decode and augment pictures; 0: the main process decodes them."


class AnnotatedData(PictureData):
    """Settings for reading annotated pictures and forming batches."""

    images: str | None = None
    "Folder of the pictures below path, if it has an unusual name. For COCO and VOC."
    class_names: list[str] | None = None
    "Names of the classes in the order of their labels, if no file states them."
    bad_boxes: Literal["error", "skip"] = "error"
    """Treatment of annotations that are damaged, incomplete or have no area within their picture;
    skip: skip and count them."""
    boxes_on: Literal["upright", "stored"] = "upright"
    """Pixels to which annotations refer: upright (as displayed), or stored (before the EXIF
    orientation is applied)."""


class Network(Config):
    """Settings of the network and its loss."""

    network: Name = ""
    "Name of the network, or module:function."
    options: dict[str, Any] = Field(default_factory=dict)
    "Additional arguments of the network."


class DecayedNetwork(Network):
    """Settings of the network, its loss and weight decay."""

    l2: float = Field(default=0.0, ge=0)
    "Factor of the L2 penalty: half the squares of the weights that `l2_regex` matches."
    l2_regex: Regex = ".*/kernel"
    "Variables with an L2 penalty: a regular expression for names."


class AppConfig(Config):
    """Recipe: configuration of an application. Applications add the sections `data` and `model`."""

    task: NamesCode[str]
    "Application: its name, such as classification, or module:name."
    title: str = ""
    "Description in one line."
    optimizer: Optimizer = Optimizer()
    train: Training = Training()
    transfer: Transfer = Transfer()
    search: NamesCode[dict[str, Any]] = Field(default_factory=dict)
    "Search space of `towerpack tune`: keys with `{low, high, log, step}` or a list of values."
    reached: dict[str, Any] | str = "not yet measured"
    "Measured results, with date and hardware."
