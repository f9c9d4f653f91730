"""Rewinding of a run to an earlier checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

from towerpack._core.errors import CheckpointError
from towerpack.checkpoint import CheckpointStore, list_checkpoints
from towerpack.training.replay.history import read_history
from towerpack.training.state.run_dir import RunDir


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
    history = read_history(Path(run))
    with RunDir(history.run) as directory:
        rows = [row for row in list_checkpoints(directory.path) if row.valid]
        history.segment_of(step)
        # As for a resumed run, tagged checkpoints come last.
        earlier = [(row.tag is None, row.step) for row in rows if row.step <= step]
        if not earlier:
            raise CheckpointError(
                f"{run} has no valid checkpoint at or before step {step}.",
                got="checkpoints of steps " + ", ".join(f"{row.step:,}" for row in rows),
                fix="pass a later step, or train again with resume='never' and ModelSaver(keep=…)",
            )
        with CheckpointStore(directory.checkpoints) as store:
            return max(earlier)[1], store.abandon_after(step)
