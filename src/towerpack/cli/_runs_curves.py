"""`towerpack runs ls`, `compare` and `plot`: runs beside each other."""

from __future__ import annotations

import datetime
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.text import Text

from towerpack._core.errors import ConfigError
from towerpack._core.extras import require
from towerpack._core.naming import did_you_mean, dotted
from towerpack._core.yaml_text import parse_yaml
from towerpack.cli._ckpt import plain_table
from towerpack.cli._console import console
from towerpack.cli._runs import record_of, state_of, stats_of

if TYPE_CHECKING:
    from towerpack.callbacks.monitors import Record

_COLOURS = ("cyan", "magenta", "yellow", "green", "red", "blue")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # of a character of Braille, by x, y
_Runs = Annotated[list[Path], typer.Argument(metavar="DIR...", help="Run directories.")]
_Match = Annotated[str, typer.Option(help="Only numbers whose name has this expression.")]
Curve = tuple[list[int], list[float]]


def ls(
    path: Annotated[Path, typer.Argument(metavar="DIR", help="Where runs are.")] = Path("runs"),
    match: _Match = r"^cost$|^val/",
) -> None:
    """List the runs below a directory: when they began, their state, their last numbers."""
    found = sorted(p.parent for p in [*path.glob("run.json"), *path.glob("**/run.json")])
    if not found:
        raise ConfigError(f"There is no run below {path}.", expected="directories with a run.json")
    table = plain_table()
    for name in ("run", "began", "state", "epoch", "step", "last numbers"):
        table.add_column(name, justify="right" if name in ("epoch", "step") else "left")
    for run in dict.fromkeys(found):
        records = _records(run)
        last = {n: v for record in records for n, v in record.scalars.items()}
        shown = ", ".join(f"{n} {v:.4g}" for n, v in last.items() if _expression(match).search(n))
        began = datetime.datetime.fromtimestamp(float(record_of(run)["starts"][0]["unix_time"]))
        table.add_row(
            escape(str(run)),
            f"{began:%Y-%m-%d %H:%M}",
            escape(state_of(run)),
            f"{records[-1].epoch:,}" if records else "",
            f"{records[-1].step:,}" if records else "",
            escape(shown),
        )
    console().print(table)


def compare(runs: _Runs, match: _Match = "") -> None:
    """Compare runs: settings in which they differ; of each number the last, lowest and highest."""
    found = {str(run): _curves(run, match) for run in runs}
    table = plain_table()
    table.add_column("", style="cyan")
    for run in found:
        table.add_column(escape(run), overflow="fold")
    settings = [_settings(run) for run in runs]
    for name in dict.fromkeys(n for own in settings for n in own):
        values = [own.get(name, "") for own in settings]
        if len(set(values)) > 1:
            short = [v if len(v) < 200 else f"{v[:120]} … {v[-60:]}" for v in values]
            table.add_row(escape(name), *map(escape, short), style="dim")
    table.add_section()
    for name in dict.fromkeys(n for curves in found.values() for n in curves):
        table.add_row(escape(name), *(_span(curves.get(name)) for curves in found.values()))
    console().print(table)


def plot(
    runs: _Runs,
    match: _Match = r"^cost$|^val/",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="A PNG, PDF or SVG; else the terminal.")
    ] = None,
) -> None:
    """Draw curves of runs, one picture for each number, one line for each run."""
    found = {str(run): _curves(run, match) for run in runs}
    names = list(dict.fromkeys(name for curves in found.values() for name in curves))
    every = [item for run in runs for record in _records(run) for item in record.scalars.items()]
    odd = Counter(n for n, v in every if not math.isfinite(v) and _expression(match).search(n))
    if not names:
        raise ConfigError(
            f"No value of {', '.join(odd)} is finite."
            if odd
            else f"No number's name has the expression {match!r}.",
            fix=None if odd else did_you_mean(match, [name for name, _ in every]),
        )
    for name, count in odd.items():
        console().print(escape(f"{name}: {count} values that are not finite are left out."))
    pictures = {
        name: {run: curves[name] for run, curves in found.items() if name in curves}
        for name in names
    }
    if output is not None:
        _draw(output, pictures, list(found))
        console().print(f"{len(names)} curves are in {escape(str(output))}.")
        return
    for name, curves in pictures.items():
        _print(name, curves, list(found))


def _records(run: Path) -> list[Record]:
    record_of(run)
    return stats_of(run)


def _expression(match: str) -> re.Pattern[str]:
    try:
        return re.compile(match)
    except re.error as error:
        raise ConfigError(f"--match {match!r} is no regular expression: {error}.") from error


def _curves(run: Path, match: str) -> dict[str, Curve]:
    """Steps and finite values of each number."""
    pattern = _expression(match)
    found: dict[str, Curve] = {}
    for record in _records(run):
        for name, value in record.scalars.items():
            if pattern.search(name) and math.isfinite(value):
                xs, ys = found.setdefault(name, ([], []))
                xs.append(record.step)
                ys.append(value)
    return found


def _settings(run: Path) -> dict[str, str]:
    """Return the settings of a run, those of its recipe included."""
    record = record_of(run)
    given = {**record.get("config", {}), **record.get("settings", {}), "seed": record.get("seed")}
    if (recipe := run / "recipe.yaml").is_file():
        given |= dotted(parse_yaml(recipe.read_text("utf-8")))
    return {n: _ADDRESS.sub("", str(value)) for n, value in given.items() if n != "run_dir"}


def _span(curve: Curve | None) -> str:
    if curve is None:
        return ""
    ys = curve[1]
    return f"[bold]{ys[-1]:.4g}[/]  [dim]{min(ys):.4g} to {max(ys):.4g}[/]"


def _draw(path: Path, pictures: Mapping[str, Mapping[str, Curve]], runs: Sequence[str]) -> None:
    figures: Any = require("matplotlib.figure", extra="demo", needed_for="A picture of curves")
    columns = math.ceil(math.sqrt(len(pictures)))
    rows = math.ceil(len(pictures) / columns)
    figure = figures.Figure(figsize=(6 * columns, 3.6 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    lines: dict[str, Any] = {}
    for ax, (name, curves) in zip(axes, pictures.items(), strict=False):
        for run, (xs, ys) in curves.items():
            marker = "." if len(xs) < 50 else None
            [lines[run]] = ax.plot(xs, ys, f"C{runs.index(run) % 10}", label=run, marker=marker)
        ax.set(title=name, xlabel="step")
        ax.grid(alpha=0.3)
    for ax in axes[len(pictures) :]:
        ax.remove()
    axes[0].legend(handles=[lines[run] for run in runs if run in lines])
    try:
        figure.savefig(path, dpi=120)
    except ValueError as error:
        raise ConfigError(f"-o {path}: {error}.", fix="write to -o curves.png") from error


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
    colours = {run: _COLOURS[i % len(_COLOURS)] for i, run in enumerate(runs)}
    for run, (xs, ys) in curves.items():
        at = np.linspace(left, right, width)
        inside = np.flatnonzero((at >= xs[0]) & (at <= xs[-1]))
        scaled = (np.interp(at[inside], xs, ys) - low) / ((top - low) or 1)
        dots = np.rint((1 - scaled) * (rows * high - 1)).astype(int).tolist()
        for x, y, before in zip(inside.tolist(), dots, [dots[0], *dots[:-1]], strict=True):
            for dot in range(min(y, before), max(y, before) + 1):
                bits = cells[dot // high][x // wide][0] | _DOTS[x % wide][dot % high]
                cells[dot // high][x // wide] = (bits, colours[run])
    out.print(Text(name, "bold"))
    for number, row in enumerate(cells):
        label = {0: f"{top:.4g}", rows - 1: f"{low:.4g}"}.get(number, "")
        line = Text(f"{label:>10} {'|' if plain else '┤'}", "dim")
        for bits, colour in row:
            line.append(("*" if plain else chr(0x2800 + bits)) if bits else " ", colour)
        out.print(line)
    first, last = f"{left:,}", f"{right:,}"
    out.print(Text(f"{'':11}{first} {last:>{max(1, width // wide - len(first))}}", "dim"))
    for run, (_, ys) in curves.items():
        out.print(Text(f"{'':11}{run}: {ys[-1]:.4g}", colours[run]))
