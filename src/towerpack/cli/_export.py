from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from towerpack._core.errors import ConfigError
from towerpack._core.extras import explain_missing
from towerpack._core.remote_path import is_url
from towerpack._core.tables import lines_of, read_text
from towerpack.cli._options import ALLOW_CODE
from towerpack.cli._recipe import open_run
from towerpack.cli._user_code import model_of


def export(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_SCRIPT",
            help="Run or name of a recipe; or file.py:Model of a script, with --run.",
        ),
    ],
    run: Annotated[
        str | None, typer.Option(help="Run directory, URL or checkpoint of a script.")
    ] = None,
    outputs: Annotated[
        str | None,
        typer.Option(help="Outputs of a script, such as prob or classes=fc1/output,prob."),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="Format: saved_model, onnx, litert or keras.")
    ] = "saved_model",
    to: Annotated[
        Path | None, typer.Option(help="Directory for the versions (default: RUN/export/FORMAT).")
    ] = None,
    tag: Annotated[
        str | None,
        typer.Option(help="Tag of a script's checkpoint, such as best-val/error."),
    ] = None,
    ema: Annotated[
        bool, typer.Option("--ema", help="Export a script's moving averages of the weights.")
    ] = False,
    quantize: Annotated[
        str | None,
        typer.Option(help="Quantization: dynamic (onnx, litert), float16 or int8 (litert)."),
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(help="An .npz file of inputs by name, for comparison and calibration."),
    ] = None,
    class_names: Annotated[
        Path | None, typer.Option(help="Text file with the name of a class on each line.")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Largest allowed difference of outputs.")
    ] = None,
    version: Annotated[
        int | None, typer.Option(min=0, help="Version number (default: the next).")
    ] = None,
    allow_code: ALLOW_CODE = False,
) -> None:
    """Export a trained model, and check that the exported model computes the same outputs.

    towerpack export runs/digits --format onnx

    towerpack export train.py:Model --run runs/train --outputs prob
    """
    if run is None:
        names = {"outputs": outputs, "tag": tag, "examples": examples, "class-names": class_names}
        _refuse(target, {**names, "ema": ema or None})
        runner, _ = open_run(target, None, None, allow_code)
        options = {"quantize": quantize, "tolerance": tolerance, "version": version}
        print(f"exported: {runner.export(to, format=form, tell=print, **options)}")
        return
    if to is None and not (Path(run) / "checkpoints").is_dir():
        raise ConfigError(
            f"--run must be a run directory if --to is missing, got {run}.",
            fix="pass --to with the directory to write to",
        )
    with explain_missing("towerpack export"):
        from towerpack.checkpoint import read_weights
        from towerpack.inference import export as write
    written = write(
        model_of(target),
        run,
        Path(run) / "export" / form if to is None else to,
        format=form,
        tell=print,
        outputs=dict(_pair(text) for text in (outputs or "prob").split(",")),
        tag=tag,
        ema=ema,
        quantize=quantize,
        batch_examples=None if examples is None else dict(read_weights(examples)[1]),
        class_names=None if class_names is None else lines_of(read_text(class_names)),
        tolerance=tolerance,
        version=version,
    )
    print(f"exported: {written}")


def _refuse(target: str, options: dict[str, Any]) -> None:
    """Raise an error for a script without --run, the run of a script, or options for scripts."""
    script, _, name = target.partition(":")
    if not is_url(target) and (name or script.endswith(".py")):
        raise ConfigError(
            f"The script {target} needs --run, the run directory with its weights.",
            fix=f"run `towerpack export {target} --run RUN`",
        )
    if Path(target).is_dir() and not (Path(target) / "recipe.yaml").is_file():
        raise ConfigError(
            f"The run {target} was started by a script, so its model must be named.",
            fix=f"run `towerpack export SCRIPT.py:Model --run {target}`",
        )
    for option, value in options.items():
        if value is not None:
            raise ConfigError(
                f"--{option} applies only to scripts, because a recipe sets it.",
                fix=f"remove --{option}",
            )


def _pair(text: str) -> tuple[str, str]:
    outer, _, inner = text.partition("=")
    return outer, inner or outer
