"""Training, evaluation, prediction and export with an inputter and a modeler."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import tensorflow as tf

from towerpack._core.errors import CheckpointError, ConfigError
from towerpack._core.files import replace_file
from towerpack._core.logs import get_logger
from towerpack._core.native_log import quiet_start
from towerpack.apps._application import RECIPE, Recipe
from towerpack.apps._config import AppConfig, Training
from towerpack.apps._inputter import Inputter, Split
from towerpack.apps._modeler import Modeler, Reporting
from towerpack.apps._optimizers import schedule_of
from towerpack.apps._splits import row_hashes
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
"""The file in a run with a hash of the name of each row that it was trained on."""
_OVER_DEVICES = ("sync", "shared", "async")
CALLBACKS: Registry[Any] = Registry(
    "callback",
    {
        name: f"towerpack.callbacks:{name}"
        for name in (
            "CheckNumerics",
            "EarlyStopping",
            "HyperParamSetterWithFunc",
            "MaxSaver",
            "MinSaver",
            "ModelSaver",
            "PeriodicTrigger",
            "ProgressBar",
            "ScheduledHyperParamSetter",
            "StatMonitorParamSetter",
        )
    },
    base=Callback,
)
# What a run that goes on may be told anew; the trainer itself checks the rest of `train`.
_MAY_CHANGE = ("title", "reached", "train.", "data.workers", "sample.")


@dataclass(frozen=True)
class Evaluation:
    """Result of an evaluation.

    Attributes:
        numbers: Metrics by name.
        lines: Tables as text.
        files: Written pictures and tables.
        step: Step of the checkpoint.
        count: Number of datapoints, each counted once.
        trained_on: Number of datapoints that the run was trained on, by their names; None if the
            run or the inputter does not record names.
    """

    numbers: Mapping[str, float]
    lines: Sequence[str]
    files: Sequence[Path]
    step: int
    count: int
    trained_on: int | None = None


class Runner:
    """Train, evaluate and export a modeler on the data of an inputter.

    Args:
        config: Configuration of the recipe.
        inputter: The data.
        modeler: The model.
        run_dir: Directory for all files of the run.
        callbacks: More callbacks for training.
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
        self.run_dir = Path(run_dir)
        inputter.restore(self.run_dir)
        self._callbacks = list(callbacks)

    @classmethod
    def of(
        cls,
        recipe: Recipe,
        run_dir: str | os.PathLike[str] | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> Runner:
        """Create the runner of a recipe; for the recipe of a run, in the run's directory."""
        _start_tensorflow(recipe.config.train)
        inputter = recipe.inputter()
        found = run_dir or recipe.run_dir or Path("runs") / recipe.name
        inputter.restore(Path(found))
        return cls(recipe.config, inputter, recipe.modeler(inputter), found, callbacks)

    def train(self, resume: str = "auto") -> Trainer:
        """Train, or go on; evaluate after each epoch; keep the best checkpoint.

        Raises:
            ConfigError: The run in this directory was made with other settings.
        """
        config = self.config.train
        if resume == "auto" and not (config.fast_dev_run or config.overfit_batches):
            self._check_unchanged()
        if resume == "never":
            before = list(self.inputter.class_names)
            self.inputter.restore(None)
            if list(self.inputter.class_names) != before:
                raise ConfigError(
                    f"The run in {self.run_dir} has other classes.",
                    got=", ".join(self.inputter.class_names),
                    expected=", ".join(before),
                    fix="start a new run with another --run-dir",
                )
        flow = self.inputter.flow("train")
        steps = config.steps_per_epoch or max(len(flow), config.least_steps)
        optimizer = self.modeler.optimizer()
        transfer = self.config.transfer
        train = TrainConfig(
            dataflow=flow,
            model=self.modeler,
            optimizer=optimizer if config.ema is None else WeightEMA(optimizer, config.ema),
            callbacks=[
                *self._usual_callbacks(steps),
                *self._callbacks,
                _KeepRecipe(self.config, self.inputter),
            ],
            steps_per_epoch=steps,
            max_epoch=config.epochs,
            seed=config.seed,
            deterministic=config.deterministic,
            precision=config.precision,
            xla=config.xla,
            run_dir=self.run_dir,
            resume=resume,
            fast_dev_run=config.fast_dev_run,
            overfit_batches=config.overfit_batches,
            init=self.modeler.pretrained(),
            trainable=transfer.trainable or (),
        )
        trainer = _trainer(train, config.trainer, config.devices)
        trainer.train()
        return trainer

    def evaluate(self, split: Split = "test", folder: Path | None = None) -> Evaluation:
        """Compute the metrics over a split, and write their reports into `folder`.

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
        """Count the rows of a split that the run was trained on, and warn if there are any."""
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
        count = int(np.isin(row_hashes(names, 0), np.load(file)).sum())
        if count:
            _LOG.warning(
                "The run was trained on rows with the names of %d of the %d rows in '%s', so the "
                "numbers are too good. Evaluate on other data.", count, len(names), split,
            )  # fmt: skip
        return count

    def export(
        self, folder: Path | None = None, *, format: str = "saved_model", **options: Any
    ) -> Path:
        """Export the best checkpoint, compared on validation data before it is done.

        Args:
            folder: Holds the versions; by default `export/FORMAT` in the run.
            format: As of `towerpack.inference.export`, as are the options.

        Raises:
            CheckpointError: The run has no checkpoint.
            ExportError: The exported model computes something else.
        """
        arguments = {
            "model": self.modeler,
            "outputs": self.modeler.infer_outputs,
            **self.modeler.export_arguments(),
        }
        if "batch_examples" not in arguments and not self.config.transfer.is_whole:
            # A packaged network, which needs no training, has no data.
            arguments["batch_examples"] = self._inputs(next(self._batches("val")))
        if format != "saved_model":
            for name in ("preprocess", "serve"):  # It alone reads files.
                arguments.pop(name, None)
            if self.modeler.portable_outputs:
                arguments["outputs"] = self.modeler.portable_outputs
        done = export(
            arguments.pop("model"),
            self.checkpoint(),
            folder or self.folder("export") / format,
            format=format,
            ema=self.config.train.ema is not None,
            **{**arguments, **options},
        )
        self.inputter.keep(done)
        return done

    def folder(self, name: str) -> Path:
        """Return a folder of the run to write into.

        Raises:
            ConfigError: It is a link, which a run directory from others may contain.
        """
        folder = self.run_dir / name
        if folder.is_symlink():
            raise ConfigError(
                f"{folder} is a link, and nothing is written through links of a run directory.",
                fix=f"remove the link {folder}; --run-dir puts a whole run on another disk",
            )
        return folder

    def predictor(self, outputs: Sequence[str], model: ModelDesc | None = None) -> Predictor:
        """Create a predictor of the modeler, or of `model`, with the best checkpoint."""
        return Predictor(
            model or self.modeler,
            self.checkpoint(),
            outputs=outputs,
            ema=self.config.train.ema is not None,
            batch_size=self.inputter.batch_size,
        )

    def checkpoint(self) -> Checkpoint:
        """Load the best checkpoint of the run; the newest if no best one was kept.

        The recipe of a packaged network needs no training: its weights become the run's first
        checkpoint.

        Raises:
            CheckpointError: The run has no checkpoint.
            ConfigError: The weights were trained on other numbers for the same pixels.
        """
        self.modeler.check_pixels(self.run_dir)
        try:
            return load_checkpoint(self.run_dir, tag=f"best-{self._best_as_given()[0]}")
        except CheckpointError:
            if not self.run_dir.exists():
                if not self.config.transfer.is_whole:
                    raise CheckpointError(
                        f"There is no run in {self.run_dir}.",
                        fix="run `towerpack train RECIPE` first, or name the run with --run-dir",
                    ) from None
                self._unpack(str(self.config.transfer.pretrained))
            return load_checkpoint(self.run_dir)

    @property
    def best(self) -> tuple[str, Mode]:
        """The number whose best checkpoint is kept, and 'min' or 'max'.

        Raises:
            ConfigError: Neither `train.best` nor a metric says which one.
        """
        name, mode = self._best_as_given()
        if mode is not None:
            return name, mode
        directions: dict[str, Mode] = {"cost": "min"}
        for metric in self.modeler.metrics():
            directions |= {f"val/{n}": direction for n, direction in metric.directions().items()}
        return name, direction_of(name, directions, f"set train.best to max:{name} or min:{name}")

    def _best_as_given(self) -> tuple[str, Mode | None]:
        """The name in `train.best`, and the direction if the recipe or the modeler gives one."""
        wanted, (name, mode) = self.config.train.best, self.modeler.best
        if wanted is None or wanted == name:
            return name, mode
        prefix, _, rest = wanted.partition(":")
        return (rest, prefix) if prefix in ("min", "max") and rest else (wanted, None)

    def _batches(self, split: Split) -> Iterator[Any]:
        return iter(self.inputter.flow(split).iterate(seed=self.config.train.seed or 0, epoch=0))

    def _inputs(self, batch: Any, wanted: Sequence[str] | None = None) -> dict[str, Any]:
        """Return the components of a batch by the names of the model's inputs."""
        names = [str(spec.name) for spec in self.modeler.inputs()]
        by_name = batch if isinstance(batch, dict) else dict(zip(names, batch, strict=True))
        return {name: by_name[name] for name in wanted or names}

    def _usual_callbacks(self, steps: int) -> list[Callback]:
        config = self.config.train
        name, mode = self.best
        found: list[Callback] = [
            ModelSaver(keep=config.keep),
            InferenceRunner(
                self.inputter.flow("val"),
                list(self.modeler.metrics()),
                ema=config.ema is not None,
            ),
            BestSaver(name, mode),
        ]
        if config.patience is not None:
            found.append(EarlyStopping(name, config.patience, mode))
        schedule = schedule_of(self.config.optimizer, config.epochs, steps)
        if schedule is not None:
            found.append(schedule)
        found.append(HumanHyperParamSetter("learning_rate"))
        return [*found, *(_named_callback(given) for given in config.callbacks)]

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
                f"The run in {self.run_dir} was made with other settings.",
                details="\n".join(changed),
                fix="restore the previous settings, or start a new run with another --run-dir",
            )


class _KeepRecipe(Callback):
    """Write the configuration into the run, for later commands."""

    def __init__(self, config: AppConfig, inputter: Inputter) -> None:
        self._config, self._inputter = config, inputter

    def before_train(self) -> None:
        replace_file(self.trainer.run_dir / RECIPE, to_yaml(self._config).encode())
        self._inputter.keep(self.trainer.run_dir)
        names = self._inputter.row_names("train")
        if names is not None:
            file, hashes = self.trainer.run_dir / TRAINED_ON, row_hashes(names, 0)
            if self.trainer.global_step and file.is_file():
                hashes = np.concatenate([hashes, np.load(file)])
            content = io.BytesIO()
            np.save(content, np.unique(hashes))
            replace_file(file, content.getvalue())


def _trainer(config: TrainConfig, name: str, devices: int | list[str] | None) -> Any:
    make = TRAINERS.get(name)
    if name not in _OVER_DEVICES:
        if devices is not None:
            raise ConfigError(
                f"train.devices={devices!r} is not for trainer: {name}.",
                expected=f"trainer: {', '.join(_OVER_DEVICES)}",
            )
        return make(config)
    parts = _parts_of_processor(name, devices)
    if parts is not None:
        _LOG.warning("There is no GPU: %d parts of the processor train.", parts)
        devices = [f"CPU:{i}" for i in range(parts)]
    return make(config, devices)


def _start_tensorflow(config: Training) -> None:
    """Divide the processor if the recipe sets a number of devices, and look for devices."""
    with quiet_start():
        cpu = tf.config.list_physical_devices("CPU")[0]
        parts = _parts_of_processor(config.trainer, config.devices)
        known = tf.config.get_logical_device_configuration(cpu) or [None]
        if parts is not None and parts != len(known):
            try:
                tf.config.set_logical_device_configuration(
                    cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(parts)]
                )
            except RuntimeError as error:
                raise ConfigError(
                    f"train.devices={parts}: TensorFlow has started with another number.",
                    fix="set train.devices in a new process",
                ) from error
        tf.config.list_logical_devices()


def _parts_of_processor(trainer: str, devices: int | list[str] | None) -> int | None:
    """Return the number of parts of the processor; None with GPUs or without a number."""
    if trainer in _OVER_DEVICES and isinstance(devices, int):
        return None if tf.config.list_physical_devices("GPU") else devices
    return None


def _named_callback(given: str | Mapping[str, Any]) -> Callback:
    name, arguments = (given, {}) if isinstance(given, str) else next(iter(given.items()))
    try:
        return CALLBACKS.get(name)(**arguments)
    except TypeError as error:
        raise ConfigError(f"train.callbacks: {name}({arguments}): {error}") from error
