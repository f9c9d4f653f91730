"""What this process may use of the machine: affinity and control groups included."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/")


def cpus_by_affinity() -> int:
    """How many CPUs the scheduler may put this process on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_quota(root: Path = _ROOT) -> float | None:
    """How many CPUs' worth of time the control group grants; None for no limit."""
    found: list[float] = []
    for group in _groups(root, "cpu"):
        match _words(group / "cpu.max"):
            case [quota, period] if quota != "max":
                found.append(float(quota) / float(period))
            case _:
                pass
        quota, period = _words(group / "cpu.cfs_quota_us"), _words(group / "cpu.cfs_period_us")
        if quota and period and float(quota[0]) > 0:
            found.append(float(quota[0]) / float(period[0]))
    return min(found, default=None)


def memory_limit(root: Path = _ROOT) -> int | None:
    """Bytes that the control group grants; None for no limit."""
    found: list[int] = []
    for group in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            words = _words(group / name)
            # Version 1 writes "no limit" as a number near 2**63.
            if words and words[0] != "max" and int(words[0]) < 2**60:
                found.append(int(words[0]))
    return min(found, default=None)


def memory(root: Path = _ROOT) -> tuple[int, int | None]:
    """Bytes of memory in the machine, and of them available (None where unknown)."""
    try:
        rows = (root / "proc" / "meminfo").read_text().splitlines()
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), None
    found = {row.split(":")[0]: int(row.split()[1]) * 1024 for row in rows if " kB" in row}
    return found["MemTotal"], found.get("MemAvailable")


def size_text(nbytes: float) -> str:
    """`12.3 MB`: three digits and a decimal unit."""
    if nbytes < 1000:
        return f"{nbytes:.0f} B"
    power = min(int(math.log10(nbytes) / 3), 5)
    number = nbytes / 1000**power
    if number >= 999.5 and power < 5:
        number, power = number / 1000, power + 1
    return f"{number:.3g} {' kMGTP'[power]}B"


def _groups(root: Path, controller: str) -> Iterator[Path]:
    """The process's control groups, the innermost first; each may set a limit."""
    try:
        rows = (root / "proc" / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for row in rows:
        _, controllers, path = row.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys" / "fs" / "cgroup" / (controller if controllers else "")
        group = base / path.strip("/")
        while True:
            yield group
            if group == base:
                break
            group = group.parent


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
