"""Options of parallel stages."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from towerpack._core.errors import ConfigError
from towerpack.dataflow.arguments import integer_of

Backend = Literal["process", "thread"]
OnWorkerDeath = Literal["raise", "restart"]
Start = Literal["fresh", "fork"]


@dataclass(frozen=True)
class Options:
    """What all parallel stages can be told; see `PrefetchData` for the meaning."""

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
            value = getattr(self, name)
            if value not in (None, *get_args(kind)):
                choices = " or ".join(f'"{one}"' for one in get_args(kind))
                raise ConfigError(f"There is no {name}={value!r}.", expected=choices)
        integer_of(self.workers, "num_proc", 0)
        integer_of(1 if self.prefetch is None else self.prefetch, "num_prefetch", 1)
        integer_of(self.max_restarts, "max_restarts", 0)
        if not self.stall_s > 0:
            raise ConfigError(f"stall_s is {self.stall_s}.", expected="seconds, above 0")


def usable_cpus() -> int:
    """CPUs that this process may use: by affinity, and by the quota of its control group."""
    affine = hasattr(os, "sched_getaffinity")
    count = len(os.sched_getaffinity(0)) if affine else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return max(1, min(count, math.ceil(int(quota) / int(period))))
    except (OSError, ValueError):  # no such file, or "max"
        return count
