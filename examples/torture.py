"""Kill, stop, starve and spoil the same small training in four libraries, and tell what each does.

    python examples/torture.py                               # Towerpack and Keras
    python examples/torture.py --peers PYTHON                # also PyTorch and Lightning
    python examples/torture.py --only kill --library keras   # one trial of one library
    python examples/torture.py --peers PYTHON --write docs/proof.md

PYTHON is an interpreter with `torch`, `torchdata` and `lightning`. The programs of the libraries
are in `torture/`. Needs Linux, and no special rights.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import datetime
import hashlib
import inspect
import json
import os
import platform
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

PROGRAMS = Path(__file__).with_suffix("")
START_S = 300  # imports and compilation on a busy machine
# What takes longer has failed: an end, a message, the end of orphans.
END_S, REPORT_S, ORPHAN_S = 60, 30, 10


class FailedError(Exception):
    """The library did not pass the trial."""


class NotTriedError(Exception):
    """This machine does not permit the trial."""


@dataclass(frozen=True)
class Library:
    """How a program is started: alone, and as two processes that train together."""

    title: str
    packages: tuple[str, ...]
    alone: Sequence[str]
    pair: Sequence[str]


def libraries(peers: str | None) -> dict[str, Library]:
    """Return the libraries that can be tried."""

    def add(name: str, title: str, packages: str, python: str, *launcher: str) -> None:
        program = str(PROGRAMS / f"by_{name}.py")
        pair = [python, *launcher, program]
        out[name] = Library(title, tuple(packages.split()), [python, program], pair)

    out: dict[str, Library] = {}
    launch = "-m", "towerpack", "launch", "--workers", "2", "--"
    add("towerpack", "Towerpack", "towerpack tensorflow keras", sys.executable, *launch)
    add("keras", "Keras `fit`", "keras tensorflow", sys.executable, *launch)
    if peers:
        torchrun = "-m", "torch.distributed.run", "--nproc-per-node", "2"
        add("pytorch", "PyTorch", "torch torchdata", peers, *torchrun)
        add("lightning", "Lightning", "lightning torch torchdata", peers)
    return out


def until(condition: Callable[[], object], seconds: float) -> bool:
    """Wait for a condition. Return whether it was met in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def processes() -> dict[int, set[int]]:
    """Return the parent and the session of each process that has not ended."""
    out = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, *numbers = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
            if state != "Z":
                out[int(entry.name)] = {int(numbers[0]), int(numbers[2])}
    return out


class Program:
    """A started program, in a directory that may have a run already."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self.folder = folder
        shutil.rmtree(folder / "workers", ignore_errors=True)
        (folder / "workers").mkdir(parents=True)
        env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "2"}
        with open(folder / "out", "w") as out, open(folder / "err", "w") as err:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=err, env=env, start_new_session=True
            )

    def __enter__(self) -> Program:
        return self

    def __exit__(self, *_: object) -> None:
        for pid in self.family():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        until(lambda: not self.family(), 20)

    def workers(self) -> list[int]:
        """Return the data workers that are alive."""
        known = {int(path.name) for path in (self.folder / "workers").iterdir()}
        return sorted(known & set(processes()) - {self.process.pid})

    def family(self) -> list[int]:
        """Return all processes that are alive, orphans included."""
        table, size = processes(), 0
        known = {self.process.pid, *self.workers()}
        while len(known) > size:
            size = len(known)
            known |= {pid for pid, related in table.items() if known & related}
        return [pid for pid in known if pid in table]

    def text(self, name: str) -> str:
        return (self.folder / name).read_text(errors="replace")

    def numbers(self, word: str) -> list[float]:
        """Return the numbers that the program has printed after a word."""
        return [float(n) for n in re.findall(rf"(?:^|\] ){word} (\S+)$", self.text("out"), re.M)]

    def running(self) -> bool:
        return self.process.poll() is None

    def reach(self, lines: int) -> None:
        """Wait until so many steps were printed, each fifth one, or the end came before."""
        reached = lambda: len(self.numbers("step")) >= lines  # noqa: E731
        if not until(lambda: reached() or not self.running(), START_S):
            raise FailedError(f"no progress for {START_S} s")
        if not reached() and self.process.returncode:
            raise FailedError(f"ends before step {5 * lines}: {self.message()}")

    def code(self, seconds: float = START_S) -> int:
        """Return the exit code."""
        if not until(lambda: not self.running(), seconds):
            raise FailedError(f"hangs, with {len(self.family())} processes")
        return self.process.returncode

    def weights(self) -> list[np.ndarray]:
        """Return the final weights."""
        if self.code():
            raise FailedError(f"a start fails: {self.message()}")
        with np.load(self.folder / "weights.npz") as arrays:
            return [arrays[name] for name in arrays.files]

    def message(self) -> str:
        """Return the last error of the output, or its last line."""
        lines = [re.sub(r"[|`<>]", "'", line.strip()) for line in self.text("err").splitlines()]
        errors = [x for x in lines if re.match(r"(\[\w+ ?\d\]:? )?[\w.]*(Error|Exception)\b", x)]
        line = [*filter(None, ["no message", *lines]), *errors][-1]
        line = re.sub(r"\S*/(\S+)|\b(?:\w+\.)+(\w+Error:)", r"\1\2", line)
        return line if len(line) <= 120 else f"{line[:117]}…"


@dataclass
class Lab:
    """A library under trial."""

    library: Library
    folder: Path
    kills: int = 5
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    _reference: tuple[list[np.ndarray], float] | None = None

    def start(self, run: str, *arguments: object, before: Sequence[str] = ()) -> Program:
        """Start or continue a run."""
        command = self.library.pair if "--ranks" in arguments else self.library.alone
        folder = self.folder / run
        return Program([*before, *command, str(folder), *map(str, arguments)], folder)

    def undisturbed(self) -> tuple[list[np.ndarray], float]:
        """Return the weights and the best validation cost of an undisturbed run."""
        if self._reference is None:
            with self.start("undisturbed") as program:
                self._reference = program.weights(), program.numbers("best")[0]
        return self._reference

    def compare(self, weights: list[np.ndarray]) -> str:
        """Return the SHA-256 of weights that equal those of an undisturbed run."""
        expected, _ = self.undisturbed()
        ours, theirs = sha256(weights), sha256(expected)
        if ours != theirs:
            apart = max(abs(a - b).max() for a, b in zip(weights, expected, strict=True))
            raise FailedError(f"other weights: {ours}, not {theirs}; up to {apart:.1e} apart")
        return f"SHA-256 {ours}"


def sha256(weights: list[np.ndarray]) -> str:
    return hashlib.sha256(b"".join(array.tobytes() for array in weights)).hexdigest()[:8]


def kill(lab: Lab) -> str:
    """Kill -9 at random moments.

    The program is killed during its start and after random numbers of steps, and started again.
    It passes if the final weights have the SHA-256 of an undisturbed run.
    """
    killed = 0
    for number in range(lab.kills):
        with lab.start("kill") as program:
            program.reach(lab.rng.randint(1, 8) if number else 0)
            time.sleep(lab.rng.uniform(0, 0.1) if number else lab.rng.uniform(1, 5))
            killed += program.running()
            program.process.kill()
    with lab.start("kill") as program:
        return f"{killed} kills, {lab.compare(program.weights())}"


def dead_worker(lab: Lab) -> str:
    """Kill -9 of a data worker.

    One of two data workers is killed. The program passes if it replaces the worker and ends with
    the weights of an undisturbed run, or ends with an error within 60 s.
    """
    with lab.start("dead") as program:
        program.reach(5)
        os.kill(lab.rng.choice(program.workers()), signal.SIGKILL)
        if program.code(END_S):
            return f"ends: {program.message()}"
        return f"replaced, {lab.compare(program.weights())}"


def stopped_worker(lab: Lab) -> str:
    """SIGSTOP of a data worker.

    One of two data workers is stopped. The program passes if it says so within 30 s, or ends. If it
    still runs, the worker goes on, and the final weights must be those of an undisturbed run.
    """
    with lab.start("stopped") as program:
        program.reach(5)
        before, began = len(program.text("err")), time.monotonic()
        worker = lab.rng.choice(program.workers())
        os.kill(worker, signal.SIGSTOP)
        told = lambda: "worker" in program.text("err")[before:]  # noqa: E731
        if not until(lambda: told() or not program.running(), REPORT_S):
            raise FailedError(f"silent for {REPORT_S} s")
        seconds = time.monotonic() - began
        if program.running():
            os.kill(worker, signal.SIGCONT)
        if program.code():
            return f"ends after {seconds:.0f} s: {program.message()}"
        return f"reported after {seconds:.0f} s, then {lab.compare(program.weights())}"


def small_shm(lab: Lab) -> str:
    """1 MB of /dev/shm.

    Batches have 2 MB, `/dev/shm` has 1 MB (mounted in a namespace of the user's own). The program
    passes if it ends regularly.
    """
    mount = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && exec "$@"'
    inside = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, "sh"]
    if not shutil.which("unshare") or subprocess.run([*inside, "true"], check=False).returncode:
        raise NotTriedError("this machine permits no namespace of one's own")
    with lab.start("shm", "--width", 16384, "--epochs", 2, before=inside) as program:
        if program.code():
            raise FailedError(program.message())
        return "ends regularly"


def memory(lab: Lab) -> str:
    """Memory over epochs.

    There are twenty epochs of 2.6 MB. The memory of all processes (PSS, the median of samples from
    the epochs 5 to 8 and from the last four) may grow by at most 0.5 MB per epoch.
    """
    samples: dict[int, list[int]] = {}

    def measure() -> bool:
        epoch, pss = int(max(program.numbers("step"), default=0)) // 20, 0
        for pid in program.family():
            with contextlib.suppress(OSError, IndexError):
                text = Path(f"/proc/{pid}/smaps_rollup").read_text()
                pss += int(re.findall(r"^Pss: +(\d+)", text, re.M)[0])
        samples.setdefault(epoch // 4, []).append(pss)
        return not program.running()

    with lab.start("memory", "--width", 1024, "--epochs", 20) as program:
        until(measure, 3 * START_S)
        program.weights()
    early, late = np.median(samples[1]) / 1024, np.median(samples[4]) / 1024
    if late - early > 12 * 0.5:
        raise FailedError(f"{early:.0f} MB, then {late:.0f} MB")
    return f"{early:.0f} MB, then {late:.0f} MB"


def orphans(lab: Lab) -> str:
    """Orphans.

    The program is killed with kill -9. It passes if none of its processes is left after 10 s.
    """
    with lab.start("orphans") as program:
        program.reach(5)
        number = len(program.family())
        program.process.kill()
        program.process.wait()
        if not until(lambda: not program.family(), ORPHAN_S):
            raise FailedError(f"{len(program.family())} of {number} processes are left")
        return f"none of {number} processes is left"


def nan(lab: Lab) -> str:
    """NaN in a batch.

    A data worker returns one row of NaN. The program passes if it skips the batch or ends with an
    error, and if a new start on sound data ends with finite weights.
    """
    outcomes = []
    for _ in range(2):
        with lab.start("nan") as program:
            if not outcomes:
                program.reach(5)
                (program.folder / "nan").touch()
            if not outcomes and program.code(END_S):
                outcomes.append(f"ends: {program.message()}")
            elif np.isfinite([array.sum() for array in program.weights()]).all():
                outcomes.append("goes on, with finite weights")
            else:
                raise FailedError("ends with exit code 0 and weights that are NaN")
    return outcomes[0]


def full_disk(lab: Lab) -> str:
    """A full disk during a save.

    Once there is a checkpoint, no file may become longer than half of it. `RLIMIT_FSIZE`, set from
    outside, needs no rights, and fails a write as a full disk does. The program passes if it
    reports the failed save, and if a new start without the limit continues from a checkpoint.
    """
    with lab.start("disk", "--width", 1024) as program:
        program.reach(5)
        files = [path for path in (program.folder / "run").rglob("*") if path.is_file()]
        limit, before = max(path.stat().st_size for path in files) // 2, len(program.text("err"))
        resource.prlimit(program.process.pid, resource.RLIMIT_FSIZE, (limit, limit))
        if program.code() == 0 and "large" not in program.text("err")[before:]:  # EFBIG
            raise FailedError("nothing is reported")
        message = program.message()
    with lab.start("disk", "--width", 1024) as program:
        program.weights()
        if program.numbers("step")[0] <= 5:
            raise FailedError(f"{message} A new start begins at step 0.")
        return f"{message} A new start continues from a checkpoint."


def best(lab: Lab) -> str:
    """The best checkpoint after a restart.

    The validation cost is best in an early epoch. The program is killed in the fifth and started
    again. It passes if the best checkpoint is as good as that of an undisturbed run (within 5 %).
    """
    _, expected = lab.undisturbed()
    with lab.start("best") as program:
        program.reach(18)
        program.process.kill()
    with lab.start("best") as program:
        program.weights()
        verdict = f"cost {program.numbers('best')[0]:.3f}, undisturbed {expected:.3f}"
        if program.numbers("best")[0] > 1.05 * expected:
            raise FailedError(verdict)
        return verdict


def workers(lab: Lab) -> str:
    """0, 1 and 3 data workers.

    Rows get random noise where they are loaded. The program passes if 0, 1 and 3 workers give the
    same final weights.
    """
    hashes = []
    for number in (0, 1, 3):
        with lab.start(f"workers{number}", "--workers", number) as program:
            hashes.append(sha256(program.weights()))
    if len(set(hashes)) > 1:
        raise FailedError(f"SHA-256 {', '.join(hashes)}")
    return f"SHA-256 {hashes[0]}"


def error(lab: Lab, *arguments: object) -> str:
    """An error in one data worker of two.

    One row raises an error in a worker. The program passes if it ends with this error within 60 s.
    """
    with lab.start("rank" if arguments else "error", *arguments) as program:
        program.reach(5)
        (program.folder / "error").touch()
        began = time.monotonic()
        until(lambda: not program.family(), END_S)
        seconds = time.monotonic() - began
        code = program.code(5)
        if code == 0 or "this row is bad" not in program.text("err") + program.text("out"):
            raise FailedError(f"exit code {code}: {program.message()}")
        if program.family():
            raise FailedError(f"{len(program.family())} processes are left")
        return f"ends after {seconds:.0f} s with the error"


def rank(lab: Lab) -> str:
    """An error in one training process of two.

    Two processes train together, and loading a row raises an error in one of them. The program
    passes if all processes end within 60 s, and the error is shown.
    """
    return error(lab, "--workers", 0, "--ranks", 2)


ALL = kill, dead_worker, stopped_worker, small_shm, memory, orphans, nan, full_disk, best, workers
TRIALS = {trial.__name__.replace("_", "-"): trial for trial in (*ALL, error, rank)}
# What the documentation says if the program cannot start.
NOT_OFFERED = {
    ("keras", "rank"): "Keras's guide to distributed training with TensorFlow covers one host",
}


def judge(name: str, trial: str, lab: Lab) -> str:
    """Return the verdict of a trial, in one line."""
    try:
        return f"passed: {TRIALS[trial](lab)}"
    except NotTriedError as reason:
        return f"not tried: {reason}"
    except FailedError as reason:
        if (name, trial) in NOT_OFFERED and "ends before" in str(reason):
            return f"not offered: {NOT_OFFERED[name, trial]}; it {reason}"
        return f"failed: {reason}"


def table(verdicts: dict[str, dict[str, str]], known: dict[str, Library]) -> str:
    """Return the table of verdicts."""
    names = [name for name in known if any(name in row for row in verdicts.values())]
    titles = " | ".join(known[name].title for name in names)
    rows = [f"| trial | {titles} | command |", f"|---|{'---|' * len(names)}---|"]
    for trial, row in verdicts.items():
        title = inspect.getdoc(TRIALS[trial]).partition(".\n")[0]
        cells = " | ".join(row.get(name, "not measured").partition(":")[0] for name in names)
        rows.append(f"| {title} | {cells} | `python examples/torture.py --only {trial}` |")
    return "\n".join(rows)


def page(verdicts: dict[str, dict[str, str]], known: dict[str, Library]) -> str:
    """Return the page of the documentation: `torture/page.md`, filled in."""
    programs, trials = [], []
    for library in known.values():
        path = Path(library.alone[-1])
        settings = " ".join(ast.get_docstring(ast.parse(path.read_text())).split())
        code = "import sys, importlib.metadata as m; print(*map(m.version, sys.argv[1:]))"
        command = [library.alone[0], "-c", code, *library.packages]
        numbers = subprocess.check_output(command, text=True).split()
        versions = ", ".join(map(" ".join, zip(library.packages, numbers, strict=True)))
        link = f"[{path.name}](../examples/torture/{path.name})"
        programs.append(f"| {library.title} | {versions} | {link}: {settings} |")
    for trial, row in verdicts.items():
        title, _, text = inspect.getdoc(TRIALS[trial]).partition(".\n\n")
        results = [f"- **{known[name].title}** {verdict}" for name, verdict in row.items()]
        trials.append("\n".join([f"## {title}", "", text, "", *results]))
    template = (PROGRAMS / "page.md").read_text()
    return template.format(
        table=table(verdicts, known),
        date=datetime.date.today(),
        machine=f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}",
        programs="\n".join(programs),
        trials="\n\n".join(trials),
    )


def main(arguments: list[str] | None = None) -> dict[str, dict[str, str]]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", metavar="PYTHON", help="Interpreter with torch and lightning.")
    parser.add_argument("--only", nargs="+", choices=TRIALS, help="Trials to run (default: all).")
    parser.add_argument("--library", nargs="+", help="Libraries to try (default: all).")
    parser.add_argument("--kills", type=int, default=5, help="Number of kills (default: 5).")
    parser.add_argument("--results", type=Path, help="JSON file of verdicts, to be continued.")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="Page to write.")
    options = parser.parse_args(arguments)
    known = libraries(options.peers)
    verdicts: dict[str, dict[str, str]] = {trial: {} for trial in options.only or TRIALS}
    if options.results and options.results.exists():
        verdicts |= json.loads(options.results.read_text())
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        for name in options.library or known:
            lab = Lab(known[name], Path(folder, name), options.kills)
            for trial, row in verdicts.items():
                if name not in row:
                    row[name] = judge(name, trial, lab)
                    print(f"{trial:15}{name:11}{row[name]}", flush=True)
                    if options.results:
                        options.results.write_text(json.dumps(verdicts, indent=1))
    print("", table(verdicts, known), sep="\n")
    if options.write:
        options.write.write_text(page(verdicts, known))
    return verdicts


if __name__ == "__main__":
    main()
