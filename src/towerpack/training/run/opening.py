"""Opening of a run before anything is built: directory, checkpoint, seed, ledger, monitors."""

from __future__ import annotations

import dataclasses
import os
import secrets
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import tensorflow as tf

from towerpack._core.errors import CheckpointError, ConfigError
from towerpack._core.logs import get_logger
from towerpack._core.randomness import derive_seed, fresh_seed
from towerpack._core.remote_path import is_url
from towerpack.callbacks import Callbacks, CheckNumerics, ProgressBar
from towerpack.callbacks.monitors import (
    ConsoleMonitor,
    JSONLMonitor,
    Monitor,
    Monitors,
    TensorBoardMonitor,
    read_stats,
)
from towerpack.checkpoint import Checkpoint, list_checkpoints, load_checkpoint
from towerpack.inputs import InputSource, SplitInput
from towerpack.nn import global_step
from towerpack.training.config import TrainConfig
from towerpack.training.distribution.team import Team
from towerpack.training.run.parts import RunParts
from towerpack.training.state.checkpoint_contents import restoring
from towerpack.training.state.clock import Clock
from towerpack.training.state.counters import RunState
from towerpack.training.state.ledger import Ledger
from towerpack.training.state.run_dir import RunDir, run_dir_of
from towerpack.training.state.step_costs import StepCosts

if TYPE_CHECKING:
    from towerpack.checkpoint.remote_run import RunMirror

_LOG = get_logger(__name__)
RUN_FILE = "TOWERPACK_RUN_FILE"
"""Environment variable with the path of a file for the path of the run, set by a launcher."""
_MOVES_THE_CHIEF = (RUN_FILE, "SLURM_JOB_ID")
"""Environment variables of engines that may start the chief on another machine next time."""


def callbacks_of(config: TrainConfig, team: Team) -> Callbacks:
    callbacks, extra = config.callbacks, config.extra_callbacks
    callbacks = [callbacks] if isinstance(callbacks, Callbacks) else list(callbacks)
    extra = [CheckNumerics(), ProgressBar()] if extra is None else list(extra)
    ordered = Callbacks([*callbacks, *extra]).callbacks
    return Callbacks([c for c in ordered if team.is_chief or not c.chief_only])


def steps_of_one_pass(source: InputSource, replicas: int) -> int:
    try:
        steps = len(source) // (1 if isinstance(source, SplitInput) else replicas)
    except TypeError:
        raise ConfigError(
            "The number of steps per epoch is unknown, because the data have no len().",
            fix="set TrainConfig(steps_per_epoch=1000, …)",
        ) from None
    if steps < 1:
        raise ConfigError(
            "One pass over the data must make at least one step, got "
            f"{len(source)} batches for {replicas} replica(s).",
            fix="reduce the batch size, or use BatchData(…, remainder=True)",
        )
    return steps


@dataclass(frozen=True)
class OpenRun:
    """Run whose directory is open. `check_interrupt` raises an error if the run must end early."""

    directory: RunDir
    mirror: RunMirror | None
    checkpoint: Checkpoint | None
    seed: int
    monitors: Monitors
    ledger: Ledger
    costs: StepCosts
    step_variable: tf.Variable
    check_interrupt: Callable[[], None]

    @property
    def run_dir(self) -> Path:
        return self.directory.path

    def flush(self) -> None:
        """Write to disk everything that must precede a checkpoint."""
        self.monitors.flush()
        self.costs.flush()


def open_run(parts: RunParts, stack: ExitStack) -> OpenRun:
    """Open the run's directory, ledger and monitors; `stack` closes them."""
    state, team = parts.state, parts.distribution.team
    clock = Clock()
    directory, mirror, checkpoint, seed = _claim_directory(parts.config, state, team, stack)
    resumed_at = None if checkpoint is None else checkpoint.step
    ledger = stack.enter_context(
        Ledger(directory.ledger, clock, step=lambda: state.step, resumed_at=resumed_at)
    )
    if parts.config.deterministic:
        tf.config.experimental.enable_op_determinism()
    tf.random.set_seed(derive_seed(seed, "tensorflow") >> 32)
    monitors = Monitors(_monitors_of(parts.config, directory) if team.is_chief else [])
    stack.callback(monitors.close)
    enabled = parts.config.step_costs and team.is_chief
    costs = StepCosts(directory.step_costs, enabled=enabled)
    stack.callback(costs.close)
    step = stack.enter_context(global_step())
    step.assign(0)

    def check_interrupt() -> None:
        # Do not interrupt hooks of single steps, which are short. A `trigger` that is interrupted
        # is called again when the run is continued.
        ledger.beat()
        parts.watch()
        if mirror is not None:
            mirror.check()
        if state.settled:
            parts.interrupt.check()

    return OpenRun(
        directory, mirror, checkpoint, seed, monitors, ledger, costs, step, check_interrupt
    )


def _claim_directory(
    config: TrainConfig, state: RunState, team: Team, stack: ExitStack
) -> tuple[RunDir, RunMirror | None, Checkpoint | None, int]:
    """Return the run's directory, its mirror if it is behind a URL, its checkpoint, and the seed.

    The chief chooses all of them. Other processes write their logs to a subdirectory.
    """
    directory: RunDir
    mirror: RunMirror | None = None
    checkpoint: Checkpoint | None = None
    run_dir = run_dir_of(config.run_dir)
    if team.is_chief:
        on_existing = config.on_existing or ("resume" if config.resume == "auto" else "new")
        if on_existing == "delete":
            _refuse_to_delete_sources(config)
        if is_url(run_dir):
            from towerpack.checkpoint.remote_run import RunMirror

            mirror = stack.enter_context(RunMirror(str(run_dir), new=on_existing == "new"))
            run_dir, on_existing = mirror.path, "resume" if on_existing == "new" else on_existing
        directory = stack.enter_context(RunDir(run_dir, on_existing=on_existing))
        _LOG.info(
            "Run directory: %s. Training: %d epochs of %d steps.",
            directory.path if mirror is None else f"{mirror.url}, mirrored in {mirror.path}",
            state.max_epoch, state.steps_per_epoch,
        )  # fmt: skip
        checkpoint = _find_checkpoint(directory.path, config.resume)
        if checkpoint is None and config.resume == "auto":
            _warn_of_lost_steps(directory)
        if file := os.environ.get(RUN_FILE):
            Path(file).write_text(str(directory.path))
        where = None if checkpoint is None else str(checkpoint.path)
        seed = _choose_seed(config.seed, directory, checkpoint)
        team.broadcast([str(directory.path), where, seed, state.steps_per_epoch])
        if mirror is None and team.size > 1:
            _check_shared(team, directory.path)
        if checkpoint is not None:
            team.send_files(checkpoint.path)
    else:
        path, where, seed, state.steps_per_epoch = team.broadcast(None)
        if not is_url(run_dir):
            _check_shared(team, Path(path))
        directory = stack.enter_context(RunDir(Path(path) / f"worker-{team.index}"))
        if where is not None:
            # The chief alone reads the checkpoint, since others may not see the run directory.
            received = Path(stack.enter_context(TemporaryDirectory()), Path(where).name)
            team.receive_files(received)
            checkpoint = load_checkpoint(received)
    directory.record_start(
        seed=seed,
        config={f.name: getattr(config, f.name) for f in dataclasses.fields(config)},
        resumed_at=None if checkpoint is None else checkpoint.step,
    )
    return directory, mirror, checkpoint, seed


def _check_shared(team: Team, folder: Path) -> None:
    """Warn, or raise `ConfigError` in all processes, if one does not see the chief's directory."""
    probe = folder / f".shared-{secrets.token_hex(8)}"
    try:
        if team.is_chief:
            probe.touch()
        probe = Path(team.broadcast(str(probe)))
        seen = team.exchange(probe.exists())
    finally:
        if team.is_chief:
            probe.unlink(missing_ok=True)
    blind = " and ".join(team.name(i) for i, sees in enumerate(seen) if not sees)
    text = f"The run directory {folder} of the chief is not visible to {blind}."
    if blind and any(name in os.environ for name in _MOVES_THE_CHIEF):
        raise ConfigError(
            text,
            expected="a directory on storage that all machines of the run share",
            fix="set run_dir= to a directory on shared storage",
        )
    if blind and team.is_chief:
        _LOG.warning("%s If the run is to continue, start its chief on this machine again.", text)


def _refuse_to_delete_sources(config: TrainConfig) -> None:
    """Raise `ConfigError` if `on_existing='delete'` would delete the weights to start from."""
    deleted = _resolved(run_dir_of(config.run_dir))
    sources = [] if config.init is None else config.init.paths()
    if config.resume not in ("auto", "never"):
        sources.append(config.resume)
    for source in sources:
        if _resolved(source).is_relative_to(deleted):
            raise ConfigError(
                f"on_existing='delete' would delete {source} before the run starts from it.",
                fix="set on_existing='new', which uses a new directory",
            )


def _resolved(path: str | Path) -> Path:
    return Path(str(path)) if is_url(path) else Path(path).resolve()


def _choose_seed(seed: int | None, directory: RunDir, checkpoint: Checkpoint | None) -> int:
    if seed is not None:
        return seed
    if checkpoint is not None:
        with restoring(checkpoint):
            return int(checkpoint.state["seed"])
    recorded = directory.recorded().get("seed")
    if isinstance(recorded, int):
        return recorded
    seed = fresh_seed()
    _LOG.info("Drew seed=%d, because none is configured.", seed)
    return seed


def _warn_of_lost_steps(directory: RunDir) -> None:
    """Warn if this start begins at step 0 although an earlier start trained steps."""
    records = read_stats(directory.stats) if directory.stats.exists() else []
    if records:
        _LOG.warning(
            "An earlier start in %s reached step %d but has no checkpoint (no ModelSaver, or "
            "deleted checkpoints?). This start begins at step 0.",
            directory.path,
            records[-1].step,
        )


def _monitors_of(config: TrainConfig, directory: RunDir) -> list[Any]:
    monitors, stats = config.monitors, JSONLMonitor(directory.stats)
    if monitors is None:
        return [stats, ConsoleMonitor(exclude=["^time/"]), TensorBoardMonitor(directory.events)]
    monitors = [monitors] if isinstance(monitors, Monitor) else list(monitors)
    complete = not monitors or any(isinstance(monitor, JSONLMonitor) for monitor in monitors)
    return monitors if complete else [stats, *monitors]


def _find_checkpoint(run_dir: Path, resume: str | Path) -> Checkpoint | None:
    if resume == "never":
        return None
    if resume != "auto":
        return load_checkpoint(resume)
    try:
        return load_checkpoint(run_dir)
    except CheckpointError:
        if _has_checkpoints(run_dir):
            raise
        return None


def _has_checkpoints(run_dir: Path) -> bool:
    try:
        return bool(list_checkpoints(run_dir, checksums=False))
    except CheckpointError:
        return False  # There is no directory of checkpoints yet.
