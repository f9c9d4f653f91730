from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from towerpack._core.columns import aligned
from towerpack._core.errors import ConfigError
from towerpack._core.extras import explain_missing
from towerpack.cli._options import JSON_LINES

if TYPE_CHECKING:
    from towerpack.inference import ExportedModel

_WARM_UP = 3
_FEWEST = 5
_HEADER = ("model", "runtime", "batch", "median ms", "p95 ms", "per second")


def bench(
    exports: Annotated[
        list[Path],
        typer.Argument(metavar="EXPORT_DIR…", help="Directories written by `towerpack export`."),
    ],
    batch: Annotated[str, typer.Option(help="Batch sizes to measure.")] = "1,8,32",
    seconds: Annotated[
        float, typer.Option(min=0.01, help="Seconds to measure each row of the table.")
    ] = 2.0,
    signature: Annotated[
        str | None, typer.Option(help="Signature to call (default: tensors, if it exists).")
    ] = None,
    as_json: JSON_LINES = False,
) -> None:
    """Measure latency and throughput of exported models on random inputs, one call at a time."""
    if not all(text.isdecimal() and int(text) for text in batch.split(",")):
        raise ConfigError(
            f"--batch must be positive integers separated by commas, got {batch}.",
            fix="pass batch sizes, such as --batch 1,8,32",
        )
    sizes = [int(text) for text in batch.split(",")]
    rows = [row for path in exports for row in _measured(path, sizes, seconds, signature)]
    if as_json:
        for row in rows:
            typer.echo(json.dumps(row))
        return
    cells = [
        (
            *(str(row[key]) for key in ("model", "runtime", "batch")),
            *(f"{row[key] * 1000:.2f}" for key in ("median_s", "p95_s")),
            f"{row['per_s']:,.0f}",
        )
        for row in rows
    ]
    print("\n".join(aligned([_HEADER, *cells], "<<>>>>")))


def _measured(
    path: Path, sizes: list[int], seconds: float, signature: str | None
) -> Iterator[dict[str, Any]]:
    with explain_missing("towerpack bench"):
        from towerpack.inference import installed_runtimes, load_exported
    for runtime in installed_runtimes(path):
        model = load_exported(path, runtime)
        name = signature or ("tensors" if "tensors" in model.signatures else "serving_default")
        if name not in model.signatures:
            raise ConfigError(
                f"{path} has no signature {name!r}.", expected=", ".join(model.signatures)
            )
        # Models with a fixed batch size are measured only with this size.
        fixed = {i.shape[0] for i in model.signatures[name].inputs.values() if i.shape} - {None}
        for rows in sorted(n for n in fixed if n) or sizes:
            yield {"model": str(model.path), **_timed(model, name, rows, seconds)}


def _timed(model: ExportedModel, signature: str, rows: int, seconds: float) -> dict[str, Any]:
    inputs = model.signatures[signature].random_inputs(rows)
    for _ in range(_WARM_UP):
        model.run(inputs, signature)
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < _FEWEST or time.perf_counter() - began < seconds:
        start = time.perf_counter()
        model.run(inputs, signature)
        times.append(time.perf_counter() - start)
    return {
        "runtime": model.runtime,
        "signature": signature,
        "batch": rows,
        "calls": len(times),
        "median_s": statistics.median(times),
        "p95_s": statistics.quantiles(times, n=20, method="inclusive")[-1],
        "per_s": rows * len(times) / sum(times),
    }
