"""Rewinding of a run to an earlier checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

from towerpack._core.errors import CheckpointError, ConfigError
from towerpack.checkpoint import CheckpointStore, list_checkpoints
from towerpack.training.state.ledger import read_ledger
from towerpack.training.state.run_dir import RunDir, read_record


def rewind(run: str | os.PathLike[str], step: int) -> tuple[int, list[Path]]:
    """Make a run continue from its newest checkpoint at or before a step.

    Later checkpoints are renamed to `abandoned-…`, newest first. If that is interrupted, the run
    continues from the newest one that is left, and the call can be repeated.

    Args:
        run: Run directory that no process uses.
        step: Global step.

    Returns:
        Step of the checkpoint, and new paths of the later ones.

    Raises:
        CheckpointError: The run has no valid checkpoint at or before the step.
        ConfigError: The directory is not a run or is in use, or the step never ran.
    """
    run = Path(run)
    if not read_record(run):
        raise ConfigError(f"{run} is not a run directory.", fix="pass the run_dir of a training")
    with RunDir(run) as directory:
        rows = list_checkpoints(run)
        lives = read_ledger(directory.ledger) if directory.ledger.exists() else []
        last = max([row.step for row in rows] + [life.to_step for life in lives], default=0)
        if not 0 <= step <= last:
            raise ConfigError(
                f"Step {step} of {run} never ran.", expected=f"a step from 0 to {last}"
            )
        # As for a resumed run, tagged checkpoints come last.
        valid = [row for row in rows if row.valid and row.step <= step]
        if not valid:
            steps = ", ".join(f"{row.step:,}" for row in rows if row.valid)
            raise CheckpointError(
                f"{run} has no valid checkpoint at or before step {step}.",
                got=f"checkpoints of steps {steps}" if steps else "no valid checkpoint",
                fix="pass a later step, or train again with resume='never' and ModelSaver(keep=…)",
            )
        with CheckpointStore(directory.checkpoints) as store:
            moved = store.abandon_after(step)
        return max(valid, key=lambda row: (row.tag is None, row.step)).step, moved
