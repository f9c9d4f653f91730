"""What a start of a run has to find out before anything is built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack._core.randomness import fresh_seed
from towerpack.callbacks.monitors import (
    ConsoleMonitor,
    JSONLMonitor,
    TensorBoardMonitor,
    read_stats,
)
from towerpack.checkpoint import Checkpoint
from towerpack.inputs import InputSource
from towerpack.training._config import TrainConfig
from towerpack.training._run_dir import RunDir, default_run_dir

_LOG = get_logger(__name__)


def steps_of_one_pass(source: InputSource, replicas: int) -> int:
    """Steps that one pass over the data makes.

    Raises:
        ConfigError: Their length is not known, or does not make a step.
    """
    try:
        steps = len(source) // replicas
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


def usual_monitors(directory: RunDir) -> list[Any]:
    """Monitors of a run that asks for none."""
    return [
        JSONLMonitor(directory.stats),
        ConsoleMonitor(exclude=["^time/"]),
        TensorBoardMonitor(directory.events),
    ]
