"""`towerpack ckpt diff`, `convert` and `average`: weights of any source that `SmartInit` reads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from towerpack._core.errors import CheckpointMismatchError, ConfigError
from towerpack._core.extras import explain_missing, require
from towerpack.cli._ckpt import plain_table
from towerpack.cli._console import console

if TYPE_CHECKING:
    import numpy as np

    Weights = Mapping[str, np.ndarray]

_SOURCE = "A run (its newest checkpoint), a checkpoint, a file of weights, or a packaged network."
_Tag = Annotated[str | None, typer.Option(help="Of a run: the one kept under this tag.")]
_Ema = Annotated[bool, typer.Option("--ema", help="Of a run: the averages of WeightEMA.")]
_Output = Annotated[
    Path, typer.Option("--output", "-o", help="weights.npz or .safetensors; not there yet.")
]


def diff(
    one: Annotated[str, typer.Argument(help=_SOURCE)],
    other: Annotated[str, typer.Argument(help=_SOURCE)],
    tolerance: Annotated[
        float, typer.Option(help="Differences up to this count as none.", min=0)
    ] = 0.0,
) -> None:
    """Show in which weights two checkpoints differ; exit code 1 if they do.

    For each: the largest difference of two numbers, and the norm of all differences over the norm
    of the first one's numbers. NaN equals NaN.
    """
    ours, theirs = _read(one), _read(other)
    table = plain_table()
    table.add_column("name", overflow="fold", style="cyan")
    for heading in ("shape", "largest difference", "relative"):
        table.add_column(heading, justify="right", no_wrap=True)
    same = 0
    for name in [*ours, *(n for n in theirs if n not in ours)]:
        row = _difference(ours.get(name), theirs.get(name), tolerance)
        same += not row
        if row:
            table.add_row(escape(name), *row)
    if table.row_count:
        console().print(table)
    console().print(f"{table.row_count} differ, {same} are the same.", style="bold")
    if table.row_count:
        raise typer.Exit(1)


def convert(
    source: Annotated[str, typer.Argument(help=_SOURCE)],
    output: _Output,
    tag: _Tag = None,
    ema: _Ema = False,
) -> None:
    """Write weights into one file, by name: npz or safetensors."""
    weights = _read(source, tag=tag, ema=ema)
    _write(output, weights)
    console().print(f"{len(weights)} tensors are in {escape(str(output))}.")


def average(
    sources: Annotated[list[str], typer.Argument(help=f"{_SOURCE} At least two.")],
    output: _Output,
) -> None:
    """Average the weights of checkpoints (Vaswani et al. 2017, section 6.1).

    Integers are those of the last one. Moving averages of batch normalisation are averaged, too,
    which fits the averaged weights roughly: evaluate the result.
    """
    import numpy as np

    if len(sources) < 2:
        raise ConfigError(
            "One source has no average.",
            fix="name several, such as run/checkpoints/step-0000[789]*",
        )
    sums: dict[str, np.ndarray] = {}
    weights: Weights = {}
    for source in sources:
        weights = {name: np.asarray(value) for name, value in _read(source).items()}
        found = {name: value.shape for name, value in weights.items()}
        wanted = {name: value.shape for name, value in sums.items()}
        if sums and found != wanted:
            unlike = sorted(n for n in {**found, **wanted} if found.get(n) != wanted.get(n))
            raise CheckpointMismatchError(
                f"{source} does not have the tensors of {sources[0]}.", got=", ".join(unlike[:20])
            )
        for name, value in weights.items():
            wide = value.astype(np.float64) if _is_float(value) else value
            sums[name] = sums[name] + wide if _is_float(value) and name in sums else wide
    averaged = {
        name: (sums[name] / len(sources)).astype(value.dtype) if _is_float(value) else value
        for name, value in weights.items()
    }
    _write(output, averaged)
    console().print(f"The average of {len(sources)} is in {escape(str(output))}.")


def _read(source: str, *, tag: str | None = None, ema: bool = False) -> Weights:
    with explain_missing("towerpack ckpt"):
        from towerpack.checkpoint import load_checkpoint
        from towerpack.training.weights.foreign import read_arrays
    if tag is not None or ema:
        checkpoint = load_checkpoint(source, tag=tag)
        return checkpoint.averaged if ema else checkpoint.model
    _, weights, is_part = read_arrays(source)
    return _by_name(source, weights) if is_part and Path(source).suffix == ".keras" else weights


def _by_name(source: str, numbered: Weights) -> Weights:
    """Weights as the model in a file of Keras names them, where Keras can build it."""
    keras: Any = require("keras", extra="tf", needed_for="A file of Keras")
    try:
        model = keras.saving.load_model(source, compile=False)
    except (TypeError, ValueError):  # layers of one's own
        return numbered
    return {v.path.removeprefix(f"{model.name}/"): v.value.numpy() for v in model.variables}


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _difference(one: Any, other: Any, tolerance: float) -> Sequence[str]:
    """The cells of a row; none if they are the same."""
    import numpy as np

    if one is None or other is None:
        there: Any = other if one is None else one
        return _shape(there), "only in the " + ("second" if one is None else "first"), ""
    if one.shape != other.shape or one.dtype != other.dtype:
        return f"{_shape(one)} {one.dtype.name}", f"{_shape(other)} {other.dtype.name}", ""
    if one.dtype.kind not in "fc" and not _is_float(one):
        count = int((one != other).sum())
        return (_shape(one), f"{count:,} numbers", "") if count else ()
    a, b = (x.astype(np.complex128 if x.dtype.kind == "c" else np.float64) for x in (one, other))
    with np.errstate(invalid="ignore"):
        gaps = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0, abs(a - b))
    if not gaps.size or gaps.max() <= tolerance:  # NaN, of one alone, is no match
        return ()
    norm = float(np.linalg.norm(a))
    relative = f"{float(np.linalg.norm(gaps)) / norm:.3g}" if norm else ""
    return _shape(one), f"{float(gaps.max()):.3g}", relative


def _shape(array: np.ndarray) -> str:
    return " × ".join(map(str, array.shape)) or "scalar"


def _write(path: Path, weights: Weights) -> None:
    import numpy as np

    from towerpack.checkpoint._tensors import specs_of, write_tensors

    if path.suffix not in (".npz", ".safetensors") or path.exists():
        raise ConfigError(
            f"{path} is there already." if path.exists() else f"-o {path}: no such format.",
            expected="a new file, .npz or .safetensors",
        )
    arrays = {name: np.asarray(value) for name, value in weights.items()}
    kinds = {name: dtype for name, (_, dtype) in specs_of(arrays, "weights").items()}
    if path.suffix == ".npz" and "bfloat16" in kinds.values():
        raise ConfigError("npz cannot hold bfloat16.", fix="write to -o weights.safetensors")
    part = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        if path.suffix == ".npz":
            np.savez(part, **arrays)  # pyright: ignore[reportArgumentType] - names are free
        else:
            write_tensors(part, arrays)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
