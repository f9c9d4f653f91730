"""What training costs besides the model: Towerpack, loops by hand, Keras, Tensorpack.

    python benchmarks/training_overhead.py [--quick] [--without-tensorpack]

Two problems: `lenet`, where the model takes the time, and `mlp`, so small that nearly everything is
overhead. Every contender is a process of its own; they take turns, and what counts are ratios
within a round. All use TensorFlow's own settings for threads, Adam, float32 and no XLA.

Tensorpack 0.11 is installed into a temporary environment that sees this one's packages. Where that
fails, it is left out and the report says so.

Aims: on `lenet` at least 0.97 of the steps/s of the loop by hand, 0.98 of those without the default
callbacks and monitors, and no fewer than Keras and Tensorpack; on `mlp` at most 1.3 times the CPU
time of a loop by hand of 50 steps per call, 3 times the steps/s of Keras `fit`, and with a learning
rate that changes after each step 0.8 of the steps/s without.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import shlex
import subprocess
import sys
import sysconfig
import tempfile
import venv
from dataclasses import asdict, dataclass
from pathlib import Path

import _measure as measure
from _measure import Turn

HERE = Path(__file__).parent
REPORTS = HERE / "reports"

HAND = "hand-1"
HAND_MANY = "hand-50"
TITLES = {
    HAND: "loop by hand, a step per call",
    HAND_MANY: "loop by hand, 50 steps per call",
    "towerpack": "**Towerpack** `SimpleTrainer`",
    "towerpack-shuffled": "**Towerpack**, with `ShuffleData`",
    "towerpack-line": "**Towerpack**, the learning rate on a line by steps",
    "towerpack-fixed": "**Towerpack**, batch size known to the model",
    "towerpack-without": "**Towerpack**, without the default callbacks and monitors",
    "keras-fit": "Keras `fit` (shuffles)",
    "tensorpack-queue": "Tensorpack 0.11, `QueueInput`",
    "tensorpack-feed": "Tensorpack 0.11, `FeedInput`",
}
TENSORPACK = [name for name in TITLES if name.startswith("tensorpack")]
EXPLANATIONS = {
    "lenet": "Four convolutions of 32 channels, fc 512, dropout, fc 10 on 28×28×1; batch 128.",
    "mlp": "Two layers, 32 → 64 → 10; batch 32.",
}

QUICK_STEPS = {"lenet": 20, "mlp": 500}


@dataclass(frozen=True)
class Aim:
    """What was hoped for, and what came out."""

    text: str
    found: measure.Ratio
    met: bool


def aims(case: str, turns: dict[str, list[Turn]]) -> list[Aim]:
    """The aims for a case."""
    rate, cpu = (lambda turn: turn.rate), (lambda turn: turn.cpu_us)
    ours = turns["towerpack"]
    found = []
    if case == "lenet":
        others = {HAND: 0.97, "keras-fit": 1.0, **dict.fromkeys(TENSORPACK, 1.0)}
        others["towerpack-without"] = 0.98
    else:
        others = {"keras-fit": 3.0}
        ratio = measure.paired(ours, turns[HAND_MANY], cpu)
        text = f"CPU time ≤ 1.3 × {TITLES[HAND_MANY]}"
        found.append(Aim(text, ratio, ratio.median <= 1.3))
        if "towerpack-line" in turns:
            ratio = measure.paired(turns["towerpack-line"], ours, rate)
            text = "a line by steps: steps/s ≥ 0.8 × without a schedule"
            found.append(Aim(text, ratio, ratio.median >= 0.8))
    for other, factor in others.items():
        if other in turns:
            ratio = measure.paired(ours, turns[other], rate)
            text = f"steps/s ≥ {factor:g} × {TITLES[other]}"
            found.append(Aim(text, ratio, ratio.median >= factor))
    return found


def results(turns: dict[str, list[Turn]]) -> str:
    """A table."""
    rate, cpu = (lambda turn: turn.rate), (lambda turn: turn.cpu_us)
    rows = []
    for name, own in turns.items():
        rows.append(
            [
                TITLES[name],
                measure.digits(measure.median(own, rate)),
                str(measure.paired(own, turns[HAND], rate)),
                measure.digits(measure.median(own, cpu)),
                str(measure.paired(own, turns[HAND_MANY], cpu)),
                f"{own[-1].loss:.3f}",
            ]
        )
    header = ["", "steps/s", "÷ a step per call", "CPU µs/step", "÷ 50 per call", "last loss"]
    return measure.table(header, rows)


def prepare(environment: Path, packages: list[str]) -> Path:
    """Install peers where they see the packages of this environment, and give that Python."""
    venv.create(environment, with_pip=False, symlinks=True)
    python = environment / "bin" / "python"
    paths = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    shared = environment / "lib" / version / "site-packages" / "shared.pth"
    shared.write_text("\n".join(sorted(paths)) + "\n")
    # What is here stays as it is, but for what only installs.
    tools = ("pip", "setuptools")
    here = [d for d in importlib.metadata.distributions() if d.name not in tools]
    pins = {f"{d.name}=={d.version}" for d in here}
    constraints = environment / "constraints.txt"
    constraints.write_text("\n".join(sorted(p for p in pins if "towerpack" not in p)))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python)]
    install = ["install", "--quiet", "-c", str(constraints), *packages]
    done = subprocess.run([*pip, *install], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1])
    return python


def commands(case: str, tensorpack: Path | None, steps: list[str]) -> dict[str, list[str]]:
    """What starts the contenders of a case, with other numbers of steps if any are given."""
    ours = str(HERE / "_training_contenders.py")
    names = [HAND, HAND_MANY, "towerpack", "towerpack-shuffled", "towerpack-fixed", "keras-fit"]
    names.append("towerpack-line" if case == "mlp" else "towerpack-without")
    started = {name: [sys.executable, ours, case, name, *steps] for name in names}
    if tensorpack is not None:
        theirs = str(HERE / "_tensorpack_contender.py")
        for name in TENSORPACK:
            source = name.removeprefix("tensorpack-")
            started[name] = [str(tensorpack), theirs, case, source, *steps]
    return started


def report(all_turns: dict[str, dict[str, list[Turn]]], found: dict, note: str) -> str:
    """Everything in words and tables."""
    parts = [
        "# What training costs besides the model",
        f"`{found['command']}`",
        measure.described(found["circumstances"]),
        "Each contender is a process; they take turns. Medians over rounds; ratios are taken "
        "within a round and given as median (lowest–highest). CPU time is that of all threads of "
        "the process. Losses are means of an epoch or those of its last batch, and only show that "
        "all train.",
    ]
    if note:
        parts.append(note)
    for case, turns in all_turns.items():
        rounds = len(turns[HAND])
        parts += [f"## {case}", f"{EXPLANATIONS[case]} {rounds} rounds.", results(turns)]
        parts += [
            "\n".join(
                f"- {'met' if aim.met else '**not met**'}: {aim.text}: {aim.found}"
                for aim in aims(case, turns)
            )
        ]
    return "\n\n".join(parts) + "\n"


def parsed() -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round: does it run?")
    parser.add_argument("--without-tensorpack", action="store_true")
    parser.add_argument("--case", choices=list(EXPLANATIONS), help="only one problem")
    parser.add_argument("--only", nargs="+", choices=list(TITLES), help="beside the loops by hand")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn, at least")
    parser.add_argument("--out", type=Path, default=REPORTS, help="directory for the report")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    rounds, seconds = (1, 0.0) if options.quick else (options.rounds, options.seconds)
    cases = [options.case] if options.case else list(EXPLANATIONS)
    all_turns: dict[str, dict[str, list[Turn]]] = {}
    tensorpack, note = None, ""
    with tempfile.TemporaryDirectory() as directory:
        if options.without_tensorpack:
            note = "Tensorpack was left out, as asked."
        else:
            try:
                tensorpack = prepare(Path(directory, "tensorpack"), ["tensorpack==0.11"])
            except (OSError, RuntimeError, subprocess.SubprocessError) as error:
                note = f"Tensorpack was left out: it could not be installed ({error})."
        before = measure.circumstances(["tensorflow", "keras", "numpy"])
        for case in cases:
            steps = [str(QUICK_STEPS[case])] if options.quick else []
            started = commands(case, tensorpack, steps)
            if options.only:
                keep = {HAND, HAND_MANY, "towerpack", *options.only}
                started = {name: command for name, command in started.items() if name in keep}
            all_turns[case] = measure.alternate(started, rounds=rounds, seconds=seconds)
    command = shlex.join(["python", "benchmarks/training_overhead.py", *sys.argv[1:]])
    found = {"command": command, "circumstances": before}
    load = os.getloadavg()[0]
    if max(load, before["load_average"][0]) > before["cores"] * 1.5:
        note += f" The machine was busy with other things (load {load:.1f} at the end)."
    text = report(all_turns, found, note.strip())
    print(text)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "training_overhead.md").write_text(text)
    raw = {
        **found,
        "turns": {
            c: {n: [asdict(t) for t in own] for n, own in turns.items()}
            for c, turns in all_turns.items()
        },
    }
    (options.out / "training_overhead.json").write_text(json.dumps(raw, indent=1) + "\n")


if __name__ == "__main__":
    main()
