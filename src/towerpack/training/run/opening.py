"""What a start of a run has to find out before anything is built."""

from __future__ import annotations

import dataclasses
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack._core.randomness import fresh_seed
from towerpack.callbacks import Callbacks, CheckNumerics, ProgressBar
from towerpack.callbacks.monitors import (
    ConsoleMonitor,
    JSONLMonitor,
    Monitor,
    TensorBoardMonitor,
    read_stats,
)
from towerpack.checkpoint import Checkpoint, load_checkpoint
from towerpack.inputs import InputSource, SplitInput
from towerpack.training.config import TrainConfig
from towerpack.training.distribution.team import Team
from towerpack.training.state.run_dir import RunDir, default_run_dir
from towerpack.training.state.run_state import RunState
from towerpack.training.state.snapshot import find_checkpoint

_LOG = get_logger(__name__)


def callbacks_of(config: TrainConfig, team: Team) -> Callbacks:
    """Those that act in this process, in their order."""
    given, extra = config.callbacks, config.extra_callbacks
    own = [given] if isinstance(given, Callbacks) else list(given)
    usual = [CheckNumerics(), ProgressBar()] if extra is None else list(extra)
    everywhere = Callbacks([*own, *usual]).callbacks
    return Callbacks([c for c in everywhere if team.is_chief or not c.chief_only])


def steps_of_one_pass(source: InputSource, replicas: int) -> int:
    """Steps that one pass over the data makes.

    Raises:
        ConfigError: Their length is not known, or does not make a step.
    """
    try:
        steps = len(source) // (1 if isinstance(source, SplitInput) else replicas)
    except TypeError:
        raise ConfigError(
            "How long is an epoch? The data have no known length.",
            expected="steps_per_epoch=, or data with len()",
            fix="TrainConfig(steps_per_epoch=1000, …)",
        ) from None
    if steps < 1:
        raise ConfigError(
            "One pass over the data does not make a single step.",
            got=f"{len(source)} batches for {replicas} replica(s)",
            fix="a smaller batch size, or BatchData(…, remainder=True)",
        )
    return steps


def open_run(
    config: TrainConfig, state: RunState, team: Team, stack: ExitStack
) -> tuple[RunDir, Checkpoint | None, int]:
    """The run's directory, the checkpoint that it goes on from, and its seed: as the chief finds.

    Other processes keep their logs and what is told of their data in a directory inside of it.

    Args:
        config: What to train.
        state: Takes the chief's length of an epoch.
        team: The processes of the run.
        stack: Closes the directory.
    """
    directory: RunDir
    checkpoint: Checkpoint | None = None
    if team.is_chief:
        on_existing = config.on_existing or ("resume" if config.resume == "auto" else "new")
        if on_existing == "delete":
            refuse_to_delete_sources(config)
        directory = stack.enter_context(RunDir(config.run_dir, on_existing=on_existing))
        _LOG.info(
            "The run is in %s: %d epochs of %d steps.",
            directory.path, state.max_epoch, state.steps_per_epoch,
        )  # fmt: skip
        checkpoint = find_checkpoint(directory.path, config.resume)
        if checkpoint is None and config.resume == "auto":
            warn_of_lost_steps(directory)
        where = None if checkpoint is None else str(checkpoint.path)
        seed = choose_seed(config.seed, directory, checkpoint)
        team.tell([str(directory.path), where, seed, state.steps_per_epoch])
    else:
        run_dir, where, seed, state.steps_per_epoch = team.tell(None)
        directory = stack.enter_context(RunDir(Path(run_dir) / f"worker-{team.index}"))
        checkpoint = None if where is None else load_checkpoint(where)
    directory.record_start(
        seed=seed,
        config={f.name: getattr(config, f.name) for f in dataclasses.fields(config)},
        resumed_at=None if checkpoint is None else checkpoint.step,
    )
    return directory, checkpoint, seed


def refuse_to_delete_sources(config: TrainConfig) -> None:
    """Refuse to empty a run directory that the new run is to start from.

    Raises:
        ConfigError: `init` or `resume` lies in it.
    """
    doomed = (default_run_dir() if config.run_dir is None else Path(config.run_dir)).resolve()
    sources = [] if config.init is None else config.init.paths()
    if config.resume not in ("auto", "never"):
        sources.append(Path(config.resume))
    for source in sources:
        if source.resolve().is_relative_to(doomed):
            raise ConfigError(
                f"on_existing='delete' would delete {source} before the run starts from it.",
                fix="on_existing='new' takes another directory beside it",
            )


def choose_seed(given: int | None, directory: RunDir, checkpoint: Checkpoint | None) -> int:
    """The seed that was given, or else that of the run; a new one for a new run."""
    if given is not None:
        return given
    if checkpoint is not None:
        return int(checkpoint.state["seed"])
    recorded = directory.recorded().get("seed")
    if isinstance(recorded, int):
        return recorded
    seed = fresh_seed()
    _LOG.info("seed=%d (drawn, since none was given)", seed)
    return seed


def warn_of_lost_steps(directory: RunDir) -> None:
    """Tell that a run begins anew though an earlier start got somewhere."""
    records = read_stats(directory.stats) if directory.stats.exists() else []
    if records:
        _LOG.warning(
            "An earlier start in %s came to step %d, but there is no checkpoint of it (was there a "
            "ModelSaver? were checkpoints deleted?): this one begins at step 0.",
            directory.path,
            records[-1].step,
        )


def monitors_of(config: TrainConfig, directory: RunDir) -> list[Any]:
    """Those that are asked for, or the usual; `stats.jsonl` always, unless none at all is."""
    given, stats = config.monitors, JSONLMonitor(directory.stats)
    if given is None:
        given = [stats, ConsoleMonitor(exclude=["^time/"]), TensorBoardMonitor(directory.events)]
    given = [given] if isinstance(given, Monitor) else list(given)
    remembers = not given or any(isinstance(monitor, JSONLMonitor) for monitor in given)
    return given if remembers else [stats, *given]
