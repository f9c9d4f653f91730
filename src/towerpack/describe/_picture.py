"""Diagrams of networks as boxes and arrows. Drawn with Graphviz if installed, else as SVG."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol
from xml.sax.saxutils import escape

from towerpack._core.errors import ConfigError

_COLORS = {"layer": "#dbe9f6", "input": "#e5f5e0", "join": "#f0f0f0"}
_LINE, _GAP, _LETTER = 16, 26, 7.4  # px
_HEAD = """<svg xmlns="http://www.w3.org/2000/svg" width="{:g}" height="{:g}" text-anchor="middle"
 font-family="Helvetica,Arial,sans-serif" font-size="12">
<marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">
<path d="M0 1 L7 4 L0 7 z"/></marker>"""


class Box(Protocol):
    """Box of a diagram, with lines of text and the names of the boxes that point to it."""

    name: str
    kind: str
    sources: list[str]

    @property
    def lines(self) -> list[str]: ...


def save_picture(boxes: Sequence[Box], path: Path) -> None:
    """Draw boxes with arrows to a file. Each box must come after its sources."""
    dot = shutil.which("dot")
    kind = path.suffix.lower().removeprefix(".")
    if dot is None and kind == "svg":
        path.write_text(_svg(boxes), encoding="utf-8")
        return
    if dot is None or not kind:
        reason = "needs Graphviz (the program `dot`)" if kind else "needs a suffix, such as .svg"
        raise ConfigError(
            f"The diagram {path} {reason}.",
            fix="write an .svg file, or install Graphviz and write .png, .pdf or another format",
        )
    command = [dot, f"-T{kind}", "-o", str(path)]
    done = subprocess.run(command, input=_dot(boxes).encode(), capture_output=True, check=False)
    if done.returncode:
        output = done.stderr.decode(errors="replace").strip()
        raise ConfigError(f"Graphviz could not draw {path}: {output}")


def _dot(boxes: Sequence[Box]) -> str:
    lines = ['digraph { node [shape=box style="rounded,filled" fontname=Helvetica fontsize=11]']
    for box in boxes:
        name, label = json.dumps(box.name), json.dumps("\n".join(box.lines), ensure_ascii=False)
        lines.append(f'{name} [label={label} fillcolor="{_COLORS[box.kind]}"]')
        lines += [f"{json.dumps(source)} -> {name}" for source in box.sources]
    return "\n".join([*lines, "}"])


def _svg(boxes: Sequence[Box]) -> str:
    """Return an SVG drawing. Each box is below its sources; arrows that skip rows are curved."""
    row_of: dict[str, int] = {}
    rows: list[list[str]] = []
    for box in boxes:
        row_of[box.name] = row = 1 + max((row_of.get(s, -1) for s in box.sources), default=-1)
        rows += [[] for _ in range(len(rows), row + 1)]
        rows[row].append(box.name)
    wide = _LETTER * max((len(line) for box in boxes for line in box.lines), default=1) + 16
    high = _LINE * max((len(box.lines) for box in boxes), default=1) + 8
    total = max(map(len, rows), default=1) * (wide + _GAP)
    middle = {
        name: (total / 2 + (i - (len(names) - 1) / 2) * (wide + _GAP), row * (high + _GAP) + high)
        for row, names in enumerate(rows)
        for i, name in enumerate(names)
    }
    drawn, swing = [], 0
    for box in boxes:
        x, y = middle[box.name]
        for from_x, from_y in (middle[source] for source in box.sources):
            way = f"M{from_x:g} {from_y + high / 2:g} L{x:g} {y - high / 2:g}"
            passed = round((y - from_y) / (high + _GAP)) - 1
            if passed:
                swing = max(swing, 32 + 8 * abs(passed))
                start, end = from_x + wide / 2, x + wide / 2
                side = max(start, end) + 32 + 8 * abs(passed)
                way = f"M{start:g} {from_y:g} C{side:g} {from_y:g} {side:g} {y:g} {end:g} {y:g}"
            drawn.append(f'<path d="{way}" fill="none" stroke="#444" marker-end="url(#tip)"/>')
        drawn.append(
            f'<rect x="{x - wide / 2:g}" y="{y - high / 2:g}" width="{wide:g}" height="{high:g}" '
            f'rx="5" fill="{_COLORS[box.kind]}"/>'
        )
        for i, line in enumerate(box.lines):
            down = y + (i - (len(box.lines) - 1) / 2) * _LINE + 4
            drawn.append(f'<text x="{x:g}" y="{down:g}">{escape(line)}</text>')
    size = total + swing, len(rows) * (high + _GAP) + high
    return "\n".join([_HEAD.format(*size), *drawn, "</svg>\n"])
