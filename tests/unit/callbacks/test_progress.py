from __future__ import annotations

import io
import logging
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from small_host import SmallHost
from towerpack._display.meter import Meter, clock_text, speed_text
from towerpack._display.terminal import Screen, Style
from towerpack.callbacks import Callback, ProgressBar


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Takes(Callback):
    """Lets a step take a second of the clock, and the end of an epoch five."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def trigger_step(self) -> None:
        self._clock.now += 1

    def trigger(self) -> None:
        self._clock.now += 5


def test_without_a_terminal_one_line_per_epoch(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "towerpack")
    clock = Clock()
    bar = ProgressBar("cost", clock=clock)
    outputs = {"cost": 0.123456}
    host = SmallHost(tmp_path, [bar, Takes(clock)], outputs=lambda step: outputs, max_epoch=3)
    host.run()
    assert [r.message for r in caplog.records] == [
        # Nothing is known yet of what comes between epochs.
        "Epoch 1/3: 4 steps in 0:04, 1 steps/s, 0:08 left, cost 0.1235",
        # Four steps, and two ends of epochs.
        "Epoch 2/3: 4 steps in 0:04, 1 steps/s, 0:14 left, cost 0.1235",
        "Epoch 3/3: 4 steps in 0:04, 1 steps/s, 0:05 left, cost 0.1235",
    ]


def test_steps_cost_nothing_without_names() -> None:
    hooks = ("before_step", "after_step", "trigger_step")
    assert [h for h in hooks if ProgressBar().acts_in(h)] == []
    assert ProgressBar(["cost"]).acts_in("after_step")


def test_meter() -> None:
    meter = Meter()
    meter.restart(0, 100)
    assert meter.left(10) is None
    meter.sample(2, 110)
    assert meter.rate == 5
    assert meter.left(10) == 2
    meter.end(4, 120)
    meter.restart(10, 120)
    assert meter.left(10, ends=2) == 2 + 2 * 6
    meter.sample(10, 120)  # no time has passed
    assert meter.rate == 5


def test_time_left_counts_evaluations_inside_epochs() -> None:
    meter = Meter()
    meter.restart(0, 0)
    meter.sample(100, 1)  # warming up
    for i in range(1, 101):
        # A step a second; after every tenth, an evaluation of ten seconds.
        meter.sample(100 + i + i // 10 * 10, 1 + i)
    assert meter.left(100) == pytest.approx(200)


def test_meter_forgets_old_samples() -> None:
    meter = Meter()
    meter.restart(0, 0)
    for i in range(1, 200):
        meter.sample(i if i < 100 else 100 + (i - 100) * 10, i)
    assert meter.rate == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (6.6, "0:07"), (750, "12:30"), (3723, "1:02:03"), (90061, "1 d 1:01:01")],
)
def test_clock_text(seconds: float, text: str) -> None:
    assert clock_text(seconds) == text


@pytest.mark.parametrize(
    ("rate", "text"),
    [(None, "- steps/s"), (1234.5, "1,234 steps/s"), (38.21, "38.2 steps/s"), (0.4, "2.5 s/step")],
)
def test_speed_text(rate: float | None, text: str) -> None:
    assert speed_text(rate) == text


def console(width: int, *, encoding: str = "utf-8", colour: bool = True) -> Console:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    system = "standard" if colour else None
    return Console(
        file=file,
        force_terminal=True,
        width=width,
        height=10,
        color_system=system,  # type: ignore[arg-type]
        legacy_windows=False,
    )


def drawn(width: int, **kwargs: object) -> str:
    style = Style(console(width, **kwargs))  # type: ignore[arg-type]
    parts = ["0:15 left", "12:30 to the end", "38.2 steps/s", "cost 0.3124"]
    line = style.line(width, head="Epoch 3/30", done=500, total=1000, parts=parts)
    return line.plain


def test_a_line_shows_what_fits() -> None:
    def bar(columns: int) -> str:
        return "━" * (columns // 2) + ("╸" if columns % 2 else "") + "━" * (columns // 2)

    line = f"Epoch 3/30 {bar(40)}   500/1,000 · 0:15 left · 12:30 to the end · 38.2 steps/s"
    assert drawn(124) == f"{line} · cost 0.3124"
    line = f"Epoch 3/30 {bar(13)}   500/1,000 · 0:15 left · 12:30 to the end · 38.2 steps/s"
    assert drawn(82) == line
    assert len(line) == 82
    assert drawn(63) == f"Epoch 3/30 {bar(9)}   500/1,000 · 0:15 left · 12:30 to the end"
    assert drawn(43) == f"Epoch 3/30 {bar(8)}   500/1,000 · 0:15 left"
    assert drawn(35) == f"Epoch 3/30 {bar(12)}   500/1,000"
    assert drawn(27) == "Epoch 3/30   500/1,000"
    assert drawn(14) == "Epoch 3/30   …"


def test_a_line_never_wraps() -> None:
    for width in range(1, 130):
        assert len(drawn(width)) <= width
        assert len(drawn(width, encoding="ascii")) <= width


def test_poor_terminals() -> None:
    assert drawn(43, encoding="ascii") == "Epoch 3/30 ####----   500/1,000 - 0:15 left"
    assert drawn(43, colour=False) == "Epoch 3/30 ━━━━       500/1,000 · 0:15 left"
    assert drawn(12, encoding="ascii").isascii()


def test_log_handlers_get_their_streams_back(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    err = Terminal()
    monkeypatch.setattr(sys, "stderr", err)
    handler = logging.StreamHandler(err)
    logger = logging.getLogger("towerpack.test_progress")
    logger.addHandler(handler)
    try:
        on = Screen(Console(stderr=True, force_terminal=True, width=40))
        row = lambda style, width: style.line(width, head="row", done=1, total=None, parts=[])  # noqa: E731
        on.show(row)
        assert handler.stream is not err
        logger.error("above")
        sys.stderr.write("half a line")
        assert "half" not in err.getvalue()
        on.hide(row)
        on.hide(row)
        assert handler.stream is err
        assert sys.stderr is err
        assert err.getvalue().count("above\n") == 1
        assert "half a line\n" in err.getvalue()
    finally:
        logger.removeHandler(handler)


PROGRAM = """
import logging, sys, time
from pathlib import Path
from small_host import SmallHost, PutValues, Note
from towerpack.callbacks import *
from towerpack._display import terminal
from towerpack._core import logs
logs.console()
terminal._LONG_S = terminal._REDRAW_S = 0.02
log = logging.getLogger("towerpack.demo")
class Work(Callback):
    def trigger_step(self):
        time.sleep(0.005)
        if self.trainer.global_step % 20 == 7:
            log.info("a log line at step %d", self.trainer.global_step)
            print("printed at", self.trainer.global_step)
            with terminal.task("val", 30) as advance:
                for _ in range(30):
                    time.sleep(0.002)
                    advance()
class Table(Callback):
    def trigger(self):
        print("results of epoch", self.trainer.epoch, file=sys.stderr)
host = SmallHost(Path("."), [ProgressBar("cost"), Work(), Table()], steps_per_epoch=40,
    max_epoch=2, steps_per_call=2, outputs=lambda step: {"cost": 1 / step})
host.run()
print("the end")
"""


def in_terminal(program: str, *, columns: int, tmp_path: Path) -> str:
    """All that a program writes to a pseudo-terminal."""
    import fcntl
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    support = Path(__file__).parents[2] / "support"
    paths = [str(support), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(paths)}
    for name in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        env.pop(name, None)
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=env,
        cwd=tmp_path,
    )
    os.close(theirs)
    written = b""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if select.select([ours], [], [], 0.5)[0]:
            try:
                data = os.read(ours, 65536)
            except OSError:  # Linux says so at the end
                break
            if not data:
                break
            written += data
    os.close(ours)
    assert process.wait(10) == 0, written.decode()
    return written.decode()


@pytest.mark.parametrize("columns", [100, 30])
def test_in_a_real_terminal(tmp_path: Path, columns: int) -> None:
    written = in_terminal(PROGRAM, columns=columns, tmp_path=tmp_path)
    seen = screen_of(written, columns)
    kept = [line.rstrip() for line in seen if line.strip()]
    # Nothing of the bars stays, nothing of the log is lost, and the cursor is back.
    assert not any("━" in line or line.startswith(("Epoch", "val")) for line in kept), kept
    assert "".join(kept).count("a log line at step") == 4
    assert [line for line in kept if line.startswith("printed at")] == [
        f"printed at {step}" for step in (7, 27, 47, 67)
    ]
    assert [line for line in kept if line.startswith("results")] == [
        "results of epoch 1",
        "results of epoch 2",
    ]
    assert kept[-1] == "the end"
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")
    assert "Epoch 2/2" in written
    assert "val" in written


def screen_of(written: str, columns: int) -> list[str]:
    """What a terminal shows after all of this: just the control codes that are used here."""
    import re

    lines = [""]
    x = 0
    y = 0
    for code, final, text in re.findall(r"\x1b\[([?\d;]*)([A-Za-z])|([^\x1b])", written):
        if text == "\n":
            y += 1
        elif text == "\r":
            x = 0
        elif text:
            if x >= columns:
                x, y = 0, y + 1
            lines += [""] * (y + 1 - len(lines))
            lines[y] = lines[y].ljust(x)[:x] + text + lines[y][x + 1 :]
            x += 1
        elif final == "A":
            y = max(0, y - int(code or 1))
        elif final == "K":
            lines += [""] * (y + 1 - len(lines))
            lines[y] = "" if code == "2" else lines[y][:x]
        else:
            assert final in "mhl", (code, final)
        lines += [""] * (y + 1 - len(lines))
    return lines
