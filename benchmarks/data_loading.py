"""How fast data come out of loaders: Towerpack, and the best of the others.

    python benchmarks/data_loading.py [--quick] [--only WORKLOAD ...] [--data DIR] [--peers DIR]

The report keeps of earlier runs what a run with --only leaves out.

Every contender is a process of its own, with two workers where it can have any; they take turns, an
epoch each, and what counts are ratios within a round. All Python contenders call the same function
of an item, and the sum of all that they load must be the same. With photographs Towerpack takes
part a second time, with its own function for crops; its pixels must be the same, too.

The peers are installed from the package index into an environment under DIR (about 4 GB with
PyTorch's default build; install a CPU build there first to avoid that). The data are made of
photographs that scikit-image and scikit-learn bring, re-encoded and varied.

The *ceiling* is twice what one process reaches that writes every item in place.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import _measure as measure
from _measure import Turn

HERE = Path(__file__).parent
REPORTS = HERE / "reports"
PACKAGES = [
    "numpy",
    "opencv-python-headless",
    "simplejpeg",
    "torch",
    "torchdata",
    "grain",
    "spdl",
    "tensorflow",
    "tensorpack",
]

TITLES = {
    "serial": "one process, in place, by hand",
    "numpy": "NumPy by hand, vectorised",
    "towerpack": "**Towerpack**",
    "towerpack-part": "**Towerpack**, its own function",
    "towerpack-threads": "**Towerpack**, threads",
    "towerpack-processes": "**Towerpack**, processes",
    "torch": "PyTorch `DataLoader`",
    "torch-batched": "PyTorch, `__getitems__`, no collation",
    "torchdata-threads": "torchdata nodes, threads, a batch a task",
    "grain": "Grain",
    "grain-threads": "Grain, threads",
    "grain-processes": "Grain, `mp_prefetch`",
    "spdl-threads": "SPDL, threads, a batch a task",
    "tf-data": "tf.data",
    "tensorpack": "Tensorpack 0.11",
    "tensorpack-runner": "Tensorpack 0.11, `MultiProcessRunnerZMQ`",
}
WORKLOADS = {
    "photos": "JPEG 500×375 → random resized crop 224, flip; batch 64",
    "mapped": "uint8 224×224×3 from a memory map, nothing else; batch 64",
    "memory": "CIFAR-sized in memory: shuffle, flip, float32, batch 128; no workers",
    "tiny": "1 kB records through a Python function; batch 256",
    "holding": "1 ms of pure Python (holds the GIL); batch 32",
}
MORE = ("cold", "pss", "lmdb")
# How many rounds: the turns of some take a second in all, and single ones differ by half here.
ROUNDS = {"photos": 9, "mapped": 15, "memory": 25, "tiny": 5, "holding": 15, "cold": 5}
# Random, of their own kind (tf.data's operations on photographs), or not exactly one epoch.
OTHER_SUMS = {("photos", "tf-data"), *((name, "tensorpack-runner") for name in WORKLOADS)}
BEST = "the best peer"


@dataclass(frozen=True)
class Aim:
    """What was hoped for, and what came out."""

    text: str
    found: str
    met: bool


def rate(turn: Turn) -> float:
    """Items per second."""
    return turn.rate


def aims(workload: str, turns: dict[str, list[Turn]]) -> list[Aim]:
    """The aims for a workload."""

    def against(name: str, factor: float, scale: float = 1.0, ours: str = "towerpack") -> Aim:
        ratio = measure.paired(turns[ours], turns[name], rate)
        title = "2 × serial" if scale != 1 else TITLES[name]
        by = "" if ours == "towerpack" else " by its own function"
        shown = measure.Ratio(ratio.median / scale, ratio.low / scale, ratio.high / scale)
        return Aim(f"≥ {factor:g} × {title}{by}", str(shown), shown.median >= factor)

    ceiling, hand = ("serial", 2.0), "numpy"
    peers = [n for n in turns if n not in ("serial", hand) and not n.startswith("towerpack")]
    found = []
    if workload in ("photos", "holding"):
        found.append(against(ceiling[0], 0.93 if workload == "photos" else 0.9, ceiling[1]))
    if workload == "memory":
        found.append(against(hand, 0.8))
    if peers:
        best = max(peers, key=lambda name: measure.median(turns[name], rate))
        found.append(against(best, 1.8 if workload == "memory" else 1.0))
    if "torch" in turns and workload == "mapped":
        found.append(against("torch", 10.0))
    if "torch" in turns and workload == "photos":
        found += [against("torch", 1.25, ours=ours) for ours in ("towerpack", "towerpack-part")]
    return found


def results(turns: dict[str, list[Turn]]) -> str:
    """A table."""
    base = turns.get("serial") or turns["numpy"]
    share = 2.0 if "serial" in turns else 1.0
    rows = []
    for name, own in sorted(turns.items(), key=lambda item: -measure.median(item[1], rate)):
        ratio = measure.paired(own, base, rate)
        ours = measure.paired(turns["towerpack"], own, rate)
        rows.append(
            [
                TITLES[name],
                measure.digits(measure.median(own, rate)),
                f"{ratio.median / share:.2f}",
                str(ours),
                measure.digits(measure.median(own, lambda turn: turn.cpu_us)),
            ]
        )
    of = "÷ ceiling" if share == 2 else "÷ by hand"
    return measure.table(["", "items/s", of, "Towerpack ÷ it", "CPU µs/item"], rows)


def check_sums(workload: str, first: dict[str, Turn]) -> None:
    """All contenders must have loaded the same."""
    sums = {n: t.loss for n, t in first.items() if (workload, n) not in OTHER_SUMS}
    if len(set(sums.values())) > 1:
        raise SystemExit(f"{workload}: the contenders loaded different data: {sums}")


def alternate(
    workload: str, names: list[str], python: str, data: Path, *, rounds: int, quick: bool
) -> dict[str, list[Turn]]:
    """Let the contenders of a workload take turns; the first turn of each is for the sums."""
    script = str(HERE / "_loading_contenders.py")
    options = ["--quick"] if quick else []
    running: dict[str, measure.Contender] = {}
    try:
        first: dict[str, Turn] = {}
        for name in names:
            command = [python, script, workload, name, str(data), *options]
            running[name] = measure.Contender(name, command)
            first[name] = running[name].turn()
        check_sums(workload, first)
        turns: dict[str, list[Turn]] = {name: [] for name in names}
        for round_ in range(rounds):
            at = round_ % len(names)
            for name in names[at:] + names[:at]:
                turns[name].append(running[name].turn())
        return turns
    finally:
        for contender in running.values():
            contender.close()


def cold(python: str, data: Path, names: list[str], rounds: int) -> dict[str, list[float]]:
    """Seconds from the start of an interpreter to the first batch of photographs."""
    script = str(HERE / "_loading_contenders.py")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(rounds):
        for name in names:
            command = [python, script, "photos", name, str(data), "--first"]
            start = time.perf_counter()
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            ) as process:
                assert process.stdout is not None
                if not process.stdout.readline().strip():
                    raise SystemExit(f"{name} gave no first batch")
                seconds[name].append(time.perf_counter() - start)
    return seconds


def cold_report(seconds: dict[str, list[float]]) -> tuple[str, list[Aim]]:
    """A table and the aim."""
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ranked = sorted(medians, key=medians.__getitem__)
    rows = [[TITLES[name], f"{medians[name]:.2f}"] for name in ranked]
    aims = []
    if "torch" in medians:
        ratio = medians["towerpack"] / medians["torch"]
        aims.append(Aim("before PyTorch", f"{ratio:.2f} of its time", ratio < 1))
    return measure.table(["", "s to the first batch"], rows), aims


def special(python: str, *arguments: str) -> dict[str, Any]:
    """Run a part of `_loading_special.py`."""
    command = [python, str(HERE / "_loading_special.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"{arguments} failed:\n{done.stderr[-3000:]}")
    return json.loads(lines[-1])


def memory_report(found: dict[str, dict[str, Any]]) -> tuple[str, list[Aim]]:
    """A table and the aims."""
    rows = []
    for name, values in found.items():
        epochs = values["epochs_mb"]
        share = max(epochs) / values["data_mb"]
        rows.append([TITLES[name], f"{epochs[0]:,}", f"{epochs[-1]:,}", f"{share:.2f}"])
    ours = found["towerpack"]
    epochs = ours["epochs_mb"]
    share = max(epochs) / ours["data_mb"]
    growth = epochs[-1] / epochs[1]
    aims = [
        Aim("≤ 1.15 × the data", f"{share:.2f}", share <= 1.15),
        Aim("flat from epoch 2 to 5", f"× {growth:.3f}", growth <= 1.01),
    ]
    return measure.table(["", "MB, epoch 1", "epoch 5", "÷ data"], rows), aims


def lmdb_report(found: dict[str, Any]) -> tuple[str, list[Aim]]:
    """A table and the aims."""
    growth = max(found["growth_mb"])
    row = [
        f"{found['length']:,}",
        f"{found['open_s']:.2f}",
        f"{found['first_s']:.2f}",
        f"{growth:.0f}",
        measure.digits(found["rate"]),
    ]
    header = ["records", "open, s", "first, s", "growth over an epoch, MB", "records/s"]
    aims = [
        Aim("open in under 1 s", f"{found['open_s']:.2f} s", found["open_s"] < 1),
        Aim("flat memory", f"{growth:.0f} MB", growth < 32),
    ]
    return measure.table(header, [row]), aims


def prepare_peers(directory: Path) -> str:
    """An environment with the peers and this project."""
    python = directory / "bin" / "python"
    if not python.exists():
        venv.create(directory, with_pip=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    project = f"{HERE.parent}[image,formats]"
    install = [*pip, "-r", str(HERE / "_peers.txt"), "-e", project]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"The peers could not be installed:\n{done.stderr}")
    return str(python)


def section(title: str, table: str, aims: list[Aim]) -> str:
    """A part of the report."""
    lines = [f"- {'met' if aim.met else '**missed**'}: {aim.text}: {aim.found}" for aim in aims]
    return "\n".join([f"## {title}", "", table, "", *lines, ""])


def run(arguments: argparse.Namespace, data: Path) -> None:
    """Measure what was asked for, print it, and write the report."""
    python = sys.executable
    if not arguments.without_peers:
        python = prepare_peers(arguments.peers or data / "peers")
    # Libraries must not start threads of their own: the same for all.
    one_thread = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    os.environ.update(dict.fromkeys(one_thread, "1"))
    subprocess.run(
        [python, "-c", _WRITE, str(HERE), str(data), str(int(arguments.quick))], check=True
    )
    found: dict[str, Any] = {}

    def report(name: str, title: str, raw: Any, made: tuple[str, list[Aim]]) -> None:
        about, text = _circumstances(python), section(title, *made)
        aims = [asdict(aim) for aim in made[1]]
        found[name] = {"circumstances": about, "raw": raw, "aims": aims, "text": text}
        print(text, flush=True)

    def rounds_of(name: str) -> int:
        return arguments.rounds or ROUNDS[name]

    for workload, title in WORKLOADS.items():
        if arguments.only and workload not in arguments.only:
            continue
        names = _names(workload, arguments.without_peers)
        turns = alternate(
            workload, names, python, data, rounds=rounds_of(workload), quick=arguments.quick
        )
        raw = {name: [asdict(turn) for turn in own] for name, own in turns.items()}
        report(workload, title, raw, (results(turns), aims(workload, turns)))
    rows = str(65536 if arguments.quick else 1 << 20)
    alone = arguments.without_peers
    more: dict[str, Callable[[], None]] = {
        "cold": lambda: _cold(python, data, alone, rounds_of("cold"), report),
        "pss": lambda: _memory(python, alone, rows, report),
        "lmdb": lambda: _lmdb(python, data, rows, report),
    }
    for name, measure_it in more.items():
        if not arguments.only or name in arguments.only:
            measure_it()
    if not arguments.quick and not arguments.without_peers:
        _write_report(found)


Report = Callable[[str, str, Any, tuple[str, list[Aim]]], None]


def _cold(python: str, data: Path, alone: bool, rounds: int, report: Report) -> None:
    others = ("serial", "towerpack-part", "torch-batched")
    names = [name for name in _names("photos", alone) if name not in others]
    seconds = cold(python, data, names, rounds)
    report("cold", "First batch, cold, imports included", seconds, cold_report(seconds))


def _memory(python: str, alone: bool, rows: str, report: Report) -> None:
    names = ["towerpack"] if alone else ["towerpack", "torch", "grain"]
    found = {name: special(python, "memory", name, "--rows", rows) for name in names}
    title = "Memory: 4 workers over 1 GB in memory, 5 epochs (PSS of all processes)"
    report("pss", title, found, memory_report(found))


def _lmdb(python: str, data: Path, rows: str, report: Report) -> None:
    found = special(python, "lmdb", str(data / "lmdb"), "--rows", rows)
    report("lmdb", "LMDB, shuffled", found, lmdb_report(found))


def _names(workload: str, alone: bool) -> list[str]:
    import _loading_contenders as contenders

    names = list(contenders.contenders(workload))
    own = ("serial", "numpy", "towerpack")
    return [name for name in names if name.partition("-")[0] in own] if alone else names


_WRITE = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import _loading_workloads
_loading_workloads.write_data(Path(sys.argv[2]), quick=bool(int(sys.argv[3])))
"""

_VERSIONS = """
import json, sys
sys.path.insert(0, sys.argv[1])
import _measure
print(json.dumps(_measure.circumstances(json.loads(sys.argv[2]))))
"""


def _circumstances(python: str) -> dict[str, Any]:
    command = [python, "-c", _VERSIONS, str(HERE), json.dumps(PACKAGES)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def _write_report(found: dict[str, Any]) -> None:
    """Write what was measured; workloads that were not keep what an earlier run has found."""
    file = REPORTS / "data_loading.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    known = {name: part for name, part in known.items() if "text" in part} | found
    parts = [known[name] for name in (*WORKLOADS, *MORE) if name in known]
    note = (
        "Written by `python benchmarks/data_loading.py`. Two workers on two cores; turns of an "
        "epoch each, in alternation; medians over the rounds, ratios within a round with their "
        "range. The ceiling is twice one process that writes every item in place. CPU time is "
        "that of all processes of a contender."
    )
    lines = ["# Data loading", "", note, ""]
    for about, several in itertools.groupby(parts, lambda part: measure.described(_lasting(part))):
        lines += [f"*{about}*", "", *(part["text"] for part in several)]
    REPORTS.mkdir(exist_ok=True)
    file.with_suffix(".md").write_text("\n".join(lines))
    file.write_text(json.dumps(known, indent=1) + "\n")


def _lasting(part: dict[str, Any]) -> dict[str, Any]:
    """The circumstances of a part of the report, but for the load, which is of a moment."""
    return {**part["circumstances"], "load_average": []}


def main() -> None:
    """Parse and run."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="small data, for a look; no report")
    parser.add_argument("--rounds", type=int, help="by default 5 to 25")
    parser.add_argument("--only", nargs="*", choices=[*WORKLOADS, *MORE])
    parser.add_argument(
        "--data", type=Path, help="where the data are kept; else a temporary folder"
    )
    parser.add_argument("--peers", type=Path, help="where the peers' environment is kept")
    parser.add_argument("--without-peers", action="store_true", help="only Towerpack and by hand")
    arguments = parser.parse_args()
    if arguments.data is not None:
        run(arguments, arguments.data.resolve())
        return
    with tempfile.TemporaryDirectory() as directory:
        run(arguments, Path(directory))


if __name__ == "__main__":
    main()
