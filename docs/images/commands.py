"""Draw what four commands print, as `command-import.svg`, `-train.svg`, `-eval.svg`, `-runs.svg`.

    python docs/images/commands.py

The pictures are scikit-learn's digits, in one folder for each class.
"""

from __future__ import annotations

import io
import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text
from sklearn.datasets import load_digits

from towerpack.apps import write_picture

HERE = Path(__file__).parent
COLUMNS, REMARK = 100, 12  # the time left stands behind a row
COMMANDS = {
    "import": "towerpack data import digits",
    "train": "towerpack train digits/recipe.yaml",
    "eval": "towerpack eval runs/digits",
    "runs": "towerpack runs ls",
}


def main() -> None:
    """Write the pictures, run the commands, and draw their output."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        digits = load_digits()
        for number, (picture, label) in enumerate(
            zip(digits.images[:600], digits.target[:600], strict=True)
        ):
            file = folder / "digits" / str(label) / f"{number}.png"
            pixels = (picture * 15.9).astype("uint8").repeat(4, 0).repeat(4, 1)
            write_picture(file, pixels[:, :, None].repeat(3, 2))
        colors = {**os.environ, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS)}
        for command, line in COMMANDS.items():
            done = subprocess.run(
                shlex.split(line), cwd=folder, env=colors, text=True, check=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            console = Console(width=COLUMNS + REMARK, record=True, file=io.StringIO())
            console.print(Text("$ " + line, "bold"))
            lines = done.stdout.replace(str(folder), "~").splitlines()
            lines = [line for line in lines if "checking" not in line]  # a bar that is redrawn
            console.print(Text.from_ansi("\n".join(lines)))
            console.save_svg(str(HERE / f"command-{command}.svg"), title=command)


if __name__ == "__main__":
    main()
