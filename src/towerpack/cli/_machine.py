"""CPUs and memory that this process may use, considering affinity and control groups."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_ROOT: Final = Path("/")


def cpus_by_affinity() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def cpu_quota(root: Path = _ROOT) -> float | None:
    """Return the CPU quota of the control group, as a number of CPUs; None without a quota."""
    quotas: list[float] = []
    for group in _groups(root, "cpu"):
        # Version 2 has one file, version 1 has two.
        words = _words(group / "cpu.max")
        words = words or [*_words(group / "cpu.cfs_quota_us"), *_words(group / "cpu.cfs_period_us")]
        if len(words) == 2 and words[0] != "max" and float(words[0]) > 0:
            quotas.append(float(words[0]) / float(words[1]))
    return min(quotas, default=None)


def memory_limit(root: Path = _ROOT) -> int | None:
    """Return the memory limit of the control group in bytes; None without a limit."""
    limits: list[int] = []
    for group in _groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            words = _words(group / name)
            # Version 1 writes "no limit" as a number near 2**63.
            if words and words[0] != "max" and int(words[0]) < 2**60:
                limits.append(int(words[0]))
    return min(limits, default=None)


def memory(root: Path = _ROOT) -> tuple[int, int | None]:
    """Return total and available memory in bytes. Available memory is None if unknown."""
    try:
        rows = (root / "proc" / "meminfo").read_text().splitlines()
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), None
    sizes = {row.split(":")[0]: int(row.split()[1]) * 1024 for row in rows if " kB" in row}
    return sizes["MemTotal"], sizes.get("MemAvailable")


def size_text(nbytes: float) -> str:
    """Format a size in bytes with three digits and a decimal unit, such as `12.3 MB`."""
    if nbytes < 1000:
        return f"{nbytes:.0f} B"
    power = min(int(math.log10(nbytes) / 3), 5)
    number = nbytes / 1000**power
    if number >= 999.5 and power < 5:
        number, power = number / 1000, power + 1
    return f"{number:.3g} {' kMGTP'[power]}B"


def _groups(root: Path, controller: str) -> Iterator[Path]:
    try:
        rows = (root / "proc" / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for row in rows:
        _, controllers, path = row.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        base = root / "sys" / "fs" / "cgroup" / (controller if controllers else "")
        group = Path(path.strip("/"))
        yield from (base / each for each in (group, *group.parents))


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []
