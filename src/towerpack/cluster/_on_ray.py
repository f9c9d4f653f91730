"""Checks and defaults of a job on Ray, before Ray is imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from towerpack._core.errors import ConfigError
from towerpack._core.extras import require


def train(
    program: Sequence[str],
    *,
    workers: int | tuple[int, int] = 1,
    resources: Mapping[str, float] | None = None,
    storage: str | Path = "runs/ray",
    max_restarts: int = 10,
    grace_s: float = 30.0,
    patience_s: float = 600.0,
    resize_every_s: float = 60.0,
) -> int:
    """Run a program with `MultiWorkerTrainer` as workers of a Ray cluster.

    Ray Train places the workers, restarts all of them after a failure, and changes their number
    when machines come and go. Each worker is a process of its own, which finds its task in
    `TF_CONFIG`. A node that Ray drains, a change of the number of workers, and SIGTERM or Ctrl-C to
    this process save the run. The newest metrics and the path of the newest checkpoint are reported
    to Ray.

    The cluster is that of `ray.init()`, if it was called, or of the environment variable
    `RAY_ADDRESS`. Otherwise, Ray starts on this machine. Working directory, run directory and
    `storage` must be on storage that all machines share.

    Args:
        program: Arguments for `python`: `["train.py", "--lr", "0.1"]` or `["-m", "package.train"]`.
        workers: Number of workers, or the smallest and the largest number.
        resources: Resources of each worker in Ray's names, such as `{"CPU": 4, "GPU": 1}`; None
            for one CPU.
        storage: Directory for the logs of the workers, `rank-0.log` and so on, and Ray's files.
        max_restarts: How many times the workers are restarted after a failure. Drained nodes and
            changes of their number do not count.
        grace_s: Time in seconds that a worker has to save before it is killed.
        patience_s: Time in seconds without the smallest number of workers after which the job ends.
        resize_every_s: Time in seconds between two changes of the number of workers.

    Returns:
        0 for success; 143 or 130 after SIGTERM or Ctrl-C to this process or to a worker. The same
        call then continues the run.

    Raises:
        ConfigError: An argument is invalid, or `storage` is not shared.
        MissingExtraError: Ray is not installed.
        PeerError: The workers failed more often than `max_restarts`, or too few could be placed.
    """
    least, most = (workers, workers) if isinstance(workers, int) else workers
    if not 1 <= least <= most:
        raise ConfigError(
            f"workers must be a number from 1 or a pair (smallest, largest), got {workers!r}."
        )
    if not program or (program[0] != "-m" and not Path(program[0]).is_file()):
        raise ConfigError(
            f"The script to launch must be an existing file, got {' '.join(program[:1])!r}.",
            fix="pass SCRIPT.py [ARGUMENTS], or -m MODULE [ARGUMENTS]",
        )
    require("ray.train", extra="ray", needed_for="Training on Ray")
    from towerpack.cluster._ray_job import RayJob  # imports Ray

    return RayJob(
        list(program),
        workers=(least, most),
        resources=dict(resources or {"CPU": 1}),
        storage=Path(storage).absolute(),
        max_restarts=max_restarts,
        grace_s=grace_s,
        patience_s=patience_s,
        resize_every_s=resize_every_s,
    ).run()
