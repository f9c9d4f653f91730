"""How a parallel stage is to work."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Literal, cast

from towerpack._core.errors import ConfigError
from towerpack.dataflow._arguments import integer_of

Backend = Literal["process", "thread"]
OnWorkerDeath = Literal["raise", "restart"]
Start = Literal["fresh", "fork"]


@dataclass(frozen=True)
class Options:
    """What all parallel stages can be told; see `PrefetchData` for the meaning."""

    workers: int
    backend: Backend | None = None
    prefetch: int | None = None
    ordered: bool = True
    on_worker_death: OnWorkerDeath = "raise"
    max_restarts: int = 100
    stall_s: float = 60.0
    copy: bool = False
    start: Start = "fresh"

    def __post_init__(self) -> None:
        self._one_of("backend", self.backend or "process", ("process", "thread"))
        self._one_of("on_worker_death", self.on_worker_death, ("raise", "restart"))
        self._one_of("start", self.start, ("fresh", "fork"))
        self._at_least("num_proc", self.workers, 0)
        self._at_least("num_prefetch", 1 if self.prefetch is None else self.prefetch, 1)
        self._at_least("max_restarts", self.max_restarts, 0)
        if not isinstance(cast("object", self.stall_s), Real) or not self.stall_s > 0:
            raise ConfigError(
                f"stall_s={self.stall_s!r} is no time to wait.", expected="seconds, above 0"
            )

    def with_workers(self, count: int, *, gathering: bool) -> Options:
        """The same with another number of workers, and a backend.

        Args:
            count: How many.
            gathering: They only move rows of arrays. Threads are then as parallel as processes are,
                start at once, and take from the consumer's GIL no more than messages would.
        """
        own = self.start == "fresh" and self.on_worker_death == "raise"
        backend = self.backend or ("thread" if gathering and own else "process")
        return replace(self, workers=count, backend=backend)

    def _one_of(self, name: str, value: str, allowed: tuple[str, ...]) -> None:
        if value not in allowed:
            choices = " or ".join(f'"{one}"' for one in allowed)
            raise ConfigError(f"There is no {name}={value!r}.", expected=choices)

    def _at_least(self, name: str, value: int, least: int) -> None:
        if integer_of(value, name) < least:
            raise ConfigError(f"{name}={value} makes no sense.", expected=f"{least} or more")


def usable_cpus() -> int:
    """CPUs that this process may use: by affinity, and by the quota of its control group."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return max(1, min(count, _quota()))


def _quota() -> int:
    """Whole CPUs that the control group allows, rounded up."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return math.ceil(int(quota) / int(period))
    except (OSError, ValueError):  # no such file, or "max"
        return 1 << 16
