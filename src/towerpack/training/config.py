"""Configuration of a training."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, SupportsIndex, TypeVar

from towerpack._core.errors import ConfigError
from towerpack._core.naming import did_you_mean
from towerpack.callbacks import Callback, Callbacks
from towerpack.training.state.run_dir import OnExisting
from towerpack.training.weights.match_by_name import as_init

T = TypeVar("T")
Precision = Literal["float32", "bfloat16", "float16"]

POLICIES = {"float32": None, "bfloat16": "mixed_bfloat16", "float16": "mixed_float16"}


def _with_near_misses(cls: type[T]) -> type[T]:
    """Name near misses of an unknown setting, which Python only refuses."""
    known, init = set(inspect.signature(cls).parameters), cls.__init__

    @functools.wraps(init)
    def checked(self: Any, *args: Any, **settings: Any) -> None:
        for name in settings.keys() - known:
            raise TypeError(f"{cls.__name__} has no '{name}'. {did_you_mean(name, known)}")
        init(self, *args, **settings)

    cls.__init__ = checked
    return cls


@_with_near_misses
@dataclass(kw_only=True, slots=True)  # So that a misspelt setting is an error
class TrainConfig:
    """Everything that a trainer needs.

    Attributes:
        dataflow: A DataFlow of batches; it goes behind a `QueueInput`. Or give `data`.
        data: An `InputSource`, or a `tf.data.Dataset`.
        model: A `ModelDesc`, or the plain functions `(inputs, build_graph, optimizer)`.
        optimizer: Overrides the model's.
        callbacks: A list, or `Callbacks([…])`.
        extra_callbacks: Run after `callbacks`. None for the usual: `CheckNumerics`, `ProgressBar`.
        monitors: Where numbers go. None for the usual: `stats.jsonl` (which is written besides
            all others, too), the log, TensorBoard events.
        steps_per_epoch: Steps between two `trigger_epoch`. None for one pass over the data.
        max_epoch: Number of the last epoch.
        seed: All randomness flows from it. None draws one, logs it and keeps it in checkpoints.
        deterministic: Bit-exact runs, by TensorFlow's deterministic ops. They are switched on for
            the whole process, can be slower, and exclude XLA.
        precision: 'float32', or 'bfloat16' or 'float16' for layers by name (weights stay float32;
            float16 scales the loss).
        xla: Compile forward and backward of each step.
        frozen: A regular expression, or several, for whole names of variables that are not to be
            trained: `'backbone/.*'`. Where one matches moving averages of a batch normalisation,
            too, these stay and are what it normalises by.
        trainable: Likewise the only variables that are to be trained; the rest is as if `frozen`
            matched it. Nothing for all.
        run_dir: Holds everything of the run. None for `runs/NAME-OF-THE-SCRIPT`.
        resume: 'auto' continues from the newest checkpoint in `run_dir` if there is one; 'never'
            starts afresh; a path continues from that checkpoint or run.
        on_existing: What to do about a run that is in `run_dir` already; None follows `resume`:
            'resume' for 'auto', 'new' (a new directory beside it) for the others.

        fast_dev_run: Try the whole program in seconds: one step, or that many epochs of that many
            steps; evaluations read as many batches, and what acts periodically acts each time. In a
            run directory of its own, emptied each time.
        overfit_batches: Train on the first so many batches alone, the same in each epoch; evaluate
            on them too. In a run directory of its own.
        eager: Run the steps in Python, one by one, so that a debugger can stop in the model.
        init: Weights that a run starts from where it starts from nothing: a `SmartInit`, or what
            one is made of (a run directory, a checkpoint, a file, a dict). By name.
        session_init: The predecessor's word for it.

    Raises:
        ConfigError: Arguments that contradict each other or make no sense.
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
    eager: bool = False
    init: Any = None
    session_init: Any = None

    def __post_init__(self) -> None:
        """Check what can be checked without building anything."""
        if (self.dataflow is None) == (self.data is None):
            raise ConfigError(
                "TrainConfig needs data from exactly one place.",
                got="both dataflow= and data=" if self.data is not None else "neither",
                expected="dataflow=a DataFlow, or data=an InputSource",
            )
        self.frozen = [self.frozen] if isinstance(self.frozen, str) else self.frozen
        self.trainable = [self.trainable] if isinstance(self.trainable, str) else self.trainable
        for name in ("steps_per_epoch", "max_epoch", "seed", "fast_dev_run", "overfit_batches"):
            value = getattr(self, name)
            if isinstance(value, SupportsIndex):  # NumPy's integers too
                setattr(self, name, operator.index(value))
        if self.init is not None and self.session_init is not None:
            raise ConfigError("init= and session_init= are the same.", fix="give one of them")
        self.init = as_init(self.session_init if self.init is None else self.init)
        self.session_init = None
        for name in ("steps_per_epoch", "max_epoch", "overfit_batches"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ConfigError(f"{name}={value!r}.", expected="an integer of at least 1")
        if self.precision not in POLICIES:
            raise ConfigError(f"precision={self.precision!r}.", expected=f"one of {list(POLICIES)}")
        if self.xla and self.deterministic:
            raise ConfigError(
                "xla=True and deterministic=True exclude each other in TensorFlow.",
                fix="choose the fast run or the bit-exact one",
            )
        self._check_modes()

    def _check_modes(self) -> None:
        if not isinstance(self.fast_dev_run, int) or self.fast_dev_run < 0:
            raise ConfigError(f"fast_dev_run={self.fast_dev_run!r}.", expected="True, or a number")
        if self.xla and self.eager:
            raise ConfigError(
                "xla=True compiles each step, eager=True runs it in Python.",
                fix="leave out xla while you debug",
            )
        if not (self.fast_dev_run or self.overfit_batches):
            return
        mode = "fast_dev_run" if self.fast_dev_run else "overfit_batches"
        if self.fast_dev_run and self.overfit_batches:
            raise ConfigError("fast_dev_run and overfit_batches are two modes.", fix="choose one")
        if self.overfit_batches and self.dataflow is None:
            raise ConfigError(
                "overfit_batches takes batches from a flow, not from an InputSource.",
                got=f"data={self.data!r}",
                fix="give the flow: TrainConfig(dataflow=…)",
            )
        if self.resume not in ("auto", "never"):
            raise ConfigError(
                f"{mode} has a run directory of its own, and does not go on from another run.",
                got=f"resume={str(self.resume)!r}",
                fix="start from the weights alone: init=…",
            )

    @property
    def not_to_change(self) -> list[str]:
        """Expressions for whole names of all that `frozen` and `trainable` exclude."""
        rest = [f"(?!(?:{'|'.join(self.trainable)})$).*"] if self.trainable else []
        return [*self.frozen, *rest]
