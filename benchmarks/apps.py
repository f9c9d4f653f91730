"""What the applications' computations cost beside what one would write without them.

    python benchmarks/apps.py [--quick] [--only PART ...]

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


@dataclass(frozen=True)
class Part:
    """A comparison: its title, what is done, what is counted, what our share should be.

    `program` takes the argument PART-ours or PART-theirs.
    """

    title: str
    text: str
    unit: str
    theirs: str
    aim: float
    program: str


_DETECTION = "_apps_detection.py"
_TEXT = "_apps_text.py"
PARTS = {
    "lstm": Part(
        "A training step of a language model",
        "87 characters, an embedding and two LSTMs of 256, 50 streams of 64 characters whose state "
        "is carried, float32, Adam: our trainer, and `stateful` layers in Keras's `fit`.",
        "steps",
        "Keras `fit`",
        1.0,
        _TEXT,
    ),
    "sampling": Part(
        "A text sampled",
        "200 characters one after the other from the same network, one text at a time: one call of "
        "the graph, and a call for each character (compiled, too) with a choice by NumPy.",
        "texts",
        "a call per character",
        5.0,
        _TEXT,
    ),
    "matching": Part(
        "Anchors and boxes matched",
        "32 pictures with 20 boxes each and the 8,732 anchors of SSD300: intersection over union, "
        "the best box of each anchor, the best anchor of each box. NumPy goes picture by picture.",
        "batches",
        "NumPy",
        5.0,
        _DETECTION,
    ),
    "suppression": Part(
        "Non-maximum suppression",
        "8 pictures, 8,732 boxes, 80 classes, some 2,000 scores above 0.01 in each: the best "
        "200 boxes, class by class, at an overlap of 0.45. NumPy has a loop over classes, and one "
        "over boxes that are left.",
        "batches",
        "NumPy",
        5.0,
        _DETECTION,
    ),
    "ssd": Part(
        "A training step of a detector",
        "Eight convolutions with batch normalisation, 2,046 anchors, 8 pictures of 128×128, SSD's "
        "loss, momentum: our trainer, and the same network and loss in Keras's `fit`.",
        "steps",
        "Keras `fit`",
        1.0,
        _DETECTION,
    ),
    "unet": Part(
        "A training step of U-Net",
        "That of Lambda's demo suite, 12 classes, 8 pictures of 96×96, momentum: our trainer, and "
        "the same network and loss in Keras's `fit`.",
        "steps",
        "Keras `fit`",
        1.0,
        "_apps_segmentation.py",
    ),
}


def section(part: str, turns: dict[str, list[Turn]]) -> str:
    """Text, table and aim of a part."""
    about = PARTS[part]
    rate, cpu = (lambda turn: turn.rate), (lambda turn: turn.cpu_us / 1000)
    ratio = measure.paired(turns["ours"], turns["theirs"], rate)
    work = measure.paired(turns["theirs"], turns["ours"], cpu)
    titles = {"ours": "**Towerpack**", "theirs": about.theirs}
    rows = measure.result_rows(turns, titles, (rate, cpu))
    header = ["", f"{about.unit}/s", "CPU ms each", "result"]
    verdict = "met" if ratio.median >= about.aim else "**not met**"
    text = f"{about.text} {len(turns['ours'])} rounds."
    aim = f"- {verdict}: ≥ {about.aim:g} × {about.theirs}: {ratio}; of processor time {work}"
    return "\n\n".join([f"## {about.title}", text, measure.table(header, rows), aim])


HEAD = [
    "# What the applications' computations cost",
    "Contenders are processes that take turns. Medians over rounds; ratios are taken within a "
    "round and given as median (lowest–highest).",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round: does it run?")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.5, help="of a turn, at least")
    parser.add_argument("--out", type=Path, default=HERE / "reports", help="for the report")
    options = parser.parse_args()
    report = measure.PartsReport("apps.py", options.out, HEAD, PARTS)
    for part in options.only:
        circumstances = measure.circumstances(["tensorflow", "keras", "numpy"])
        program = [sys.executable, str(HERE / PARTS[part].program)]
        turns = measure.alternate(
            {name: [*program, f"{part}-{name}"] for name in ("ours", "theirs")},
            rounds=1 if options.quick else options.rounds,
            seconds=0 if options.quick else options.seconds,
        )
        report.add(part, turns, section(part, turns), circumstances)


if __name__ == "__main__":
    main()
