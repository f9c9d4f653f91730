from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from towerpack._core.errors import ConfigError
from towerpack.dataflow.arguments import check_choice, integer_of

Backend = Literal["process", "thread"]
OnWorkerDeath = Literal["raise", "restart"]
Start = Literal["fresh", "fork"]


@dataclass(frozen=True)
class Options:
    """Arguments that all parallel stages share; see `PrefetchData`."""

    workers: int
    prefetch: int | None = None
    ordered: bool = True
    backend: Backend | None = None
    on_worker_death: OnWorkerDeath = "raise"
    max_restarts: int = 100
    stall_s: float = 60.0
    copy: bool = False
    start: Start = "fresh"

    def __post_init__(self) -> None:
        kinds = {"backend": Backend, "on_worker_death": OnWorkerDeath, "start": Start}
        for name, kind in kinds.items():
            if getattr(self, name) is not None:
                check_choice(getattr(self, name), name, get_args(kind))
        integer_of(self.workers, "num_proc", 0)
        integer_of(1 if self.prefetch is None else self.prefetch, "num_prefetch", 1)
        integer_of(self.max_restarts, "max_restarts", 0)
        if not self.stall_s > 0:
            raise ConfigError(f"stall_s must be positive, got {self.stall_s}.")


def usable_cpus() -> int:
    """Return the number of CPUs that this process may use, by affinity and control group."""
    affine = hasattr(os, "sched_getaffinity")
    count = len(os.sched_getaffinity(0)) if affine else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(count, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or "max"
        return count
