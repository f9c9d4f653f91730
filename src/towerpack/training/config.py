"""Configuration of a training."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, SupportsIndex, TypeVar

from towerpack._core.errors import ConfigError
from towerpack._core.naming import did_you_mean
from towerpack.callbacks import Callback, Callbacks
from towerpack.training.state.run_dir import OnExisting
from towerpack.training.weights.match_by_name import SmartInit

T = TypeVar("T")
Precision = Literal["float32", "bfloat16", "float16"]

POLICIES = {"float32": None, "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def _with_near_misses(cls: type[T]) -> type[T]:
    """Decorate a dataclass so that the error for an unknown argument suggests similar names."""
    known, init = set(inspect.signature(cls).parameters), cls.__init__

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **settings: Any) -> None:
        for name in settings.keys() - known:
            raise TypeError(f"{cls.__name__} has no setting '{name}'. {did_you_mean(name, known)}")
        init(self, *args, **settings)

    cls.__init__ = checked
    return cls


@_with_near_misses
@dataclass(kw_only=True, slots=True)  # slots: assigning to a misspelled setting is an error
class TrainConfig:
    """Configuration of a training run, passed to a trainer.

    Attributes:
        dataflow: DataFlow of batches, read through a `QueueInput`. Pass either this or `data`.
        data: An `InputSource` or a `tf.data.Dataset`.
        model: A `ModelDesc`, or the plain functions `(inputs, build_graph, optimizer)`.
        optimizer: Used instead of the model's optimizer.
        callbacks: A list, or `Callbacks([…])`.
        extra_callbacks: Callbacks that run after `callbacks`. None for `CheckNumerics` and
            `ProgressBar`.
        monitors: Receivers of numbers; `stats.jsonl` is written in addition to them. None for
            `stats.jsonl`, the log and TensorBoard events. An empty list for no monitors.
        steps_per_epoch: Steps between calls of `trigger_epoch`. None for one pass over the data.
        max_epoch: Number of the last epoch.
        seed: Seed of all randomness. None draws one, logs it and saves it in checkpoints.
        deterministic: Make runs reproducible bit by bit. Switches on TensorFlow's deterministic
            operations in the whole process, which may be slower. Excludes XLA.
        precision: Dtype of the computations in layers. Weights stay float32, and 'float16' also
            scales the loss.
        xla: Compile the forward and backward pass and, with Keras's optimizers, the update.
        frozen: One or several regular expressions for full names of variables that are not
            trained: `'backbone/.*'`. If moving averages of a batch normalization match too, the
            layer normalizes by these averages and does not update them.
        trainable: Regular expressions for the only variables to train. Empty for all variables.
        run_dir: Directory for all files of the run. None for `runs/NAME-OF-THE-SCRIPT`. A URL such
            as `s3://bucket/run` is mirrored on the local disk and uploaded during training.
        resume: 'auto' continues from the newest checkpoint in `run_dir`, if there is one; 'never'
            starts from scratch; a path continues from that checkpoint or run.
        on_existing: Action if `run_dir` holds a run already. None for 'resume' if `resume` is
            'auto', otherwise 'new' (use a new directory beside it).
        fast_dev_run: Test the whole program in seconds. True trains for one step, n for n epochs
            of n steps; evaluations read as many batches, and periodic callbacks act each time.
            Uses a separate run directory, which is emptied first.
        overfit_batches: Train and evaluate on this many batches only, the same in each epoch. Uses
            a separate run directory.
        skip_steps: Steps whose data are consumed without training: numbers of steps from 1, and
            ranges `(first, last)` that include both ends. Step numbers, schedules, random numbers
            and ends of epochs stay the same. Callbacks are not called for these steps.
        eager: Run the steps in Python, one by one, so that a debugger can stop in the model.
        step_costs: Write each step's cost to `step_costs.f32` (4 bytes per step), from which
            `towerpack runs spikes` finds the steps whose cost stands out.
        init: Initial weights, assigned by name, for a run that does not resume: a `SmartInit`, or
            its source (a run directory, a checkpoint, a file, a dict).
        session_init: Alias of `init` from Tensorpack.

    Raises:
        ConfigError: Settings are invalid or contradict each other.
    """

    model: Any
    dataflow: Any = None
    data: Any = None
    optimizer: Any = None
    callbacks: Sequence[Callback] | Callbacks = ()
    extra_callbacks: Sequence[Callback] | None = None
    monitors: Sequence[Any] | None = None
    steps_per_epoch: int | None = None
    max_epoch: int = 100
    seed: int | None = None
    deterministic: bool = False
    precision: Precision = "float32"
    xla: bool = False
    frozen: str | Sequence[str] = ()
    trainable: str | Sequence[str] = ()
    run_dir: str | Path | None = None
    resume: str | Path = "auto"
    on_existing: OnExisting | None = None
    fast_dev_run: bool | int = False
    overfit_batches: int | None = None
    skip_steps: Sequence[int | Sequence[int]] = ()
    eager: bool = False
    step_costs: bool = True
    init: Any = None
    session_init: Any = None

    def __post_init__(self) -> None:
        if (self.dataflow is None) == (self.data is None):
            raise ConfigError(
                "TrainConfig needs exactly one of dataflow= and data=, "
                f"got {'neither' if self.data is None else 'both'}.",
                expected="dataflow=a DataFlow, or data=an InputSource",
            )
        self.frozen = [self.frozen] if isinstance(self.frozen, str) else self.frozen
        self.trainable = [self.trainable] if isinstance(self.trainable, str) else self.trainable
        for name in ("steps_per_epoch", "max_epoch", "seed", "fast_dev_run", "overfit_batches"):
            value = getattr(self, name)
            if isinstance(value, SupportsIndex):  # NumPy's integers too
                setattr(self, name, operator.index(value))
        if self.init is not None and self.session_init is not None:
            raise ConfigError(
                "session_init= is an alias of init=, so only one of them can be set.",
                fix="pass only init=",
            )
        init = self.session_init if self.init is None else self.init
        self.skip_steps = _ranges_of(self.skip_steps)
        self.init = init if init is None or isinstance(init, SmartInit) else SmartInit(init)
        self.session_init = None
        for name in ("steps_per_epoch", "max_epoch", "overfit_batches"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name} must be an integer of at least 1, got {value!r}.")
        if self.precision not in POLICIES:
            raise ConfigError(f"precision must be one of {list(POLICIES)}, got {self.precision!r}.")
        if self.xla and self.deterministic:
            raise ConfigError(
                "TensorFlow does not support xla=True together with deterministic=True.",
                fix="set only one of them",
            )
        self._check_modes()

    def _check_modes(self) -> None:
        if not isinstance(self.fast_dev_run, int) or self.fast_dev_run < 0:
            raise ConfigError(
                f"fast_dev_run must be a bool or an integer of at least 0, "
                f"got {self.fast_dev_run!r}."
            )
        if self.xla and self.eager:
            raise ConfigError(
                "xla=True compiles each step, but eager=True runs it in Python.",
                fix="leave out xla while you debug",
            )
        if not (self.fast_dev_run or self.overfit_batches):
            return
        mode = "fast_dev_run" if self.fast_dev_run else "overfit_batches"
        if self.fast_dev_run and self.overfit_batches:
            raise ConfigError(
                "fast_dev_run and overfit_batches cannot be combined.", fix="set only one of them"
            )
        if self.overfit_batches and self.dataflow is None:
            raise ConfigError(
                f"overfit_batches needs a DataFlow, got data={self.data!r}.",
                fix="pass the flow of batches: TrainConfig(dataflow=…)",
            )
        if self.resume not in ("auto", "never"):
            raise ConfigError(
                f"{mode} uses a separate run directory and cannot continue another run, "
                f"got resume={str(self.resume)!r}.",
                fix="leave out resume=, and pass init=RUN to start from the weights of that run",
            )

    @property
    def frozen_patterns(self) -> list[str]:
        """Regular expressions for full names of the variables that are not trained."""
        others = [f"(?!(?:{'|'.join(self.trainable)})$).*"] if self.trainable else []
        return [*self.frozen, *others]


def _ranges_of(steps: Iterable[Any]) -> list[list[int]]:
    """Return sorted ranges [first, last] without overlaps. Raise `ConfigError` if one is wrong."""
    ranges: list[list[int]] = []
    try:
        pairs = [each if isinstance(each, tuple | list) else (each, each) for each in steps]
        for first, last in sorted([*map(operator.index, pair)] for pair in pairs):
            if not 1 <= first <= last:
                raise ValueError(f"{first} to {last} is not a range of steps")
            if ranges and first <= ranges[-1][1] + 1:
                ranges[-1][1] = max(last, ranges[-1][1])
            else:
                ranges.append([first, last])
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"skip_steps must contain steps and ranges of steps, got {steps!r}.",
            expected="numbers of steps and pairs (first, last), counted from 1: [17, (1200, 1260)]",
        ) from error
    return ranges
