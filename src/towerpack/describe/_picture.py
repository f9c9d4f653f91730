"""Boxes and arrows, downwards: by Graphviz where it is installed, else as SVG of our own."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from towerpack._core.errors import ConfigError

_COLOURS = {"layer": "#dbe9f6", "input": "#e5f5e0", "join": "#f0f0f0"}
_LINE, _MARGIN, _GAP, _LETTER = 16, 8, 26, 7.4  # px


@dataclass(frozen=True)
class Box:
    """What is drawn: lines of text, and the names of the boxes from which arrows come."""

    name: str
    kind: str
    lines: Sequence[str]
    sources: Sequence[str]


def save_picture(boxes: Sequence[Box], path: Path) -> None:
    """Write a picture of boxes, each after those that feed it.

    Raises:
        ConfigError: The format needs Graphviz, which is not installed, or it failed.
    """
    dot = shutil.which("dot")
    kind = path.suffix.lower().removeprefix(".")
    if dot is None and kind == "svg":
        path.write_text(_svg(boxes), encoding="utf-8")
        return
    if dot is None or not kind:
        raise ConfigError(
            f"The picture {path} cannot be drawn.",
            got="a name without an ending" if not kind else "no program `dot` (Graphviz)",
            expected=".svg, or with Graphviz .png, .pdf and others",
            fix="install Graphviz, or ask for a name that ends in .svg",
        )
    command = [dot, f"-T{kind}", "-o", str(path)]
    done = subprocess.run(command, input=_dot(boxes).encode(), capture_output=True, check=False)
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise ConfigError(f"Graphviz could not draw {path}.", got=said)


def _dot(boxes: Sequence[Box]) -> str:
    def quoted(text: str) -> str:
        return json.dumps(text, ensure_ascii=False)

    lines = ['node [shape=box, style="rounded,filled", fontname="Helvetica", fontsize=11]']
    for box in boxes:
        label = quoted("\n".join(box.lines))
        lines.append(f'{quoted(box.name)} [label={label}, fillcolor="{_COLOURS[box.kind]}"]')
        lines += [f"{quoted(source)} -> {quoted(box.name)}" for source in box.sources]
    return "\n".join(["digraph model {", *lines, "}"])


def _svg(boxes: Sequence[Box]) -> str:
    """Rows of boxes, each below all that feed it; arrows that pass rows swing out to the right."""
    rows: dict[str, int] = {}
    columns: dict[int, list[str]] = {}
    for box in boxes:
        rows[box.name] = 1 + max((rows[s] for s in box.sources if s in rows), default=-1)
        columns.setdefault(rows[box.name], []).append(box.name)
    width = _LETTER * max((len(line) for b in boxes for line in b.lines), default=1) + 2 * _MARGIN
    high = _LINE * max((len(box.lines) for box in boxes), default=1) + _MARGIN
    most = max(map(len, columns.values()), default=1)

    def place(name: str) -> tuple[float, float]:
        """The middle of a box's upper edge."""
        row = columns[rows[name]]
        left = (most - len(row)) / 2 + row.index(name)
        return left * (width + _GAP) + width / 2 + _MARGIN, rows[name] * (high + _GAP) + _MARGIN

    arrows, shapes, swing = [], [], 0.0
    for box in boxes:
        x, y = place(box.name)
        for source in box.sources:
            from_x, from_y = place(source)
            if rows[box.name] == rows[source] + 1:
                way = f"M{from_x:g} {from_y + high:g} L{x:g} {y:g}"
            else:
                out = 24 + 8 * abs(rows[box.name] - rows[source])
                swing = max(swing, out)
                start, end = from_x + width / 2, x + width / 2
                side = max(start, end) + out
                way = (
                    f"M{start:g} {from_y + high / 2:g} "
                    f"C{side:g} {from_y + high / 2:g} {side:g} {y + high / 2:g} "
                    f"{end:g} {y + high / 2:g}"
                )
            arrows.append(f'<path d="{way}" marker-end="url(#tip)"/>')
        shapes.append(
            f'<rect x="{x - width / 2:g}" y="{y:g}" width="{width:g}" height="{high:g}" rx="5" '
            f'fill="{_COLOURS[box.kind]}"/>'
        )
        first = y + (high - _LINE * len(box.lines)) / 2 + 12
        for i, line in enumerate(box.lines):
            shapes.append(f'<text x="{x:g}" y="{first + i * _LINE:g}">{escape(line)}</text>')
    size = most * (width + _GAP) + swing + _MARGIN, len(columns) * (high + _GAP) + _MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{size[0]:g}" height="{size[1]:g}" '
            'font-family="Helvetica,Arial,sans-serif" font-size="12" text-anchor="middle">',
            '<marker id="tip" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
            '<path d="M0 1 L7 4 L0 7 z"/></marker>',
            '<g fill="none" stroke="#444">',
            *arrows,
            "</g>",
            *shapes,
            "</svg>\n",
        ]
    )
