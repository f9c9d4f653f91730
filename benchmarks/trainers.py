"""What trainers cost beside loops by hand, Keras and PyTorch Lightning doing the same.

    python benchmarks/trainers.py [--quick] [--only PART ...] [--without-peers] [--peers DIR]

Every contender is a process of its own, or two; they take turns, and what counts are ratios within
a round. `start` is measured in fresh processes, which take turns as well. On GPUs, if there are
any, there is nobody to compare with: absolute figures.

PyTorch (its default build is large; a CPU build will do) and Lightning are installed into an
environment that sees this one's packages: a temporary one, or that in --peers. Where that fails,
the report says so. It keeps of earlier runs what a run with --only leaves out.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import _measure as measure
from _measure import Turn
from _trainers_images import BATCH
from training_overhead import prepare

HERE = Path(__file__).parent
REPORTS = HERE / "reports"
PINS = [
    pin
    for pin in (HERE / "_peers.txt").read_text().split()
    if pin.startswith(("torch==", "lightning=="))
]

Turns = dict[str, list[Turn]]


@dataclass(frozen=True)
class Part:
    """A comparison.

    Attributes:
        title: Of its section.
        text: What is done.
        unit: What is counted per second.
        contenders: Ours first: what they are called, by name.
        aim: What our rate should be at least, as a share of each other's.
        rounds: Turns for each that count.
    """

    title: str
    text: str
    unit: str
    contenders: dict[str, str]
    aim: float = 1.0
    rounds: int = 7


LENET = (
    "LeNet of `training_overhead.py`, batch 64 for each replica, Adam. The loop by hand runs 50 "
    "steps in one `tf.function`, on arrays that TensorFlow holds; Towerpack reads a DataFlow."
)
PARTS = {
    "replicas": Part(
        "Two replicas on two logical CPU devices",
        LENET,
        "steps",
        {"towerpack": "**Towerpack** `SyncMultiGPUTrainer`", "hand": "by hand, `MirroredStrategy`"},
        aim=0.97,
        rounds=15,
    ),
    "workers": Part(
        "Two processes over the loopback",
        LENET,
        "steps",
        {
            "towerpack": "**Towerpack** `MultiWorkerTrainer`",
            "hand": "by hand, `MultiWorkerMirroredStrategy`",
        },
        aim=0.95,
        rounds=15,
    ),
    "images": Part(
        "ResNet-20 on JPEG files",
        "Files of 256×256 are decoded, cropped, scaled to 32×32 and flipped by two workers, then "
        f"trained on in batches of {BATCH}; SGD with momentum. Each network is in its library's "
        "own layers.",
        "images",
        {
            "towerpack": "**Towerpack** `SimpleTrainer`, `PrefetchData`",
            "keras": "Keras `fit`, `tf.data`",
            "lightning": "PyTorch Lightning, `DataLoader`",
        },
    ),
    "saving": Part(
        "A checkpoint of 100 MB every 50 steps",
        "Six layers of 2048, batch 64, SGD without slots: the checkpoint is the weights. A turn is "
        "50 steps, and has one.",
        "steps",
        {"towerpack": "**Towerpack**, `ModelSaver`", "none": "**Towerpack**, nothing saved"},
        aim=0.97,
        rounds=9,
    ),
    "start": Part(
        "Start of 30 layers, to the end of the first step",
        "29 convolutions with batch normalisation and a dense layer, batch 32 of 32×32×3. Fresh "
        "processes; the time to import TensorFlow and Keras does not count, the CPU time does.",
        "starts",
        {"towerpack": "**Towerpack** `SimpleTrainer`", "keras": "Keras `fit`"},
    ),
    "gpu": Part(
        "On GPUs",
        "One made-up batch again and again, float32, `SyncMultiGPUTrainer` over all GPUs; batches "
        "of 512 (ResNet-20) and 64 (ResNet-50) for each.",
        "images",
        {"resnet20": "ResNet-20, 32×32", "resnet50": "ResNet-50, 224×224"},
        rounds=5,
    ),
}


def starts(commands: dict[str, list[str]], rounds: int) -> Turns:
    """Fresh processes in turns; the first ones, which warm up the disk, do not count."""
    turns: Turns = {name: [] for name in commands}
    for round_ in range(-1, rounds):
        for name in list(commands)[:: 1 if round_ % 2 else -1]:
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            done = subprocess.run(commands[name], capture_output=True, text=True, check=False)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            if done.returncode:
                raise RuntimeError(f"{name} failed:\n{done.stderr[-4000:]}")
            imported, first = json.loads(done.stdout.splitlines()[-1])
            cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            if round_ >= 0:
                turns[name].append(Turn(1, first - imported, cpu_s, 0.0))
    return turns


def measured(part: str, commands: dict[str, list[str]], *, rounds: int, seconds: float) -> Turns:
    """The turns of a part."""
    if part == "start":
        return starts(commands, rounds)
    if part == "gpu":  # one alone: it takes all memory
        alone = [{name: command} for name, command in commands.items()]
        turns = [measure.alternate(one, rounds=rounds, seconds=seconds) for one in alone]
        return {name: own for each in turns for name, own in each.items()}
    # A process that is stopped is dead to the others of its cluster.
    return measure.alternate(commands, rounds=rounds, seconds=seconds, stop=part != "workers")


def section(part: str, turns: Turns, missing: dict[str, str]) -> str:
    """Text, table and aims of a part."""
    about = PARTS[part]
    rate, cpu = (lambda turn: turn.rate), (lambda turn: turn.cpu_us / 1000)
    ours, *others = about.contenders
    compared = part != "gpu"
    rows, aims = [], []
    for name, title in about.contenders.items():
        if name not in turns:
            rows.append([title, "not measured", "", ""])
            aims.append(f"- not measured: {title}: {missing[name]}")
            continue
        shown = [measure.digits(measure.median(turns[name], value)) for value in (rate, cpu)]
        if compared and name in others:
            ratio = measure.paired(turns[ours], turns[name], rate)
            verdict = "met" if ratio.median >= about.aim else "**not met**"
            aims.append(f"- {verdict}: ≥ {about.aim:g} × {title}: {ratio}")
            shown.insert(1, str(ratio))
        else:
            shown.insert(1, "")
        rows.append([title, *shown])
    header = ["", f"{about.unit}/s", "Towerpack ÷ it", f"CPU ms/{about.unit[:-1]}"]
    rounds = max(map(len, turns.values()), default=0)
    text = f"{about.text} {rounds} rounds."
    return "\n\n".join([f"## {about.title}", text, measure.table(header, rows), "\n".join(aims)])


HEAD = [
    "# What trainers cost",
    "Contenders are processes that take turns. Medians over rounds; ratios are taken within a "
    "round and given as median (lowest–highest). CPU time is that of all processes of a "
    "contender.",
]


def lightning(options: argparse.Namespace, directory: str) -> Path:
    """The Python that has it.

    Raises:
        RuntimeError: There is none, and why.
    """
    if options.without_peers:
        raise RuntimeError("left out, as asked")
    return prepare(options.peers or Path(directory, "peers"), PINS)


def parsed() -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one round: does it run?")
    parser.add_argument("--only", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--rounds", type=int, help="by default 5 to 15")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a turn, at least")
    parser.add_argument("--peers", type=Path, help="where the peers' environment is kept")
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--out", type=Path, default=REPORTS, help="directory for the report")
    return parser.parse_args()


def run(part: str, options: argparse.Namespace, directory: str) -> tuple[Turns, dict[str, str]]:
    """The turns of a part, and who is missing, and why."""
    quick = ["--quick"] if options.quick else []
    missing: dict[str, str] = {}
    commands = {
        name: [sys.executable, str(HERE / "_trainers_contenders.py"), f"{part}-{name}", directory]
        for name in PARTS[part].contenders
    }
    if part == "images":
        try:
            python = lightning(options, directory)
            commands["lightning"][:2] = [str(python), str(HERE / "_lightning_contender.py")]
        except (OSError, RuntimeError, subprocess.SubprocessError) as error:
            missing["lightning"] = str(error)
    if part == "gpu":
        code = "import tensorflow as tf; assert tf.config.list_physical_devices('GPU')"
        if subprocess.run(
            [sys.executable, "-c", code], capture_output=True, check=False
        ).returncode:
            missing = dict.fromkeys(commands, "TensorFlow sees no GPU")
    commands = {n: [*command, *quick] for n, command in commands.items() if n not in missing}
    rounds = 1 if options.quick else options.rounds or PARTS[part].rounds
    turns = measured(part, commands, rounds=rounds, seconds=0 if quick else options.seconds)
    return turns, missing


def main() -> None:
    options = parsed()
    report = measure.PartsReport("trainers.py", options.out, HEAD, PARTS)
    for part in options.only:
        circumstances = measure.circumstances(["tensorflow", "keras", "numpy"])
        with tempfile.TemporaryDirectory() as directory:
            turns, missing = run(part, options, directory)
        if "lightning" in turns:
            circumstances |= dict(pin.split("==") for pin in PINS)
        report.add(part, turns, section(part, turns, missing), circumstances)


if __name__ == "__main__":
    main()
