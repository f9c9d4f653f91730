"""What layers by name cost beside plain Keras.

    python benchmarks/layers.py [--quick] [--only PART ...]

Every contender is a process of its own; they take turns, and what counts are ratios within a round.
The report keeps of earlier runs what a run with --only leaves out.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path

import _measure as measure
from _measure import Turn

HERE = Path(__file__).parent
CONTENDERS = {"towerpack": "**Towerpack**", "keras": "plain Keras"}


@dataclass(frozen=True)
class Part:
    """A comparison: its title, what is done, what is counted, and what our share should be."""

    title: str
    text: str
    unit: str
    aim: float


PARTS = {
    "steps": Part(
        "ResNet-20, forward and backward",
        "A batch of 128 of 32×32, loss and all gradients in one `tf.function`, float32; the same "
        "network, epsilon and momentum. Towerpack's `BatchNorm` is one operation of TensorFlow's.",
        "steps",
        0.98,
    ),
    "build": Part(
        "ResNet-50, built and traced",
        "Variables with initial values, and the graph of a call in training. Keras is "
        "`keras.applications.ResNet50`, which builds its layers on symbols and is then traced by "
        "`tf.function`; `TowerFunction.trace` builds them while it traces.",
        "models",
        1.0,
    ),
}


def section(part: str, turns: dict[str, list[Turn]]) -> str:
    """Text, table and aim of a part."""
    about = PARTS[part]
    rate, cpu = (lambda turn: turn.rate), (lambda turn: turn.cpu_us / 1000)
    ratio = measure.paired(turns["towerpack"], turns["keras"], rate)
    rows = measure.result_rows(turns, CONTENDERS, (rate, cpu))
    last = "loss" if part == "steps" else "numbers in variables"
    header = ["", f"{about.unit}/s", f"CPU ms/{about.unit[:-1]}", last]
    verdict = "met" if ratio.median >= about.aim else "**not met**"
    text = f"{about.text} {len(turns['keras'])} rounds."
    aim = f"- {verdict}: ≥ {about.aim:g} × plain Keras: {ratio}"
    return "\n\n".join([f"## {about.title}", text, measure.table(header, rows), aim])


HEAD = [
    "# What layers by name cost",
    "Contenders are processes that take turns. Medians over rounds; ratios are taken within a "
    "round and given as median (lowest–highest).",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round: does it run?")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn, at least")
    parser.add_argument("--out", type=Path, default=HERE / "reports", help="for the report")
    options = parser.parse_args()
    report = measure.PartsReport("layers.py", options.out, HEAD, PARTS)
    quick = ["--quick"] if options.quick else []
    for part in options.only:
        circumstances = measure.circumstances(["tensorflow", "keras", "numpy"])
        program = [sys.executable, str(HERE / "_layers_contenders.py")]
        commands = {name: [*program, f"{part}-{name}", *quick] for name in CONTENDERS}
        turns = measure.alternate(
            commands,
            rounds=1 if quick else options.rounds,
            seconds=0 if quick else options.seconds,
        )
        report.add(part, turns, section(part, turns), circumstances)


if __name__ == "__main__":
    main()
