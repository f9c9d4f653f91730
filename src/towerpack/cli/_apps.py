"""`towerpack train`, `eval`, `infer`: applications, one grammar for all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from towerpack._core.extras import explain_missing, require
from towerpack._core.native_log import quiet_start
from towerpack.cli._console import console

if TYPE_CHECKING:
    from towerpack.apps import Recipe

_LONGEST: Final = 120


def recipe_completion(incomplete: str) -> list[str]:
    """Names of recipes that begin so."""
    with explain_missing("Applications"):
        from towerpack.apps import recipe_names
    return [name for name in recipe_names() if name.startswith(incomplete)]


RECIPE = Annotated[
    str,
    typer.Argument(
        metavar="RECIPE_OR_RUN",
        help="A name (`towerpack recipes` lists them), a .yaml file, or a run's directory.",
        autocompletion=recipe_completion,
    ),
]
RUN = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="The directory of a run, or the recipe whose run is in runs/NAME."
    ),
]
SETTINGS = Annotated[
    list[str] | None,
    typer.Argument(metavar="[KEY=VALUE]...", help="Settings; `--show-config` shows all keys."),
]
RUN_DIR = Annotated[
    Path | None, typer.Option("--run-dir", "-o", help="Everything of the run; runs/NAME.")
]
ALLOW_CODE = Annotated[
    bool,
    typer.Option(
        "--allow-code",
        help="Run code that the recipe or run names as module:name: it is a program, not data.",
    ),
]
JSON = Annotated[bool, typer.Option("--json", help="Results as JSON.")]


def train(
    recipe: RECIPE,
    settings: SETTINGS = None,
    run_dir: RUN_DIR = None,
    show_config: Annotated[
        bool, typer.Option("--show-config", help="Print all settings and what they mean, no more.")
    ] = False,
    allow_code: ALLOW_CODE = False,
    json_: JSON = False,
) -> None:
    """Train, or go on where the same command was stopped.

    towerpack train digits train.epochs=5 batch_size=32

    towerpack train runs/digits epochs=20
    """
    found = open_recipe(recipe, settings, allow_code)
    if show_config:
        from towerpack.config import explained

        print(explained(found.config), end="")
        return
    require("tensorflow", extra="apps", needed_for="Training")
    from towerpack.apps import Runner

    trainer = Runner.of(found, run_dir).train()
    names = trainer.monitors.names()
    numbers = {n: trainer.monitors.latest(n) for n in names if n.startswith("val/")}
    if json_:
        print(json.dumps({"run_dir": str(trainer.run_dir), "step": trainer.global_step, **numbers}))
        return
    out = console()
    for name, value in numbers.items():
        out.print(f"{name:<20} {value:.4g}")
    out.print(f"Next: towerpack eval {trainer.run_dir}")


def evaluate(
    run: RUN,
    settings: SETTINGS = None,
    split: Annotated[str, typer.Option(help="val or test.")] = "test",
    run_dir: RUN_DIR = None,
    allow_code: ALLOW_CODE = False,
    json_: JSON = False,
) -> None:
    """Evaluate the best checkpoint of a run: metrics, per class too, and pictures."""
    from towerpack._core.errors import ConfigError

    if split not in ("val", "test"):
        raise ConfigError(f"--split {split}.", expected="val or test")
    runner, _ = open_run(run, settings, run_dir, allow_code)
    done = runner.evaluate(split)  # type: ignore[arg-type]
    if json_:
        about = {
            "split": split,
            "step": done.step,
            "count": done.count,
            "trained_on": done.trained_on,
        }
        print(json.dumps({**about, **done.numbers, "files": [str(f) for f in done.files]}))
        return
    out = console()
    out.print(f"{split}: {done.count} datapoints, checkpoint of step {done.step}")
    for name, value in done.numbers.items():
        out.print(f"{name:<20} {value:.4f}")
    out.print()
    for line in (*done.lines, "", *(str(f) for f in done.files)):
        out.print(line, markup=False)


def infer(
    run: RUN,
    sources: Annotated[
        list[str],
        typer.Argument(help="Files, folders, patterns, texts; - for lines of standard input."),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", help="Where pictures and tables go; RUN/infer.")
    ] = None,
    run_dir: RUN_DIR = None,
    allow_code: ALLOW_CODE = False,
    json_: JSON = False,
) -> None:
    """Predict files with the best checkpoint of a run."""
    settings = [source for source in sources if _is_setting(source)]
    runner, display = open_run(run, settings, run_dir, allow_code)
    from towerpack.apps import infer as run_inference

    wanted = [source for source in sources if not _is_setting(source)]
    done = run_inference(runner, display, wanted, out or runner.run_dir / "infer")
    failed = [row for row in done.rows if "error" in row]
    if json_:
        text = json.dumps(list(done.rows), ensure_ascii=False)
        print(text.encode("utf-8", "backslashreplace").decode())
    else:
        _show(done.rows)
        console().print(f"{len(done.files)} files in {out or runner.run_dir / 'infer'}")
    if failed:
        raise typer.Exit(1)


def recipes() -> None:
    """List the recipes that come with the package, and what they reached."""
    with explain_missing("Applications"):
        from towerpack.apps import recipe_names
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("recipe", "what", "reached"):
        table.add_column(title)
    for name in recipe_names():
        config = open_recipe(name, None).config
        reached = config.reached
        told = (
            reached
            if isinstance(reached, str)
            else ", ".join(f"{k} {v}" for k, v in reached.items())
        )
        table.add_row(*map(escape, (name, config.title, told)))
    console().print(table)


def open_recipe(where: str, settings: list[str] | None, allow_code: bool = False) -> Recipe:
    """The recipe of a name, file or run."""
    with explain_missing("Applications"):
        from towerpack.apps import find_recipe
    with quiet_start():  # A recipe may name a module that loads TensorFlow.
        return find_recipe(where, settings or [], allow_code=allow_code)


def open_run(
    where: str, settings: list[str] | None, run_dir: Path | None, allow_code: bool
) -> tuple[Any, Any]:
    """Runner and display of a run; a recipe's name stands for `runs/NAME`."""
    require("tensorflow", extra="apps", needed_for="Applications")
    with explain_missing("Applications"):
        from towerpack.apps import RECIPE as FILE
        from towerpack.apps import Runner
    recipe = open_recipe(where, settings, allow_code)
    given = run_dir or recipe.run_dir or Path("runs") / recipe.name
    if (given / FILE).is_file():
        recipe = open_recipe(str(given), settings, allow_code)
    runner = Runner.of(recipe, given)
    return runner, recipe.display(runner.inputter)


def _is_setting(text: str) -> bool:
    key, equals, _ = text.partition("=")
    return (
        bool(equals) and key.replace(".", "").replace("_", "").isalnum() and not Path(text).exists()
    )


def _show(rows: Any) -> None:
    out = console()
    for row in rows:
        told = [
            f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}"
            for k, v in row.items()
            if k != "source" and not isinstance(v, list | dict)
        ]
        name = str(row["source"])
        name = name if len(name) <= _LONGEST else f"{name[:_LONGEST]} …"
        out.print(f"{name}: {'  '.join(told)}", markup=False)
