from __future__ import annotations

import re
from pathlib import Path

from towerpack._core.naming import dotted
from towerpack.cli._console import console, escape, table
from towerpack.cli._options import MATCH, RUNS
from towerpack.cli._run import Curve, curves_of, directories_of, record_of

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def compare(runs: RUNS, match: MATCH = "") -> None:
    """Show settings that differ between runs, and the last, lowest and highest metric values."""
    folders = directories_of(runs)
    by_run = {run: curves_of(folder, match) for run, folder in folders.items()}
    rows = table("", *map(escape, by_run))
    settings = [_settings(folder) for folder in folders.values()]
    for name in dict.fromkeys(n for some in settings for n in some):
        values = [some.get(name, "") for some in settings]
        if len(set(values)) > 1:
            short = [v if len(v) < 200 else f"{v[:120]} … {v[-60:]}" for v in values]
            rows.add_row(escape(name), *map(escape, short), style="dim")
    rows.add_section()
    for name in dict.fromkeys(n for curves in by_run.values() for n in curves):
        rows.add_row(escape(name), *(_span(curves.get(name)) for curves in by_run.values()))
    console().print(rows)


def _settings(run: Path) -> dict[str, str]:
    record = record_of(run)
    from towerpack.config import read_yaml

    values = {**record.get("config", {}), **record.get("settings", {}), "seed": record.get("seed")}
    if (recipe := run / "recipe.yaml").is_file():
        values |= dotted(read_yaml(recipe))
    return {n: _ADDRESS.sub("", str(value)) for n, value in values.items() if n != "run_dir"}


def _span(curve: Curve | None) -> str:
    if curve is None:
        return ""
    ys = curve[1]
    return f"[bold]{ys[-1]:.4g}[/]  [dim]{min(ys):.4g} to {max(ys):.4g}[/]"
