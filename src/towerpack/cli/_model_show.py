from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from towerpack._core.columns import aligned
from towerpack._core.errors import ConfigError
from towerpack._core.extras import explain_missing
from towerpack.cli._console import visible
from towerpack.cli._machine import size_text
from towerpack.cli._options import ALLOW_CODE
from towerpack.cli._recipe import open_run
from towerpack.cli._user_code import MODEL_FORMS, model_of, run_user_code


def show(
    target: Annotated[str, typer.Argument(metavar="SCRIPT_OR_RUN", help=f"{MODEL_FORMS}.")],
    picture: Annotated[
        Path | None, typer.Option(help="File for a drawing: .svg; with Graphviz also .png, .pdf.")
    ] = None,
    training: Annotated[
        bool,
        typer.Option("--training", help="Show the model in training mode, not in inference mode."),
    ] = False,
    allow_code: ALLOW_CODE = False,
) -> None:
    """Show the layers of a model with output shapes, parameters and multiply-adds.

    Runs the script of the model. For the run directory of a script, show the variables of the
    newest checkpoint, because the directory does not contain the script.
    """
    of_recipe = target.endswith((".yaml", ".yml")) or (Path(target) / "recipe.yaml").is_file()
    if Path(target).is_dir() and not of_recipe:
        if picture or training:
            raise ConfigError(
                "--picture and --training need layers, which a run directory does not contain.",
                fix="pass the script instead of the run directory",
            )
        _show_run(Path(target))
        return
    runner = open_run(target, None, None, allow_code)[0] if of_recipe else None
    with explain_missing("towerpack model"):
        from towerpack.describe import model_summary
    model = runner.modeler if runner else model_of(target)
    summary: Any = run_user_code(
        lambda: model_summary(model, is_training=training),
        f"building the model of {target} raised",
    )
    print(summary)
    if picture is not None:
        summary.save_picture(picture)


def _show_run(run: Path) -> None:
    with explain_missing("towerpack model"):
        from towerpack.checkpoint import load_checkpoint
        from towerpack.training.state.run_dir import read_record
    checkpoint = load_checkpoint(run)
    specs = checkpoint.tensors["model"].specs
    counts = {name: math.prod(shape) for name, (shape, _) in specs.items()}
    nbytes = {name: checkpoint.tensors["model"][name].nbytes for name in specs}
    table = [("variable", "shape", "parameters", "size")]
    table += [
        (name, str(list(shape)), f"{counts[name]:,}", size_text(nbytes[name]))
        for name, (shape, _) in specs.items()
    ]
    table.append(("total", "", f"{sum(counts.values()):,}", size_text(sum(nbytes.values()))))
    print("\n".join([f"Variables in {checkpoint.path}:", *aligned(table, "<<>>")]))
    record = read_record(run)
    command = " ".join(record["starts"][-1]["command"]) if record else "not recorded"
    print(f"For layers, run: towerpack model show SCRIPT. (Command of the run: {visible(command)})")
