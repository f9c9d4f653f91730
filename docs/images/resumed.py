"""Draw `resumed.svg`: costs of a run that is killed three times, over those of an undisturbed run.

    python docs/images/resumed.py

The program that is trained and killed is the one of the tutorial `docs/tutorials/resuming.md`.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from towerpack.callbacks.monitors import read_stats
from towerpack.checkpoint import load_checkpoint

HERE = Path(__file__).parent


def costs(run: Path) -> tuple[list[int], list[float]]:
    """Return steps and costs of the epochs of a run."""
    stats = run / "stats.jsonl"
    records = read_stats(stats) if stats.exists() else []
    points = {r.step: r.scalars["cost"] for r in records if "cost" in r.scalars}
    return list(points), list(points.values())


def killed_run(program: Path, run: Path, kills: int) -> list[int]:
    """Train to the end, and send SIGKILL after every fifth epoch; return the steps of the kills."""
    steps = []
    for kill in range(kills):
        process = subprocess.Popen([sys.executable, str(program), str(run)])
        while len(costs(run)[0]) < 5 * (kill + 1):
            time.sleep(0.005)
        process.kill()
        process.wait()
        steps.append(max(costs(run)[0]))
    subprocess.run([sys.executable, str(program), str(run)], check=True)
    return steps


def main() -> None:
    """Train both runs, compare their weights, and draw their costs."""
    page = (HERE.parent / "tutorials" / "resuming.md").read_text()
    source = re.search(r"write_text\('''\n(.*?)'''\)", page, re.DOTALL)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        program = folder / "train.py"
        program.write_text(source[1])
        subprocess.run([sys.executable, str(program), str(folder / "a")], check=True)
        kills = killed_run(program, folder / "b", 3)
        weights = [load_checkpoint(folder / run).model for run in "ab"]
        if not all(np.array_equal(weights[0][n], weights[1][n]) for n in weights[0]):
            raise SystemExit("The weights differ.")
        undisturbed, killed = costs(folder / "a"), costs(folder / "b")

    plt.rcParams.update({"font.size": 11, "svg.hashsalt": "towerpack"})
    figure, axes = plt.subplots(figsize=(8, 3.2), layout="constrained")
    axes.plot(*undisturbed, color="#9aa5b1", linewidth=5, label="never disturbed")
    axes.plot(
        *killed,
        color="#0b6e99",
        linewidth=1.8,
        marker="o",
        markersize=4,
        label="killed three times",
    )
    for step in kills:
        axes.axvline(step, color="#c2410c", linestyle="--", linewidth=1.2)
        place = axes.get_xaxis_transform()  # steps, and heights from 0 to 1
        axes.text(step + 8, 0.92, "kill -9", transform=place, color="#c2410c")
    axes.set(xlabel="step", ylabel="training cost", yscale="log")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center right", bbox_to_anchor=(1, 0.62))
    axes.set_title("Final weights are equal, bit for bit", loc="left")
    figure.savefig(HERE / "resumed.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
