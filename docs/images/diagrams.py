"""Draw `loop.svg`, `datapoint.svg`, `replicas.svg` and `kill.svg`.

    python docs/images/diagrams.py

Each drawing has a white background, so that it can be read on dark pages, and is narrow enough for
a phone. Coordinates are pixels from the top left corner.
"""

from __future__ import annotations

from html import escape
from itertools import pairwise
from pathlib import Path
from typing import Final

HERE = Path(__file__).parent
WIDTH: Final = 640

INK, MUTED, LINE = "#1f2933", "#52606d", "#7b8794"
BLUE, BLUE_FILL = "#0b6e99", "#dff1f9"
ORANGE, ORANGE_FILL = "#c2410c", "#fdeadd"
GRAY_FILL = "#eef1f4"
COLORS = {"blue": (BLUE, BLUE_FILL), "orange": (ORANGE, ORANGE_FILL), "gray": (LINE, GRAY_FILL)}


class Drawing:
    """SVG elements, in the order in which they are drawn."""

    def __init__(self, height: int, title: str) -> None:
        self.height = height
        self.title = title
        self.elements: list[str] = []

    def box(
        self,
        x: int,
        y: int,
        width: int,
        height: int,
        text: str = "",
        color: str = "gray",
        *,
        note: str = "",
        dashed: bool = False,
    ) -> None:
        """Draw a box with centered text and, below it, a smaller note."""
        stroke, fill = COLORS[color]
        dash = ' stroke-dasharray="6 4"' if dashed else ""
        self.elements.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="7" '
            f'fill="{"none" if dashed else fill}" stroke="{stroke}" stroke-width="1.5"{dash}/>'
        )
        middle = x + width // 2
        center = y + height // 2 + 6 - (10 if note else 0)
        if text:
            self.text(middle, center, text, anchor="middle", bold=True)
        if note:
            self.text(middle, center + 20, note, anchor="middle", size=14, color=MUTED)

    def text(
        self,
        x: int,
        y: int,
        text: str,
        *,
        anchor: str = "start",
        size: int = 16,
        color: str = INK,
        bold: bool = False,
    ) -> None:
        """Write a line of text; `y` is its baseline."""
        weight = ' font-weight="600"' if bold else ""
        self.elements.append(
            f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" '
            f'fill="{color}"{weight}>{escape(text)}</text>'
        )

    def arrow(self, *points: tuple[int, int], color: str = LINE) -> None:
        """Draw lines through the points, with an arrow head at the last one."""
        path = " ".join(f"{'L' if i else 'M'}{x} {y}" for i, (x, y) in enumerate(points))
        (x0, y0), (x, y) = points[-2:]
        dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
        left = f"{x - 9 * dx + 5 * dy} {y - 9 * dy + 5 * dx}"
        right = f"{x - 9 * dx - 5 * dy} {y - 9 * dy - 5 * dx}"
        self.elements += [
            f'<path d="{path}" fill="none" stroke="{color}" stroke-width="2"/>',
            f'<path d="M{x} {y} L{left} L{right} Z" fill="{color}"/>',
        ]

    def line(self, x0: int, y0: int, x1: int, y1: int, color: str = LINE, width: int = 2) -> None:
        """Draw a straight line."""
        self.elements.append(
            f'<path d="M{x0} {y0} L{x1} {y1}" stroke="{color}" stroke-width="{width}"/>'
        )

    def save(self, name: str) -> None:
        """Write the file."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {self.height}" '
            f'width="{WIDTH}" height="{self.height}" role="img" '
            'font-family="Segoe UI, Roboto, Helvetica, Arial, sans-serif">'
        )
        background = f'<rect width="{WIDTH}" height="{self.height}" rx="10" fill="#ffffff"/>'
        title = f"<title>{escape(self.title)}</title>"
        lines = [head, title, background, *self.elements, "</svg>", ""]
        (HERE / name).write_text("\n".join(lines))


def loop() -> None:
    """The hooks of callbacks, in the order in which a trainer calls them."""
    d = Drawing(780, "The loop of a trainer and the hooks of callbacks")
    x, width, notes = 60, 230, 330

    def hook(y: int, name: str, note: str = "", color: str = "blue") -> None:
        d.box(x, y, width, 36, name, color)
        d.text(notes, y + 24, note, size=15, color=MUTED)

    middle = x + width // 2
    hook(20, "setup", "check arguments, call fetch")
    hook(72, "trace, compile, restore", "by the trainer", "gray")
    hook(124, "before_train", "the state of the run is restored")
    d.box(20, 182, 600, 508, color="gray", dashed=True)
    d.text(notes, 206, "each epoch", bold=True)
    hook(196, "before_epoch")
    d.box(40, 254, 560, 234, color="gray", dashed=True)
    d.text(notes, 282, "each step", bold=True)
    d.text(notes, 302, "many steps run in one call", size=15, color=MUTED)
    hook(268, "before_step")
    hook(320, "step", "gradients, update of the weights", "gray")
    hook(372, "after_step(outputs)", "outputs that fetch asked for")
    hook(424, "trigger_step")
    hook(510, "after_epoch")
    hook(562, "trigger_epoch")
    hook(614, "trigger", "evaluate, save; PeriodicTrigger")
    d.text(notes, 658, "calls it at other times, too", size=15, color=MUTED)
    hook(714, "after_train", "always, even after an error")
    tops = [20, 72, 124, 196, 268, 320, 372, 424, 510, 562, 614, 714]
    for top, following in pairwise(tops):
        d.arrow((middle, top + 36), (middle, following))
    d.arrow((x, 442), (48, 442), (48, 286), (x, 286))
    d.arrow((x, 632), (30, 632), (30, 214), (x, 214))
    d.save("loop.svg")


def datapoint() -> None:
    """The way of a datapoint from its source to the device."""
    d = Drawing(640, "The way of a datapoint")
    d.box(40, 20, 560, 56, "source", note="arrays, files, LMDB, TFRecord, other machines")
    d.text(340, 102, "positions of the datapoints, in order", size=15, color=MUTED)
    for i in range(3):
        d.arrow((320, 76), (320, 112), (130 + 190 * i, 112), (130 + 190 * i, 132))
        d.box(50 + 190 * i, 132, 160, 56, f"worker {i + 1}", "blue", note="decode, augment")
        d.arrow((130 + 190 * i, 188), (130 + 190 * i, 230))
    d.box(40, 230, 560, 96, color="orange")
    d.text(320, 254, "shared memory: workers write into batches", anchor="middle", bold=True)
    for i in range(4):
        d.box(60 + 132 * i, 266, 124, 46, f"batch {i + 1}" if i < 3 else "free", "gray")
    d.arrow((320, 326), (320, 372))
    d.text(340, 354, "in order; no copy", size=15, color=MUTED)
    d.box(
        40, 372, 560, 56, "input source", "blue", note="QueueInput: a thread keeps a queue filled"
    )
    d.arrow((320, 428), (320, 474))
    d.text(340, 456, "StagingInput: copied one step ahead", size=15, color=MUTED)
    d.box(40, 474, 560, 56, "device", note="each replica takes a batch of its own")
    d.arrow((320, 530), (320, 570))
    d.box(40, 570, 560, 50, color="gray", dashed=True)
    d.text(320, 601, "checkpoint: position of the last batch that a step used", anchor="middle")
    d.save("datapoint.svg")


def replicas() -> None:
    """How the trainers distribute variables and steps."""
    d = Drawing(560, "Trainers for several devices and machines")

    def row(y: int, title: str, names: str, note: str) -> None:
        d.text(20, y, title, bold=True, size=17)
        d.text(20, y + 22, names, size=14, color=BLUE)
        d.text(20, y + 42, note, size=14, color=MUTED)

    names = "SyncMultiGPUTrainer, MultiWorkerTrainer"
    row(34, "Equal copies, together", names, "the usual choice: equal weights after each step")
    for i in range(3):
        left = 20 + 205 * i
        d.box(left, 92, 190, 40, f"replica {i + 1}: weights", "blue")
    d.line(30, 150, 610, 150, ORANGE, 4)
    d.text(320, 172, "gradients are averaged (all-reduce)", anchor="middle", size=15, color=ORANGE)
    for i in range(3):
        d.arrow((115 + 205 * i, 148), (115 + 205 * i, 132), color=ORANGE)

    names = "SyncMultiGPUTrainerParameterServer"
    row(220, "One copy, together", names, "for a model that fits into memory only once")
    d.box(225, 278, 190, 40, "weights", "orange")
    for i in range(3):
        d.box(20 + 205 * i, 348, 190, 34, f"replica {i + 1}", "blue")
        d.arrow((320, 318), (320, 332), (115 + 205 * i, 332), (115 + 205 * i, 348))

    names = "AsyncMultiGPUTrainer, ParameterServerTrainer"
    row(424, "One copy, each alone", names, "for devices of different speed; not repeatable")
    for i, length in enumerate([83, 125, 62]):
        top = 482 + 24 * i
        d.text(20, top + 15, f"device {i + 1}: steps", size=14)
        for left in range(150, 610 - length, length):
            d.box(left, top, length - 6, 18, color="blue")
    d.save("replicas.svg")


def kill() -> None:
    """What is left after SIGKILL, and what the next start repeats."""
    d = Drawing(400, "What survives a kill")

    def at(step: int) -> int:
        return 60 + step * 560 // 500

    d.text(20, 32, "first start", bold=True)
    d.line(at(0), 70, at(230), 70, BLUE, 5)
    d.line(at(230), 70, at(290), 70, ORANGE, 5)
    d.text(at(290) + 14, 76, "kill -9", color=ORANGE, bold=True)
    d.text(at(260), 52, "lost", anchor="middle", size=15, color=ORANGE)
    d.line(at(290) - 7, 63, at(290) + 7, 77, ORANGE, 4)
    d.line(at(290) - 7, 77, at(290) + 7, 63, ORANGE, 4)
    for step, name in ((100, "step 100"), (200, "step 200")):
        d.arrow((at(step + 15), 73), (at(step + 15), 104), color=BLUE)
        d.box(at(step + 15) - 46, 104, 92, 34, name, "blue")
    d.box(at(330), 104, 150, 34, "half-written file", dashed=True)
    d.text(at(330) + 75, 158, "invisible, removed", anchor="middle", size=14, color=MUTED)
    d.arrow((at(215), 138), (at(215), 214), color=BLUE)
    d.text(20, 182, "second start,", bold=True)
    d.text(20, 202, "same command", bold=True)
    d.line(at(215), 220, at(290), 220, ORANGE, 5)
    d.line(at(290), 220, at(500), 220, BLUE, 5)
    d.text(at(252), 246, "again:", anchor="middle", size=15, color=ORANGE)
    d.text(at(252), 264, "same batches", anchor="middle", size=15, color=ORANGE)
    d.text(at(500), 246, "same weights, bit for bit", anchor="end", size=15, color=BLUE)
    d.box(20, 290, 600, 90)
    d.text(36, 316, "In a checkpoint:", bold=True, size=15)
    d.text(180, 316, "weights, optimizer, step, position in the data,", size=15)
    d.text(180, 338, "random numbers, state of callbacks, settings", size=15)
    d.text(36, 366, "Beside it:", bold=True, size=15)
    d.text(180, 366, "log, stats.jsonl, times of all starts", size=15)
    d.save("kill.svg")


if __name__ == "__main__":
    loop()
    datapoint()
    replicas()
    kill()
