"""`towerpack model`: look at models."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from towerpack._core.columns import aligned
from towerpack._core.errors import ConfigError
from towerpack._core.extras import explain_missing
from towerpack._core.naming import did_you_mean
from towerpack.cli._apps import ALLOW_CODE, open_run
from towerpack.cli._machine import size_text
from towerpack.cli._recipe import load_module, run_user_code

model_app = typer.Typer(help="Look at models.", no_args_is_help=True)
_FORMS = "path/to/file.py, file.py:Name, module:Name, or a run directory"


@model_app.callback()
def _models() -> None:  # pyright: ignore[reportUnusedFunction]
    """Look at models."""


@model_app.command()
def show(
    target: Annotated[str, typer.Argument(metavar="SCRIPT_OR_RUN", help=_FORMS)],
    picture: Annotated[
        Path | None, typer.Option(help="Draw the network: .svg; with Graphviz .png, .pdf too.")
    ] = None,
    training: Annotated[
        bool, typer.Option("--training", help="As it is trained, not as it predicts.")
    ] = False,
    allow_code: ALLOW_CODE = False,
) -> None:
    """Show a model's layers: output, parameters, multiply-adds. Runs the script that has it.

    Of a run of a recipe, the same; of another run, which does not hold its program, the variables
    of the newest checkpoint.
    """
    of_recipe = target.endswith((".yaml", ".yml")) or (Path(target) / "recipe.yaml").is_file()
    if Path(target).is_dir() and not of_recipe:
        if picture or training:
            raise ConfigError(
                "A run directory has variables alone, no layers.", fix="name the script"
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


def model_of(target: str) -> Any:
    """The model that a script or module defines, or makes.

    Raises:
        ConfigError: There is none, or several and none is named.
    """
    from towerpack.describe import is_model
    from towerpack.model import ModelDesc

    where, _, name = target.rpartition(":")
    if not where:
        where, name = target, ""
    if not where.endswith(".py") and not name:
        raise ConfigError(f"{target!r} is no script and no run directory.", expected=_FORMS)
    module = load_module(where)

    def defines(value: Any) -> bool:
        made_here = isinstance(value, type) and value.__module__ == module.__name__
        return is_model(value) or (made_here and issubclass(value, ModelDesc))

    if not name:
        found = [key for key, value in vars(module).items() if defines(value)]
        if len(found) != 1:
            raise ConfigError(
                f"{where} has {'several models' if found else 'no model'}.",
                got=", ".join(found) or None,
                expected="one ModelDesc (or Keras model)",
                fix=f"name {where}:{found[0] if found else 'function_that_returns_a_model'}",
            )
        (name,) = found
    if not hasattr(module, name):
        raise ConfigError(f"{where} has no {name!r}.", fix=did_you_mean(name, vars(module)))
    value = getattr(module, name)
    made = callable(value) and not is_model(value)
    return run_user_code(value, f"{where}:{name} raised") if made else value


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
    made_by = " ".join(record["starts"][-1]["command"]) if record else "not recorded"
    print(f"The script shows the layers: towerpack model show SCRIPT. (Made by: {made_by})")
