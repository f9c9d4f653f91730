"""Settings that every application has."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from towerpack._core.naming import alike
from towerpack.config import Config, Name, NamesCode, PathText, Regex
from towerpack.zoo import PRETRAINED

_RATES: Final = dict(sgd=0.1, momentum=0.02, adagrad=0.01, adadelta=1.0, ftrl=0.1, lion=1e-4)
"""Usual learning rates of optimizers that need another one than 0.001."""


class Optimizer(Config):
    """Optimizer and learning rate."""

    name: Name = "adam"
    "momentum, sgd, adam, adamw, rmsprop, adagrad, adadelta, ftrl, nadam, lion, or module:name."
    learning_rate: float = Field(default=None, gt=0, validate_default=True)
    "Its highest value; the usual one of the optimizer if it is left out, such as 0.001 of adam."
    options: dict[str, Any] = Field(
        default_factory=dict, description="More arguments of the Keras optimizer."
    )
    schedule: Literal["constant", "step", "linear", "cosine"] = "cosine"
    "How the learning rate falls: `step` at `boundaries`, the others from warm-up to the end."
    boundaries: list[float] = Field(
        default_factory=list, description="Epochs at which `step` multiplies."
    )
    factors: list[float] = Field(
        default_factory=list, description="The learning rate's factor after each boundary."
    )
    warmup: float = Field(default=0.0, ge=0)
    "Epochs in which the learning rate rises from 0."
    clip_norm: float | None = Field(default=None, gt=0)
    "Scale gradients whose common norm is larger."
    accumulate: int = Field(default=1, ge=1)
    "Average the gradients of so many steps before they are applied."

    @field_validator("learning_rate", mode="before")
    @classmethod
    def _usual_rate(cls, value: Any, info: ValidationInfo) -> Any:
        return _RATES.get(info.data.get("name", ""), 1e-3) if value is None else value


class Training(Config):
    """Length, devices and precision of a training."""

    least_steps: ClassVar[int] = 1
    "Steps of an epoch of small data, which are then repeated, unless `steps_per_epoch` is given."
    epochs: int = Field(default=10, ge=1)
    "Passes over the training data, unless `steps_per_epoch` says what an epoch is."
    steps_per_epoch: int | None = Field(default=None, ge=1)
    "None for one pass."
    trainer: Name = "simple"
    "simple, sync, shared, async, workers, ps, or module:name."
    devices: int | list[str] | None = None
    "How many, or which; of a computer without GPU, parts of its processor. None for all GPUs."
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    "Of the computation; weights stay float32."
    xla: bool = False
    "Compile steps."
    deterministic: bool = False
    "Bit-exact runs."
    seed: int | None = 0
    "All randomness flows from it; null draws one."
    ema: float | None = Field(default=None, gt=0, lt=1)
    "Keep averages of the weights, decaying by this factor at each step, and evaluate with them."
    keep: int = Field(default=3, ge=1)
    "Newest checkpoints that are kept, besides the best."
    best: str | None = None
    "The number whose best checkpoint is kept; null for the number of the task. Write max:NAME or "
    "min:NAME for a number whose metric does not declare a direction."
    patience: int | None = Field(default=None, ge=1)
    "End when `best` has not improved for so many epochs."
    callbacks: NamesCode[list[str | dict[str, dict[str, Any]]]] = Field(default_factory=list)
    "More callbacks: names, or `{name: {argument: value}}`; or module:name."
    fast_dev_run: bool = False
    "Try everything in seconds, in a run directory of its own."
    overfit_batches: int | None = Field(default=None, ge=1)
    "Train on so many batches alone, to see whether the model can learn."


class Transfer(Config):
    """Weights of elsewhere."""

    pretrained: PathText | None = None
    "A run, checkpoint, file of weights, or the name of a packaged network."
    skip: Regex = ""
    "Variables that stay at their initial values: a regular expression for whole names."
    trainable: Regex = ""
    "The only variables that are trained; all others, batch statistics too, stay as they are."
    ignore_mismatch: bool = False
    "Leave out what has another shape, instead of refusing."

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.pretrained is not None:
            self.pretrained = alike(self.pretrained, PRETRAINED) or self.pretrained
        if self.pretrained is None and (self.skip or self.ignore_mismatch):
            raise ValueError("skip and ignore_mismatch are for `pretrained`, which is not given")
        return self

    @property
    def is_whole(self) -> bool:
        """True for a packaged network with all of its weights, which can be used as it is."""
        return self.pretrained in PRETRAINED and not self.skip


class Data(Config):
    """Data, and how they become batches. Each application says which files it reads."""

    inputter: Name = ""
    "What reads them."
    path: str | None = None
    "The folder of the data."
    train: str | list[str] | None = None
    "Files or folders below path; several are joined. Usual names where nothing is said."
    val: str | list[str] | None = None
    "The same for validation."
    test: str | list[str] | None = None
    "The same for the final test."
    validation: float = Field(default=0.1, ge=0, lt=1)
    "Share of the training data that becomes the validation data, where there are none."
    encoding: str | None = None
    "Encoding of lists, tables and texts without a byte order mark, such as cp1252. null: UTF-8."
    batch_size: int = Field(default=16, ge=1)
    "Datapoints in a batch."


class PictureData(Data):
    """Pictures, and their way to a network's input."""

    workers: int = Field(default=0, ge=0)
    "Processes that decode and augment; 0: the program itself."


class Network(Config):
    """A network."""

    network: Name = ""
    "Its name, or module:function."
    options: dict[str, Any] = Field(default_factory=dict)
    "More arguments of the network."


class DecayedNetwork(Network):
    """A network whose weights are kept small."""

    l2: float = Field(default=0.0, ge=0)
    "Weight of half the squares of the weights that `l2_regex` matches."
    l2_regex: Regex = ".*/kernel"
    "Which variables: a regular expression for names."


class AppConfig(Config):
    """A recipe. Each application adds `data` and `model`."""

    task: NamesCode[str]
    "The application: classification, or module:name."
    title: str = ""
    "One line about it."
    optimizer: Optimizer = Optimizer()
    "Optimizer and learning rate."
    train: Training = Training()
    "Length, devices and precision of a training."
    transfer: Transfer = Transfer()
    "Weights of elsewhere."
    search: NamesCode[dict[str, Any]] = Field(default_factory=dict)
    "What `towerpack tune` tries: keys with `{low, high, log, step}` or a list of values."
    reached: dict[str, Any] | str = "not yet measured"
    "What it came to, when and where."
