"""Environments, replay memory and agents beside Stable-Baselines3 (torch, CPU, one thread).

    python benchmarks/rl.py [--quick] [--only PART ...] [--without-peers] [--peers DIR]

Each contender is a process; they take turns, and what counts are ratios within a round.
Stable-Baselines3 is installed into an environment that sees this one's packages: a temporary one,
or that in --peers, which is used as it is where it has the package. `million` writes 8 GB into
--scratch. The report keeps of earlier runs what a run with --only leaves out.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import _measure as measure
from _measure import Turn
from training_overhead import prepare

HERE = Path(__file__).parent
REPORTS = HERE / "reports"
PINS = [
    pin
    for pin in (HERE / "_peers.txt").read_text().split()
    if pin.startswith(("torch==", "stable-baselines3=="))
]
TITLES = {"ours": "**Towerpack**", "sb3": "Stable-Baselines3"}


@dataclass(frozen=True)
class Part:
    """A comparison.

    Attributes:
        title: Of its section.
        text: What is done.
        unit: What is counted per second.
        aim: What our rate should be at least, as a share of theirs.
        script: That runs both contenders: `SCRIPT PART ours|sb3`.
        rounds: Turns for each that count.
    """

    title: str
    text: str
    unit: str
    aim: float
    script: str = "_rl_contenders.py"
    rounds: int = 9


PARTS = {
    "envs-cartpole": Part(
        "Environments: CartPole",
        "Eight environments and random actions. Ours: `make_envs`; theirs: `make_vec_env`.",
        "steps",
        1.0,
    ),
    "envs-pong": Part(
        "Environments: Pong",
        "Four games, stacks of four frames of 84×84, random actions. Ours: `make_envs`, ale-py's "
        "`AtariVectorEnv`; theirs: `make_atari_env` and `VecFrameStack`.",
        "steps",
        1.0,
    ),
    "replay-atari": Part(
        "Replay: 32 transitions of Atari",
        "Memories of 40,000 stacks of four frames, of four environments. Theirs keeps each stack "
        "twice, ours each frame once, in mapped files.",
        "batches",
        3.0,
    ),
    "replay-atari-256": Part(
        "Replay: 256 transitions of Atari", "As above: eight batches at once.", "batches", 3.0
    ),
    "replay-cartpole": Part(
        "Replay: 64 transitions of CartPole",
        "Memories of 40,000 vectors of four numbers.",
        "batches",
        1.0,
    ),
    **{
        f"{agent}-{game}": Part(
            f"{agent.upper()}: {game.capitalize()}",
            "Playing and learning at equal settings (`_rl_agents.py`), our checkpoints included.",
            "steps",
            1.5,
            script="_rl_agents.py",
            rounds=5,
        )
        for agent in ("ppo", "dqn")
        for game in ("cartpole", "pong")
    },
}
SOLVE, MILLION = "solve", "million"


def section(part: str, turns: dict[str, list[Turn]], missing: str) -> str:
    """Text, table and aim of a part."""
    about = PARTS[part]
    rows = []
    for name, own in turns.items():
        rate = measure.digits(measure.median(own, lambda turn: turn.rate))
        cpu = measure.digits(measure.median(own, lambda turn: turn.cpu_us))
        rows.append([TITLES[name], rate, "", cpu])
    aim = f"- not measured: {TITLES['sb3']}: {missing}"
    if "sb3" in turns:
        ratio = measure.paired(turns["ours"], turns["sb3"], lambda turn: turn.rate)
        cpu = measure.paired(turns["sb3"], turns["ours"], lambda turn: turn.cpu_us)
        rows[-1][2] = str(ratio)
        verdict = "met" if ratio.median >= about.aim else "**not met**"
        aim = f"- {verdict}: ≥ {about.aim:g} × {TITLES['sb3']}: {ratio}; by CPU time: {cpu}"
    header = [
        "",
        f"{about.unit}/s",
        "Towerpack ÷ it",
        f"CPU µs/{about.unit.removesuffix('s').replace('che', 'ch')}",
    ]
    rounds = len(turns["ours"])
    text = f"{about.text} {rounds} rounds."
    return "\n\n".join([f"## {about.title}", text, measure.table(header, rows), aim])


def solve(options: argparse.Namespace, directory: str) -> str:
    """Train PPO on CartPole until it is solved, with several seeds."""
    script, rows = str(HERE / "_rl_agents.py"), {}
    pythons = {"ours": sys.executable}
    missing = ""
    try:
        pythons["sb3"] = str(peers_python(options, directory))
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        missing = str(error)
    for seed in range(1 if options.quick else options.rounds or 3):
        for name, python in pythons.items():
            command = [python, script, SOLVE, name, str(seed)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            rows.setdefault(name, []).append(json.loads(done.stdout.splitlines()[-1]))
    table = [
        [TITLES[name], ", ".join(f"{r['seconds']:.1f}" for r in own),
         ", ".join(f"{r['steps']:,}" for r in own), ", ".join(f"{r['mean']:.0f}" for r in own)]
        for name, own in rows.items()
    ]  # fmt: skip
    aim = f"- not measured: {TITLES['sb3']}: {missing}"
    if "sb3" in rows:
        medians = [statistics.median(r["seconds"] for r in rows[name]) for name in rows]
        verdict = "met" if medians[0] <= medians[1] else "**not met**"
        aim = f"- {verdict}: no more wall time, by medians"
    return "\n\n".join(
        [
            "## PPO: until CartPole is solved",
            "Until the last hundred episodes of the training have a mean of 475, looked at every "
            "2,048 steps, by the settings of the comparison above. Seconds from before the agent "
            "is made, so that compilation counts, for seeds 0, 1 and so on.",
            measure.table(["", "s", "steps", "mean"], table),
            aim,
        ]
    )


def million(options: argparse.Namespace) -> str:
    """Fill and draw from a memory of 1 M frames; ours alone: twice 28 GB fit no such machine."""
    command = [sys.executable, str(HERE / "_rl_contenders.py"), MILLION, "ours"]
    command += ["--quick"] if options.quick else []
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    header = ["frames", "GB on disk", "MB more memory", "µs to append one", "µs to draw 32"]
    row = [f"{found['frames']:,}", *(measure.digits(max(found[key], 0.01)) for key in COLUMNS)]
    verdict = "met" if found["disk_gb"] <= 8 and found["grown_mb"] < 100 else "**not met**"
    return "\n\n".join(
        [
            "## Replay: 1 M frames of Atari",
            "Filled until the ring has gone round, then drawn from. Memory is the process's own, "
            "without mapped files, which the system may drop at any time.",
            measure.table(header, [row]),
            f"- {verdict}: ≤ 8 GB, and flat",
        ]
    )


COLUMNS = ("disk_gb", "grown_mb", "append_us", "sample_us")


HEAD = [
    "# Reinforcement learning beside Stable-Baselines3",
    "Contenders are processes that take turns. Medians over rounds; ratios are taken within a "
    "round and given as median (lowest–highest). CPU time is that of all threads.",
]


def peers_python(options: argparse.Namespace, directory: str) -> Path:
    """The Python that has Stable-Baselines3.

    Raises:
        RuntimeError: There is none, and why.
    """
    if options.without_peers:
        raise RuntimeError("left out, as asked")
    place = options.peers or Path(directory, "peers")
    python = place / "bin" / "python"
    probe = [str(python), "-c", "import stable_baselines3, ale_py"]
    if python.exists() and not subprocess.run(probe, capture_output=True, check=False).returncode:
        return python
    return prepare(place, PINS)


def run(part: str, options: argparse.Namespace, directory: str) -> tuple[dict, str]:
    """The turns of a part, and why the peer is missing."""
    quick = ["--quick"] if options.quick else []
    script = str(HERE / PARTS[part].script)
    commands, missing = {"ours": [sys.executable, script, part, "ours", *quick]}, ""
    try:
        python = peers_python(options, directory)
        commands["sb3"] = [str(python), script, part, "sb3", *quick]
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        missing = str(error)
    rounds = 1 if options.quick else options.rounds or PARTS[part].rounds
    return measure.alternate(
        commands, rounds=rounds, seconds=0 if quick else options.seconds
    ), missing


def parsed() -> argparse.Namespace:
    """Options."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = [*PARTS, SOLVE, MILLION]
    parser.add_argument("--quick", action="store_true", help="one round: does it run?")
    parser.add_argument("--only", nargs="+", choices=parts, default=parts)
    parser.add_argument("--rounds", type=int, help="by default 9")
    parser.add_argument("--seconds", type=float, default=1.5, help="of a turn, at least")
    parser.add_argument("--peers", type=Path, help="where the peers' environment is kept")
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("--scratch", type=Path, help="directory for replay memories")
    parser.add_argument("--out", type=Path, default=REPORTS, help="directory for the report")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    report = measure.PartsReport("rl.py", options.out, HEAD, [*PARTS, SOLVE, MILLION])
    for part in options.only:
        circumstances = measure.circumstances(["tensorflow", "gymnasium", "ale-py", "numpy"])
        with tempfile.TemporaryDirectory(dir=options.scratch) as directory:
            os.environ["RL_SCRATCH"] = directory
            if part in (SOLVE, MILLION):
                text = solve(options, directory) if part == SOLVE else million(options)
                turns = {}
            else:
                turns, missing = run(part, options, directory)
                text = section(part, turns, missing)
        if "sb3" in turns or part == SOLVE:
            circumstances |= dict(pin.split("==") for pin in PINS)
        report.add(part, turns, text, circumstances)


if __name__ == "__main__":
    main()
