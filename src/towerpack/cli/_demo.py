from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Annotated

import typer

from towerpack._core.errors import InternalError
from towerpack._core.extras import require
from towerpack.cli._console import console, pairs

_NUM_PICTURES = 24


def demo(
    run_dir: Annotated[
        Path, typer.Option(help="Run directory. An existing run is continued.")
    ] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Seed of the run.")] = 0,
) -> None:
    """Train LeNet on handwritten digits, evaluate, predict images, export and serve."""
    for module in ("tensorflow", "sklearn", "matplotlib", "cv2", "pydantic", "fastapi", "httpx"):
        require(module, extra="apps,serve", needed_for="The demonstration")
    from towerpack.apps import Runner, find_recipe, infer

    recipe = find_recipe("digits", [f"train.seed={seed}"])
    runner = Runner.from_recipe(recipe, run_dir)
    trainer = runner.train()
    out = console()
    if trainer.was_complete:
        out.print("This run was already complete; delete its directory to start again.")
    done = runner.evaluate("test")
    right = round(done.numbers["accuracy"] * done.count)
    out.print(
        f"Test accuracy [bold]{100 * done.numbers['accuracy']:.2f} %[/] ({right} of {done.count} "
        f"digits), from the checkpoint of step {done.step}."
    )
    pictures = _pictures(run_dir / "pictures")
    shown = infer(
        runner, recipe.display(runner.inputter), list(map(str, pictures)), run_dir / "infer"
    )
    exported = runner.export(tell=out.print)
    with _served(exported.parent) as url:
        from towerpack.serving import Client

        with Client(url) as client:
            answer = client.predict(pictures[0])
        (name,) = answer["classes"]
        out.print(
            f"Served at {url}: {pictures[0].name} is a {name.decode()} "
            f"({100 * answer['probabilities'].max():.1f} %)."
        )
    files = {
        "pictures": shown.files[-1],
        "confusion": done.files[-1],
        "exported": exported,
        "checkpoints": run_dir / "checkpoints",
        "numbers": run_dir / "stats.jsonl",
        "log": run_dir / "log.txt",
        "live control": f"{run_dir / 'hyper.yaml'} (write, for example, learning_rate: 3e-4)",
        "settings": run_dir / "recipe.yaml",
    }
    out.print(pairs((what, str(where)) for what, where in files.items()))
    out.print(f"Serve it: towerpack serve {run_dir}")


def _pictures(folder: Path) -> list[Path]:
    from towerpack.apps import write_picture
    from towerpack.dataflow import datasets

    digits = datasets.Digits("test", shuffle=False)
    paths = [folder / f"{i:02d}-a-{digits.labels[i]}.png" for i in range(_NUM_PICTURES)]
    for path, image in zip(paths, digits.images, strict=False):
        write_picture(path, (image * (255 / 16)).round().astype("uint8"))
    return paths


@contextlib.contextmanager
def _served(export_dir: Path) -> Generator[str]:
    """Run `towerpack serve` in a subprocess during the block. Yield its URL."""
    command = [sys.executable, "-P", "-m", "towerpack", "serve", str(export_dir)]
    with subprocess.Popen(
        [*command, "--port", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as server:
        try:
            line = server.stdout.readline() if server.stdout else ""
            urls = [word for word in line.split() if word.startswith("http")]
            if not urls:
                raise InternalError(
                    "The server of the demonstration did not start.",
                    fix=f"run `{' '.join(command)}` to see the error",
                )
            yield urls[0].rstrip("/")
        finally:
            server.terminate()
