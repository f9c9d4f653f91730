"""Tasks of a SLURM step, read from environment variables."""

import re
from collections.abc import Mapping

from towerpack._core.errors import ConfigError

_FIRST_PORT = 12_000
_NUM_PORTS = 16_000  # Below the ports of outgoing connections


def slurm_tasks(environment: Mapping[str, str]) -> tuple[list[str], int] | None:
    """Return the addresses of all tasks of this SLURM step, and the index of this task.

    The result is None outside a step. The shell of a batch script has the job's variables, but is
    not a step. Ports depend on the numbers of job and step.
    """
    listed = environment.get("SLURM_STEP_NODELIST")
    number = environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS")
    if listed is None or number is None or "SLURM_PROCID" not in environment:
        return None
    nodes, rank = expand_nodes(listed), int(environment["SLURM_PROCID"])
    counts = _counts(
        environment.get("SLURM_STEP_TASKS_PER_NODE")
        or environment.get("SLURM_NTASKS_PER_NODE")
        or str(-(-int(number) // len(nodes)))
    )
    counts += counts[-1:] * (len(nodes) - len(counts))
    job, step = (int(environment.get(f"SLURM_{name}_ID", 0)) for name in ("JOB", "STEP"))
    port = _FIRST_PORT + (job * 61 + step * 251) % _NUM_PORTS
    tasks = [
        (node, port + i) for node, count in zip(nodes, counts, strict=False) for i in range(count)
    ][: int(number)]
    here = environment.get("SLURMD_NODENAME", tasks[rank][0])
    if tasks[rank][0] != here:
        raise ConfigError(
            f"Task {rank} of this SLURM step must run on {tasks[rank][0]}, but runs on {here}. "
            "Tasks must be numbered node by node.",
            fix="run srun --distribution=block",
        )
    return [f"{node}:{port}" for node, port in tasks], rank


def expand_nodes(text: str) -> list[str]:
    """Return the host names in a SLURM node list: `n[01-02,7],login` gives n01, n02, n7, login."""
    parts = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text)
    return [name for part in parts for name in _expand(part)]


def _expand(part: str) -> list[str]:
    before, _, rest = part.partition("[")
    inside, _, after = rest.partition("]")
    if not inside:
        return [part]
    numbers: list[str] = []
    for item in inside.split(","):
        low, _, high = item.partition("-")
        numbers += [f"{n:0{len(low)}}" for n in range(int(low), int(high or low) + 1)]
    return [before + number + end for number in numbers for end in _expand(after)]


def _counts(text: str) -> list[int]:
    """Return the number of tasks of each node from SLURM's notation: `2(x3),1` gives 2, 2, 2, 1."""
    pairs = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(count) for count, times in pairs for _ in range(int(times or 1))]
