"""Measuring programs against each other fairly, on a machine that others use too.

Each contender is a process of its own, started by `Contender`, that computes only between "go" and
its answer; the others are stopped, with all of their processes. `alternate` lets them take turns,
so that a slow minute of the machine hits all alike, and what is compared are ratios within one turn
of all.

The child holds a `Gate` and calls `epoch_done` after each of its epochs.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import resource
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Turn:
    """What one contender did between "go" and its answer.

    Attributes:
        steps: Training steps.
        seconds: Of wall time.
        cpu_s: User and system time of the whole process, all threads and worker processes included.
            What runs in the background after the end of a turn counts for the next one.
        loss: As the contender reports it; for a look at whether it trains.
    """

    steps: int
    seconds: float
    cpu_s: float
    loss: float

    @property
    def rate(self) -> float:
        """Steps per second."""
        return self.steps / self.seconds

    @property
    def cpu_us(self) -> float:
        """CPU time per step in µs."""
        return self.cpu_s / self.steps * 1e6


# ---------------------------------------------------------------------------- in the child


class Gate:
    """Blocks the contender between turns. Takes over standard output, and drops what is printed.

    Args:
        steps: Steps in an epoch.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._answers = os.fdopen(os.dup(1), "w")
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        self._asked = self._left = 0
        self._cpu_s = _cpu_s()
        self._began = 0.0

    def open(self) -> bool:
        """Wait for the first turn."""
        return self._wait()

    def epoch_done(self, loss: Callable[[], float]) -> bool:
        """Answer and wait if this was the last epoch of the turn. False: no more turns.

        Args:
            loss: Asked once for each turn, after the time has been taken.
        """
        self._left -= 1
        if self._left:
            return True
        seconds = time.perf_counter() - self._began
        cpu_s = _cpu_s()
        steps = self._asked * self._steps
        turn = Turn(steps, seconds, cpu_s - self._cpu_s, float(loss()))
        self._cpu_s = cpu_s
        print(json.dumps(asdict(turn)), file=self._answers, flush=True)
        return self._wait()

    def _wait(self) -> bool:
        line = sys.stdin.readline()
        if not line.strip():
            return False
        self._asked = self._left = int(line)
        self._began = time.perf_counter()
        return True


def _cpu_s() -> float:
    """User and system time of this process and of all that descend from it."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used) + sum(map(cpu_of, descendants(os.getpid())))


def descendants(pid: int) -> list[int]:
    """All living processes that descend from one; where there is no /proc, none are found."""
    children: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        fields = _stat(path)
        if fields:
            children.setdefault(int(fields[1]), []).append(int(path.parent.name))
    found, todo = [], [pid]
    while todo:
        own = children.get(todo.pop(), [])
        found += own
        todo += own
    return found


def cpu_of(pid: int) -> float:
    """User and system time of a process and of its children that have ended."""
    fields = _stat(Path(f"/proc/{pid}/stat"))
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def _stat(path: Path) -> list[str]:
    """The fields of a process after its name, which may hold anything."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return []


# ---------------------------------------------------------------------------- in the parent


class Contender:
    """A process that takes turns.

    Args:
        name: For tables.
        command: Starts it.
        stop: Stop its processes between turns. Those of a cluster would be taken for dead.
    """

    def __init__(self, name: str, command: Sequence[str], *, stop: bool = True) -> None:
        self.name = name
        self._stop = stop
        self.epochs = 1
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in close()
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2", "KERAS_BACKEND": "tensorflow"}
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
            start_new_session=True,
        )

    def turn(self) -> Turn:
        """Let it run its epochs; between turns it and its workers are stopped.

        Workers would otherwise fill their queues in the turns of the others.
        """
        os.killpg(self._process.pid, signal.SIGCONT)
        try:
            return self._turn()
        finally:
            if self._stop:
                os.killpg(self._process.pid, signal.SIGSTOP)

    def _turn(self) -> Turn:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(f"{self.epochs}\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self._log.seek(0)
            raise RuntimeError(f"{self.name} failed:\n{self._log.read()[-4000:]}")
        return Turn(**json.loads(answer))

    def close(self) -> None:
        """End it, and its workers."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()


def alternate(
    commands: Mapping[str, Sequence[str]], *, rounds: int, seconds: float, stop: bool = True
) -> dict[str, list[Turn]]:
    """Let contenders take turns.

    Args:
        commands: Start the contenders, by name.
        rounds: Turns for each that count. One more at the start does not: it compiles, and then a
            second one tells how many epochs make up a turn.
        seconds: How long a turn should be, at least; 0 for one epoch.
        stop: As for `Contender`.
    """
    contenders: list[Contender] = []
    try:
        for name, command in commands.items():
            contender = Contender(name, command, stop=stop)
            contenders.append(contender)
            contender.turn()
            if seconds:
                contender.epochs = max(1, math.ceil(seconds / contender.turn().seconds))
        turns: dict[str, list[Turn]] = {name: [] for name in commands}
        for round_ in range(rounds):
            first = round_ % len(contenders)
            for contender in contenders[first:] + contenders[:first]:
                turns[contender.name].append(contender.turn())
        return turns
    finally:
        for contender in contenders:
            contender.close()


@dataclass(frozen=True)
class Ratio:
    """Ratios within rounds: their median and range."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


def paired(turns: Sequence[Turn], base: Sequence[Turn], value: Callable[[Turn], float]) -> Ratio:
    """`value` of each turn over that of the same round of `base`."""
    ratios = [value(a) / value(b) for a, b in zip(turns, base, strict=True)]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios))


def median(turns: Sequence[Turn], value: Callable[[Turn], float]) -> float:
    """The median of `value`."""
    return statistics.median(value(turn) for turn in turns)


def digits(value: float) -> str:
    """A positive number with three digits or all before the point."""
    return f"{value:,.{max(0, 2 - math.floor(math.log10(value)))}f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Markdown; the first column is text, the others are numbers."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, rule, *rows])


def circumstances(packages: Sequence[str]) -> dict[str, Any]:
    """When, on what and with what something was measured."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: _version(name) for name in packages},
        "commit": _commit(),
    }


class PartsReport:
    """The report of a benchmark whose parts may be measured one by one: `NAME.json`, `NAME.md`.

    Args:
        script: File name of the benchmark.
        folder: Where the report lies; parts that it has stay until they are measured anew.
        head: Its first paragraphs.
        parts: Names of all parts, in order.
    """

    def __init__(
        self, script: str, folder: Path, head: Sequence[str], parts: Iterable[str]
    ) -> None:
        self._script, self._head, self._parts = script, head, list(parts)
        self._file = folder / Path(script).with_suffix(".json")
        self._found = json.loads(self._file.read_text()) if self._file.exists() else {}

    def add(
        self, part: str, turns: Mapping[str, Sequence[Turn]], text: str, about: Mapping[str, Any]
    ) -> None:
        """Print a part's text, and write the report with it; `about` are its circumstances."""
        self._found[part] = {
            "command": shlex.join(["python", f"benchmarks/{self._script}", *sys.argv[1:]]),
            "circumstances": about,
            "turns": {name: [asdict(turn) for turn in own] for name, own in turns.items()},
            "text": text,
        }
        print(text, flush=True)
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(self._found, indent=1) + "\n")
        lines = [*self._head]
        for name in self._parts:
            if name in self._found:
                own = self._found[name]
                lines += [own["text"], f"`{own['command']}`, {described(own['circumstances'])}"]
        self._file.with_suffix(".md").write_text("\n\n".join(lines) + "\n")


def result_rows(
    turns: Mapping[str, Sequence[Turn]],
    titles: Mapping[str, str],
    values: Sequence[Callable[[Turn], float]],
) -> list[list[str]]:
    """A row for each contender: its title, medians of the values, and its last result."""
    return [
        [
            title,
            *(digits(median(turns[name], value)) for value in values),
            f"{turns[name][-1].loss:,.6g}",
        ]
        for name, title in titles.items()
    ]


def described(found: dict[str, Any]) -> str:
    """`circumstances` in words."""
    load = " / ".join(f"{x:.1f}" for x in found["load_average"])
    load = f"; load average {load}" if load else ""
    versions = [
        f"{name} {value}"
        for name, value in found.items()
        if name not in ("date", "processor", "cores", "load_average", "system", "commit")
    ]
    return (
        f"{found['date']}, commit {found['commit']}. {found['processor']}, {found['cores']} cores, "
        f"{found['system']}{load}. {', '.join(versions)}."
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or "unknown processor"
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown processor"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "-"


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return "unknown"
    return done.stdout.strip() or "unknown"
