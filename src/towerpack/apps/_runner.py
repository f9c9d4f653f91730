from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf

from towerpack._core.deprecation import with_old_name
from towerpack._core.errors import CheckpointError, ConfigError
from towerpack._core.files import refuse_link, replace_file
from towerpack._core.logs import get_logger
from towerpack._core.native_log import quiet_start
from towerpack._core.remote_path import is_url
from towerpack.apps._application import RECIPE, Recipe
from towerpack.apps._config import AppConfig, Training
from towerpack.apps._inputter import Inputter, Split
from towerpack.apps._modeler import Modeler, Reporting
from towerpack.apps._optimizers import schedule_of
from towerpack.apps._splits import read_hashes, row_hashes
from towerpack.callbacks import (
    BestSaver,
    Callback,
    EarlyStopping,
    HumanHyperParamSetter,
    InferenceRunner,
    ModelSaver,
)
from towerpack.callbacks.watch import Mode, direction_of
from towerpack.checkpoint import Checkpoint, CheckpointStore, load_checkpoint
from towerpack.config import Registry, differences, load, read_yaml, to_yaml
from towerpack.inference import Predictor, export
from towerpack.model import ModelDesc
from towerpack.training import TrainConfig, Trainer, WeightEMA
from towerpack.training.state.run_dir import run_files
from towerpack.zoo import read_pretrained

_LOG = get_logger(__name__)

TRAINERS: Registry[Any] = Registry(
    "trainer",
    {
        "simple": "towerpack.training:SimpleTrainer",
        "sync": "towerpack.training:SyncMultiGPUTrainer",
        "shared": "towerpack.training:SyncMultiGPUTrainerParameterServer",
        "async": "towerpack.training:AsyncMultiGPUTrainer",
        "workers": "towerpack.training:MultiWorkerTrainer",
        "ps": "towerpack.training:ParameterServerTrainer",
    },
    base=Trainer,
)
TRAINED_ON: Final = "trained_on.npy"
"""File in a run directory with hashes of the names of all training rows."""
_OVER_DEVICES = ("sync", "shared", "async")
_CALLBACK_NAMES = (
    "CheckNumerics", "EarlyStopping", "HyperParamSetterWithFunc", "MaxSaver", "MinSaver",
    "ModelSaver", "PeriodicTrigger", "ProgressBar", "ScheduledHyperParamSetter",
    "StatMonitorParamSetter",
)  # fmt: skip
CALLBACKS: Registry[Any] = Registry(
    "callback", {name: f"towerpack.callbacks:{name}" for name in _CALLBACK_NAMES}, base=Callback
)
# Keys of `train` that are arguments of `TrainConfig`.
_SHARED_KEYS = {"seed", "deterministic", "precision", "xla", "fast_dev_run", "overfit_batches"}
# Keys that may change when a run resumes. The trainer checks the keys of `train` itself.
_MAY_CHANGE = ("title", "reached", "train.", "data.workers", "sample.")


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation.

    Attributes:
        numbers: Metrics by name.
        lines: Lines of text tables.
        files: Paths of the written images and tables.
        step: Step of the checkpoint.
        count: Number of datapoints.
        trained_on: Number of datapoints that are also training rows; None if unknown.
    """

    numbers: Mapping[str, float]
    lines: Sequence[str]
    files: Sequence[Path]
    step: int
    count: int
    trained_on: int | None = None


@with_old_name("of", "from_recipe", removed_in="0.3")
class Runner:
    """Training, evaluation, inference and export of a modeler's model on an inputter's data.

    Args:
        config: Configuration of the recipe.
        inputter: Data.
        modeler: Model.
        run_dir: Directory for all files of the run. May be a URL.
        callbacks: Additional callbacks for training.
    """

    def __init__(
        self,
        config: AppConfig,
        inputter: Inputter,
        modeler: Modeler,
        run_dir: str | os.PathLike[str],
        callbacks: Sequence[Callback] = (),
    ) -> None:
        self.config = config
        self.inputter = inputter
        self.modeler = modeler
        self.run_dir = run_files(run_dir)
        self._where = str(run_dir) if is_url(run_dir) else self.run_dir
        inputter.restore(self.run_dir)
        self._callbacks = list(callbacks)

    @classmethod
    def from_recipe(
        cls,
        recipe: Recipe,
        run_dir: str | os.PathLike[str] | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Runner:
        """Create the runner of a recipe.

        Args:
            recipe: Recipe.
            run_dir: Directory of the run; by default, the recipe's run, or `runs/NAME`.
            callbacks: Additional callbacks for training.
        """
        _start_tensorflow(recipe.config.train)
        inputter = recipe.inputter()
        where = run_dir or recipe.run_dir or Path("runs") / recipe.name
        inputter.restore(run_files(where))
        return cls(recipe.config, inputter, recipe.modeler(inputter), where, callbacks)

    def train(self, resume: str = "auto") -> Trainer:
        """Train or resume. Evaluates after each epoch and keeps the best checkpoint.

        Args:
            resume: 'auto' resumes if there is a checkpoint, 'never' starts again, and a path
                resumes from this checkpoint.

        Raises:
            ConfigError: The run in this directory has different settings or classes.
        """
        config = self.config.train
        if resume == "auto" and not (config.fast_dev_run or config.overfit_batches):
            self._check_unchanged()
        if resume == "never":
            before = list(self.inputter.class_names)
            self.inputter.restore(None)
            if list(self.inputter.class_names) != before:
                raise ConfigError(
                    f"The classes must be the same as those of the run in {self.run_dir}.",
                    got=", ".join(self.inputter.class_names),
                    expected=", ".join(before),
                    fix="start a new run with a different --run-dir",
                )
        trainer = make_trainer(self.train_config(resume), config.trainer, config.devices)
        trainer.train()
        return trainer

    def train_config(self, resume: str = "auto") -> TrainConfig:
        """Return the configuration of the training.

        Args:
            resume: As for `train`.
        """
        config = self.config.train
        flow = self.inputter.flow("train")
        steps = config.steps_per_epoch or max(len(flow), config.least_steps)
        optimizer = self.modeler.optimizer()
        additional = [*self._callbacks, _KeepRecipe(self.config, self.inputter)]
        return TrainConfig(
            dataflow=flow,
            model=self.modeler,
            optimizer=optimizer if config.ema is None else WeightEMA(optimizer, config.ema),
            callbacks=[*self._usual_callbacks(steps), *additional],
            steps_per_epoch=steps,
            max_epoch=config.epochs,
            run_dir=self._where,
            resume=resume,
            **config.model_dump(include=_SHARED_KEYS),
            init=self.modeler.pretrained(),
            trainable=self.config.transfer.trainable or (),
        )

    def evaluate(self, split: Split = "test", folder: Path | None = None) -> Evaluation:
        """Compute the metrics of a split with the best checkpoint, and write reports.

        Args:
            split: 'train', 'val' or 'test'.
            folder: Folder for the reports; by default `eval-SPLIT` in the run.

        Raises:
            CheckpointError: The run has no checkpoint.
        """
        metrics = self.modeler.metrics()
        names = list(dict.fromkeys(name for metric in metrics for name in metric.outputs()))
        predictor = self.predictor(names)
        count = 0
        for metric in metrics:
            metric.begin()
        for batch in self._batches(split):
            inputs = self._inputs(batch, predictor.input_names)
            outputs = dict(zip(names, predictor(**inputs), strict=True))
            size = len(next(iter(inputs.values())))
            count += size
            for metric in metrics:
                metric.update(outputs, size)
        numbers = {name: value for metric in metrics for name, value in metric.finish().items()}
        reporting = [metric for metric in metrics if isinstance(metric, Reporting)]
        folder = folder or self.folder(f"eval-{split}")
        folder.mkdir(parents=True, exist_ok=True)
        return Evaluation(
            numbers,
            [line for metric in reporting for line in metric.lines()],
            [path for metric in reporting for path in metric.report(folder)],
            predictor.step,
            count,
            self._trained_on(split),
        )

    def _trained_on(self, split: Split) -> int | None:
        """Count the rows of a split that are also training rows. Warn if there are any."""
        file, names = self.run_dir / TRAINED_ON, self.inputter.row_names(split)
        if names is None or split == "train":
            return None
        if not file.is_file():
            if getattr(getattr(self.config, "data", None), split, None) is None:
                _LOG.warning(
                    "%s does not record which rows it was trained on. If an older version divided "
                    "the data, rows of this '%s' split may be among them.", self.run_dir, split,
                )  # fmt: skip
            return None
        count = int(np.isin(row_hashes(names, 0), read_hashes(file)).sum())
        if count:
            _LOG.warning(
                "The run was trained on rows with the names of %d of the %d rows in '%s', so the "
                "numbers are too good. Evaluate on other data.", count, len(names), split,
            )  # fmt: skip
        return count

    def export(
        self, folder: Path | None = None, *, format: str = "saved_model", **options: Any
    ) -> Path:
        """Export the best checkpoint, and compare outputs on validation data.

        Args:
            folder: Folder for the versions; by default `export/FORMAT` in the run.
            format: Format of `towerpack.inference.export`.
            options: Additional arguments of `towerpack.inference.export`.

        Raises:
            CheckpointError: The run has no checkpoint.
            ExportError: The exported model computes different outputs.
        """
        defaults = {"model": self.modeler, "outputs": self.modeler.infer_outputs}
        arguments = {**defaults, **self.modeler.export_arguments()}
        if "batch_examples" not in arguments and not self.config.transfer.is_whole:
            # A packaged network needs no training and has no data.
            arguments["batch_examples"] = self._inputs(next(self._batches("val")))
        if format != "saved_model":
            for name in ("preprocess", "serve"):  # only a SavedModel can read files
                arguments.pop(name, None)
            if self.modeler.portable_outputs:
                arguments["outputs"] = self.modeler.portable_outputs
        exported = export(
            arguments.pop("model"),
            self.checkpoint(),
            folder or self.folder("export") / format,
            format=format,
            ema=self.config.train.ema is not None,
            **{**arguments, **options},
        )
        self.inputter.keep(exported)
        return exported

    def folder(self, name: str) -> Path:
        """Return the path of a folder in the run directory, for writing.

        Args:
            name: Name of the folder.

        Raises:
            ConfigError: The folder is a link, which an untrusted run directory may contain.
        """
        return refuse_link(self.run_dir / name)

    def predictor(self, outputs: Sequence[str], model: ModelDesc | None = None) -> Predictor:
        """Create a predictor with the weights of the best checkpoint.

        Args:
            outputs: Names of the outputs.
            model: Model with the modeler's variables; by default, the modeler.
        """
        return Predictor(
            model or self.modeler,
            self.checkpoint(),
            outputs=outputs,
            ema=self.config.train.ema is not None,
            batch_size=self.inputter.batch_size,
        )

    def checkpoint(self) -> Checkpoint:
        """Load the best checkpoint of the run, or the latest checkpoint if no best one was kept.

        If the recipe uses a packaged network without training, its weights become the checkpoint.

        Raises:
            CheckpointError: The run has no checkpoint.
            ConfigError: The weights were trained on pixels that were normalized differently.
        """
        self.modeler.check_pixels(self.run_dir)
        try:
            return load_checkpoint(self._where, tag=f"best-{self._configured_best()[0]}")
        except CheckpointError:
            if not self.run_dir.exists():
                if not self.config.transfer.is_whole:
                    raise CheckpointError(
                        f"There is no run in {self._where}.",
                        fix="run `towerpack train RECIPE` first, or name the run with --run-dir",
                    ) from None
                self._unpack(str(self.config.transfer.pretrained))
            return load_checkpoint(self._where)

    @property
    def best(self) -> tuple[str, Mode]:
        """Metric whose best checkpoint is kept, with its direction: 'min' or 'max'.

        Raises:
            ConfigError: Neither `train.best` nor a metric declares the direction.
        """
        name, mode = self._configured_best()
        if mode is not None:
            return name, mode
        directions: dict[str, Mode] = {"cost": "min"}
        for metric in self.modeler.metrics():
            directions |= {f"val/{n}": direction for n, direction in metric.directions().items()}
        return name, direction_of(name, directions, f"set train.best to max:{name} or min:{name}")

    def _configured_best(self) -> tuple[str, Mode | None]:
        wanted, (name, mode) = self.config.train.best, self.modeler.best
        if wanted is None or wanted == name:
            return name, mode
        prefix, _, rest = wanted.partition(":")
        return (rest, prefix) if prefix in ("min", "max") and rest else (wanted, None)

    def _batches(self, split: Split) -> Iterator[Any]:
        return iter(self.inputter.flow(split).iterate(seed=self.config.train.seed or 0, epoch=0))

    def _inputs(self, batch: Any, wanted: Sequence[str] | None = None) -> dict[str, Any]:
        names = [str(spec.name) for spec in self.modeler.inputs()]
        by_name = batch if isinstance(batch, dict) else dict(zip(names, batch, strict=True))
        return {name: by_name[name] for name in wanted or names}

    def _usual_callbacks(self, steps: int) -> list[Callback]:
        config = self.config.train
        name, mode = self.best
        callbacks: list[Callback] = [
            ModelSaver(keep=config.keep),
            InferenceRunner(
                self.inputter.flow("val"), list(self.modeler.metrics()), ema=config.ema is not None
            ),
            BestSaver(name, mode),
        ]
        if config.patience is not None:
            callbacks.append(EarlyStopping(name, config.patience, mode))
        schedule = schedule_of(self.config.optimizer, config.epochs, steps)
        if schedule is not None:
            callbacks.append(schedule)
        callbacks.append(HumanHyperParamSetter("learning_rate"))
        return [*callbacks, *map(_named_callback, config.callbacks)]

    def _unpack(self, name: str) -> None:
        self.modeler.check_pixels(name)
        self.run_dir.mkdir(parents=True)
        replace_file(self.run_dir / RECIPE, to_yaml(self.config).encode())
        with CheckpointStore(self.run_dir / "checkpoints") as store:
            store.save(0, {"model": read_pretrained(name)}, {}, info={"from": name}, blocking=True)

    def _check_unchanged(self) -> None:
        file = self.run_dir / RECIPE
        if not file.is_file():
            return
        before = load(type(self.config), read_yaml(file), where=str(file))
        changed = [
            f"{name}: {old!r} -> {new!r}"
            for name, old, new in differences(before, self.config)
            if not name.startswith(_MAY_CHANGE)
        ]
        if changed:
            raise ConfigError(
                f"The settings must be the same as those of the run in {self.run_dir}.",
                details="\n".join(changed),
                fix="restore the previous settings, or start a new run with a different --run-dir",
            )


class _KeepRecipe(Callback):
    """Callback that stores the configuration in the run directory, for later commands."""

    def __init__(self, config: AppConfig, inputter: Inputter) -> None:
        self._config, self._inputter = config, inputter

    def before_train(self) -> None:
        replace_file(self.trainer.run_dir / RECIPE, to_yaml(self._config).encode())
        self._inputter.keep(self.trainer.run_dir)
        names = self._inputter.row_names("train")
        if names is not None:
            file, hashes = self.trainer.run_dir / TRAINED_ON, row_hashes(names, 0)
            if self.trainer.global_step and file.is_file():
                hashes = np.concatenate([hashes, read_hashes(file)])
            content = io.BytesIO()
            np.save(content, np.unique(hashes))
            replace_file(file, content.getvalue())


def make_trainer(config: TrainConfig, name: str, devices: int | list[str] | None) -> Any:
    make = TRAINERS.get(name)
    if name not in _OVER_DEVICES:
        if devices is not None:
            raise ConfigError(
                f"train.devices needs one of the trainers {', '.join(_OVER_DEVICES)}.",
                got=f"trainer: {name}, devices: {devices!r}",
                fix="set train.trainer to sync, or remove train.devices",
            )
        return make(config)
    parts = _cpu_devices(name, devices)
    if parts is not None:
        _LOG.warning("No GPU found. Training on %d devices of the CPU.", parts)
        devices = [f"CPU:{i}" for i in range(parts)]
    return make(config, devices)


def _start_tensorflow(config: Training) -> None:
    """Start TensorFlow. Split the CPU if the recipe sets a number of devices."""
    with quiet_start():
        cpu = tf.config.list_physical_devices("CPU")[0]
        parts = _cpu_devices(config.trainer, config.devices)
        known = tf.config.get_logical_device_configuration(cpu) or [None]
        if parts is not None and parts != len(known):
            try:
                tf.config.set_logical_device_configuration(
                    cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(parts)]
                )
            except RuntimeError as error:
                raise ConfigError(
                    f"train.devices={parts} must be set before TensorFlow starts.",
                    fix="set train.devices in a new process",
                ) from error
        tf.config.list_logical_devices()


def _cpu_devices(trainer: str, devices: int | list[str] | None) -> int | None:
    """Return the number of devices to split the CPU into. None if there is a GPU or no request."""
    if trainer in _OVER_DEVICES and isinstance(devices, int):
        return None if tf.config.list_physical_devices("GPU") else devices
    return None


def _named_callback(spec: str | Mapping[str, Any]) -> Callback:
    name, arguments = (spec, {}) if isinstance(spec, str) else next(iter(spec.items()))
    try:
        return CALLBACKS.get(name)(**arguments)
    except TypeError as error:
        raise ConfigError(
            f"The callback {name} in train.callbacks does not accept {arguments}: {error}"
        ) from error
