"""`towerpack export`: a trained model for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from towerpack._core.errors import ConfigError
from towerpack._core.extras import explain_missing
from towerpack._core.tables import lines_of, read_text
from towerpack.cli._apps import ALLOW_CODE, open_run
from towerpack.cli._model import model_of


def export(
    target: Annotated[
        str,
        typer.Argument(
            metavar="RUN_OR_SCRIPT",
            help="The run of a recipe (or its name); or a script with --run: file.py:Model.",
        ),
    ],
    run: Annotated[
        Path | None, typer.Option(help="Of a script: its run directory, or a checkpoint.")
    ] = None,
    outputs: Annotated[
        str | None,
        typer.Option(help="Of a script: names of outputs: prob or classes=fc1/output,prob"),
    ] = None,
    form: Annotated[
        str, typer.Option("--format", help="saved_model, onnx, litert or keras.")
    ] = "saved_model",
    to: Annotated[
        Path | None, typer.Option(help="Holds the versions; by default RUN/export/FORMAT.")
    ] = None,
    tag: Annotated[
        str | None,
        typer.Option(help="Of a script: the checkpoint kept under this name: best-val/error."),
    ] = None,
    ema: Annotated[bool, typer.Option("--ema", help="Of a script: the averages.")] = False,
    quantize: Annotated[
        str | None, typer.Option(help="onnx: dynamic; litert: float16, dynamic, int8.")
    ] = None,
    examples: Annotated[
        Path | None,
        typer.Option(help="Inputs to compare with and calibrate by: .npz, arrays by name."),
    ] = None,
    class_names: Annotated[
        Path | None, typer.Option(help="A text file with the name of a class in each line.")
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="The greatest difference that is allowed.")
    ] = None,
    version: Annotated[
        int | None, typer.Option(min=0, help="A number; by default the next.")
    ] = None,
    allow_code: ALLOW_CODE = False,
) -> None:
    """Export a trained model, and compare the exported one with it.

    towerpack export runs/digits --format onnx

    towerpack export train.py:Model --run runs/train --outputs prob
    """
    if run is None:
        given = {"outputs": outputs, "tag": tag, "examples": examples, "class_names": class_names}
        _refuse(target, {**given, "ema": ema or None})
        runner, _ = open_run(target, None, None, allow_code)
        options = {"quantize": quantize, "tolerance": tolerance, "version": version}
        print(f"exported: {runner.export(to, format=form, tell=print, **options)}")
        return
    if to is None and not (run / "checkpoints").is_dir():
        raise ConfigError(
            f"{run} is no run directory.", fix="name the folder to write to with --to"
        )
    names = None if class_names is None else lines_of(read_text(class_names))
    export_model(
        model_of(target),
        run,
        run / "export" / form if to is None else to,
        form,
        outputs=dict(_pair(text) for text in (outputs or "prob").split(",")),
        tag=tag,
        ema=ema,
        quantize=quantize,
        batch_examples=None if examples is None else read_examples(examples),
        class_names=names,
        tolerance=tolerance,
        version=version,
    )


def _refuse(target: str, given: dict[str, Any]) -> None:
    """Refuse options of scripts for a recipe, and scripts and runs without what they need.

    Raises:
        ConfigError: There are such.
    """
    script, _, name = target.partition(":")
    if name or script.endswith(".py"):
        raise ConfigError(
            f"{target} needs its run.", fix=f"run `towerpack export {target} --run RUN`"
        )
    if Path(target).is_dir() and not (Path(target) / "recipe.yaml").is_file():
        raise ConfigError(
            f"The run {target} does not hold its program.",
            fix=f"run `towerpack export SCRIPT.py:Model --run {target}`",
        )
    for option, value in given.items():
        if value is not None:
            raise ConfigError(
                f"--{option.replace('_', '-')} is for scripts.",
                fix=f"remove --{option.replace('_', '-')}, which a recipe decides",
            )


def export_model(model: Any, checkpoint: Any, path: Path, form: str, **options: Any) -> Path:
    """Export and say so, line by line.

    Args:
        model: A `ModelDesc`, or the plain functions.
        checkpoint: A run directory, one checkpoint, or a loaded one.
        path: Holds the versions.
        form: Of `towerpack.inference.export`, as are the options.
    """
    with explain_missing("towerpack export"):
        from towerpack.inference import export as write
    written = write(model, checkpoint, path, format=form, tell=print, **options)
    print(f"exported: {written}")
    return written


def read_examples(path: Path) -> dict[str, Any]:
    """The arrays of an npz file.

    Raises:
        ConfigError: It is none.
    """
    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as arrays:
            return dict(arrays)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{path} cannot be read: {error}.",
            fix="write --examples with np.savez('examples.npz', image=images)",
        ) from error


def _pair(text: str) -> tuple[str, str]:
    outer, _, inner = text.partition("=")
    return outer, inner or outer
