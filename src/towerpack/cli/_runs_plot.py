from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from towerpack._core.errors import ConfigError
from towerpack._core.naming import did_you_mean
from towerpack._display.figures import without_latex
from towerpack.cli._console import console, escape
from towerpack.cli._options import MATCH, RUNS
from towerpack.cli._run import Curve, compiled, curves_of, directories_of, stats_of

_COLORS = ("cyan", "magenta", "yellow", "green", "red", "blue")
# Bits of the dots of a Braille character, by column and row.
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def plot(
    runs: RUNS,
    match: MATCH = r"^cost$|^val/",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="PNG, PDF or SVG file (default: draw in the terminal)."
        ),
    ] = None,
) -> None:
    """Plot the curves of runs: one plot per monitored name, one line per run."""
    folders = directories_of(runs)
    by_run = {run: curves_of(folder, match) for run, folder in folders.items()}
    names = list(dict.fromkeys(name for curves in by_run.values() for name in curves))
    records = [record for folder in folders.values() for record in stats_of(folder)]
    every = [item for record in records for item in record.scalars.items()]
    odd = Counter(n for n, v in every if not math.isfinite(v) and compiled(match).search(n))
    if not names and odd:
        raise ConfigError(f"All values of {', '.join(odd)} are NaN or infinite.")
    if not names:
        raise ConfigError(
            f"No monitored name matches {match!r}.",
            fix=did_you_mean(match, [name for name, _ in every]),
        )
    for name, count in odd.items():
        console().print(escape(f"{name}: skipped {count} values that are not finite."))
    plots = {
        name: {run: curves[name] for run, curves in by_run.items() if name in curves}
        for name in names
    }
    if output is not None:
        _draw(output, plots, list(by_run))
        console().print(f"Wrote {len(names)} plots to {escape(str(output))}.")
        return
    for name, curves in plots.items():
        _print(name, curves, list(by_run))


@without_latex()
def _draw(path: Path, plots: Mapping[str, Mapping[str, Curve]], runs: Sequence[str]) -> None:
    from matplotlib.figure import Figure

    columns = math.ceil(math.sqrt(len(plots)))
    rows = math.ceil(len(plots) / columns)
    figure: Any = Figure(figsize=(6 * columns, 3.6 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    lines: dict[str, Any] = {}
    for ax, (name, curves) in zip(axes, plots.items(), strict=False):
        for run, (xs, ys) in curves.items():
            marker = "." if len(xs) < 50 else None
            [lines[run]] = ax.plot(xs, ys, f"C{runs.index(run) % 10}", label=run, marker=marker)
        ax.set(title=name.replace("$", r"\$"), xlabel="step")  # not a formula
        ax.grid(alpha=0.3)
    for ax in axes[len(plots) :]:
        ax.remove()
    axes[0].legend(handles=[lines[run] for run in runs if run in lines])
    try:
        figure.savefig(path, dpi=120)
    except ValueError as error:
        raise ConfigError(
            f"The plots cannot be written to {path}: {error}.", fix="pass -o curves.png"
        ) from error


def _print(name: str, curves: Mapping[str, Curve], runs: Sequence[str], rows: int = 12) -> None:
    import numpy as np

    out = console()
    plain = out.options.ascii_only
    wide, high = (1, 1) if plain else (2, 4)
    width = max(20, min(out.width - 14, 90)) * wide
    every: Sequence[Curve] = list(curves.values())
    left, right = min(min(xs) for xs, _ in every), max(max(xs) for xs, _ in every)
    low, top = min(min(ys) for _, ys in every), max(max(ys) for _, ys in every)
    cells = [[(0, "")] * (width // wide) for _ in range(rows)]
    colors = {run: _COLORS[i % len(_COLORS)] for i, run in enumerate(runs)}
    for run, (xs, ys) in curves.items():
        steps = np.linspace(left, right, width)
        inside = np.flatnonzero((steps >= xs[0]) & (steps <= xs[-1]))
        scaled = (np.interp(steps[inside], xs, ys) - low) / ((top - low) or 1)
        dots = np.rint((1 - scaled) * (rows * high - 1)).astype(int).tolist()
        for x, y, before in zip(inside.tolist(), dots, [dots[0], *dots[:-1]], strict=True):
            for dot in range(min(y, before), max(y, before) + 1):
                bits = cells[dot // high][x // wide][0] | _DOTS[x % wide][dot % high]
                cells[dot // high][x // wide] = (bits, colors[run])
    out.print(Text(name, "bold"))
    for number, row in enumerate(cells):
        label = {0: f"{top:.4g}", rows - 1: f"{low:.4g}"}.get(number, "")
        line = Text(f"{label:>10} {'|' if plain else '┤'}", "dim")
        for bits, color in row:
            line.append(("*" if plain else chr(0x2800 + bits)) if bits else " ", color)
        out.print(line)
    first, last = f"{left:,}", f"{right:,}"
    out.print(Text(f"{'':11}{first} {last:>{max(1, width // wide - len(first))}}", "dim"))
    for run, (_, ys) in curves.items():
        out.print(Text(f"{'':11}{run}: {ys[-1]:.4g}", colors[run]))
