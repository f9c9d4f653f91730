from __future__ import annotations

import errno
import io
import itertools
import json
import logging
import math
import os
import subprocess
import sys
import tracemalloc
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from scaling import scaled
from towerpack import CallbackError, ConfigError
from towerpack.callbacks.monitors import (
    ConsoleMonitor,
    CSVMonitor,
    JSONLMonitor,
    Monitor,
    Monitors,
    Record,
    Scalar,
    SendMonitorData,
    TensorBoardMonitor,
    read_stats,
)


class Recorder(Monitor):
    """Notes every call."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def at(self, step: int, epoch: int) -> None:
        self.calls.append(("at", step, epoch))

    def put_scalar(self, name: str, value: float, step: int) -> None:
        self.calls.append((name, value, step))

    def put_image(self, name: str, image: np.ndarray, step: int) -> None:
        self.calls.append((name, image, step))

    def put_histogram(self, name: str, values: np.ndarray, step: int) -> None:
        self.calls.append((name, values, step))

    def end_epoch(self) -> None:
        self.calls.append(("end_epoch",))

    def flush(self) -> None:
        self.calls.append(("flush",))

    def close(self) -> None:
        self.calls.append(("close",))


# Monitors


def test_the_old_name_of_set_step_works(tmp_path: Path) -> None:
    monitors = Monitors([CSVMonitor(tmp_path / "a.csv"), recorder := Recorder()])
    monitors.at(5, 1)  # Recorder overrides it under that name, too
    monitors.end_epoch()
    assert recorder.calls[0] == ("at", 5, 1)
    assert (tmp_path / "a.csv").read_text().split() == ["step,epoch", "5,1"]
    with pytest.raises(AttributeError, match="'Monitors' object has no attribute 'atp'"):
        monitors.atp(5, 1)


def test_everything_reaches_every_monitor() -> None:
    one, two = Recorder(), Recorder()
    monitors = Monitors([one, two])
    monitors.set_step(5, 1)
    monitors.put_scalar("cost", 0.5)
    monitors.put_scalar("cost", 0.25, step=6)
    monitors.end_epoch()
    monitors.close()
    assert one.calls == two.calls
    assert one.calls == [
        ("at", 5, 1), ("cost", 0.5, 5), ("cost", 0.25, 6), ("end_epoch",), ("flush",), ("close",)
    ]  # fmt: skip


@pytest.mark.parametrize(
    "value", [2, 2.0, np.float32(2), np.array(2), np.array([[2]]), True + True]
)
def test_any_one_number_is_a_scalar(value: Any) -> None:
    monitors = Monitors()
    monitors.put_scalar("x", value)
    assert monitors.latest("x") == 2
    assert type(monitors.latest("x")) is float


@pytest.mark.parametrize("value", [[1, 2], np.zeros(0), "text", None, object(), 1j])
def test_anything_else_is_not(value: Any) -> None:
    with pytest.raises(ConfigError, match="needs one number"):
        Monitors().put_scalar("x", value)


def test_history() -> None:
    monitors = Monitors()
    monitors.put_scalar("b", 1, step=1)
    monitors.put_scalar("a", 2, step=1)
    monitors.put_scalar("b", 3, step=2)
    monitors.put_scalar("b", 4, step=2)
    assert monitors.names() == ["b", "a"]
    assert monitors.history("b") == [(1, 1), (2, 4)]
    assert monitors.latest("b") == 4
    assert monitors.history("b", 0) == []


def test_history_is_bounded() -> None:
    monitors = Monitors(history_length=3)
    for step in range(10):
        monitors.put_scalar("x", step, step=step)
    assert monitors.history("x") == [(7, 7), (8, 8), (9, 9)]


@pytest.mark.parametrize("ask", ["history", "latest"])
def test_an_unknown_name_is_an_error_with_the_near_one(ask: str) -> None:
    monitors = Monitors()
    monitors.put_scalar("val/error", 1)
    with pytest.raises(ConfigError, match="Did you mean 'val/error'"):
        getattr(monitors, ask)("val_error")


@pytest.mark.parametrize(
    ("image", "shape", "value"),
    [
        (np.full((2, 3, 3), 7, np.uint8), (2, 3, 3), 7),
        (np.full((2, 3), 7, np.uint8), (2, 3, 1), 7),
        (np.full((2, 3, 4), 0.5), (2, 3, 4), 128),
        (np.full((2, 3, 1), 2.0, np.float32), (2, 3, 1), 255),
        (np.full((2, 3, 1), np.nan), (2, 3, 1), 0),
        (np.full((2, 3, 1), np.inf), (2, 3, 1), 255),
        (np.full((2, 3, 1), -np.inf), (2, 3, 1), 0),
    ],
)
def test_pictures(image: np.ndarray, shape: tuple[int, ...], value: int) -> None:
    recorder = Recorder()
    Monitors([recorder]).put_image("x", image, step=1)
    ((_, picture, _),) = recorder.calls
    assert (picture.shape, picture.dtype) == (shape, np.uint8)
    assert (picture == value).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([0, 0.25, 0.5], [0, 64, 128]),
        ([0, 51, 255], [0, 51, 255]),
        ([0, 1, 4], [0, 64, 255]),
        ([-1, 0, 0.5], [0, 127, 191]),
        ([-1, 0, 4], [95, 127, 254]),
        ([0, 4, np.nan], [0, 255, 0]),
    ],
)
def test_floats_outside_of_0_to_1_are_scaled(
    row: list[float], expected: list[int], dtype: Any
) -> None:
    recorder = Recorder()
    Monitors([recorder]).put_image("x", np.array([row], dtype), step=1)
    ((_, picture, _),) = recorder.calls
    assert picture[0, :, 0].tolist() == expected


@pytest.mark.parametrize(
    "image", [np.zeros((2, 3, 2)), np.zeros(4), np.zeros((0, 3, 3)), np.zeros((2, 2, 3), np.int64)]
)
def test_what_is_no_picture_is_refused(image: np.ndarray) -> None:
    with pytest.raises(ConfigError, match="must get an image"):
        Monitors().put_image("x", image)


def test_histograms_come_flat() -> None:
    recorder = Recorder()
    Monitors([recorder]).put_histogram("x", np.ones((2, 3), np.float32), step=1)
    ((_, values, _),) = recorder.calls
    assert (values.shape, values.dtype) == ((6,), np.float64)


@pytest.mark.parametrize("wrong", [ConsoleMonitor, "console", None])
def test_only_monitors_are_monitors(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="must be an instance of Monitor"):
        Monitors([wrong])


def test_history_takes_little_memory() -> None:
    monitors = Monitors(history_length=3000)
    steps = [[0.5 + step, 0.25 + step] for step in range(5000)]
    tracemalloc.start()
    try:
        for step, values in enumerate(steps):
            for name, value in zip("ab", values, strict=True):
                monitors.put_scalar(name, value, step)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 50 * 2 * 3000
    assert monitors.history("b") == [(step, 0.25 + step) for step in range(2000, 5000)]
    assert monitors.history("b", 2) == [(4998, 4998.25), (4999, 4999.25)]


def test_history_length_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="history_length must be at least 1, got 0"):
        Monitors(history_length=0)


class Broken(Monitor):
    def put_scalar(self, name: str, value: float, step: int) -> None:
        raise ArithmeticError("wrong")

    flush = close = lambda self: self.put_scalar("", 0, 0)


def test_a_failing_monitor_is_named() -> None:
    recorder = Recorder()
    monitors = Monitors([recorder, Broken()])
    with pytest.raises(CallbackError, match="Broken failed at 'cost': ArithmeticError") as caught:
        monitors.put_scalar("cost", 1)
    assert isinstance(caught.value.__cause__, ArithmeticError)
    with pytest.raises(CallbackError, match="Broken failed"):
        monitors.flush()
    with pytest.raises(CallbackError, match="Broken failed"):
        monitors.close()
    assert recorder.calls[-1] == ("close",)


class Server(Recorder):
    """Refuses connections while it is down."""

    down = False

    def put_scalar(self, name: str, value: float, step: int) -> None:
        self.attempts = getattr(self, "attempts", 0) + 1
        if self.down:
            raise ConnectionError("refused")
        super().put_scalar(name, value, step)

    def put_image(self, name: str, image: np.ndarray, step: int) -> None:
        self.put_scalar(name, image.nbytes, step)


def test_a_server_that_is_down_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    server, other = Server(), Recorder()
    monitors = Monitors([server, other], clock=lambda: now[0])
    server.down = True
    for step in range(100):
        monitors.set_step(step, step)
        monitors.put_scalar("cost", step)
        monitors.end_epoch()
        now[0] += 1
    assert server.attempts < 12  # after 1, 2, 4, … seconds
    assert caplog.text.count("Training goes on") == 1
    server.down = False
    now[0] += 300
    monitors.flush()
    assert "works again" in caplog.text
    assert [call for call in server.calls if call != ("flush",)] == [
        call for call in other.calls if call != ("flush",)
    ]
    assert monitors.latest("cost") == 99


def test_what_is_kept_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.down = True
    monitors = Monitors([server])
    for _ in range(70):
        monitors.put_image("x", np.zeros((1 << 10, 1 << 10), np.uint8))
    for step in range(30_000):
        monitors.put_scalar("cost", step)
    server.down = False
    monitors.close()
    values = [value for _, value, _ in (call for call in server.calls if len(call) == 3)]
    assert values == list(range(10_000, 30_000))
    assert "repeated 20000 calls; 10070 were lost" in caplog.text


def test_what_never_arrived_is_told_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.down = True
    monitors = Monitors([server])
    monitors.put_scalar("cost", 1)
    monitors.end_epoch()
    monitors.close()
    assert "still failed when the run ended: 2 calls were lost" in caplog.text
    assert server.calls == [("close",)]


def test_calls_that_were_dropped_never_arrived_either(caplog: pytest.LogCaptureFixture) -> None:
    server = Server()
    server.down = True
    monitors = Monitors([server])
    for step in range(20_005):
        monitors.put_scalar("cost", step)
    monitors.close()
    assert "still failed when the run ended: 20005 calls were lost" in caplog.text


def test_the_history_of_a_run_is_essential(tmp_path: Path) -> None:
    (tmp_path / "stats.jsonl").mkdir()
    monitors = Monitors([JSONLMonitor(tmp_path / "stats.jsonl")])
    monitors.put_scalar("cost", 1)
    with pytest.raises(CallbackError, match="IsADirectoryError"):
        monitors.flush()


@pytest.mark.parametrize("make", [TensorBoardMonitor, lambda path: CSVMonitor(path / "x.csv")])
def test_a_full_disk_ends_nothing(
    tmp_path: Path, make: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Files end up as if there had always been room."""
    now = [0.0]
    clean, tried = tmp_path / "clean", tmp_path / "tried"
    for path in (clean, tried):
        monitors = Monitors([make(path)], clock=lambda: now[0])
        for epoch in range(1, 6):
            if path == tried and epoch == 2:
                monkeypatch.setattr(os, "write", _full)
            monitors.set_step(epoch, epoch)
            monitors.put_scalar("cost", epoch)
            monitors.end_epoch()
            if epoch == 4:
                monkeypatch.undo()
            now[0] += 100
        monitors.close()
    assert caplog.text.count("Training goes on") == 1
    if make is TensorBoardMonitor:
        assert _points(tried) == _points(clean) == [1, 2, 3, 4, 5]
    else:
        assert (tried / "x.csv").read_text() == (clean / "x.csv").read_text()


def _full(fd: int, data: bytes) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def _points(path: Path) -> list[float]:
    return [event.tensor_proto.float_val[0] for event in events(path).Tensors("cost")]


# CSVMonitor, SendMonitorData


def test_csv(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "run.csv"

    def epochs(*numbers: int, name: str = "cost") -> None:
        for epoch in numbers:
            monitors.set_step(10 * epoch, epoch)
            monitors.put_scalar(name, epoch / 2)
            monitors.end_epoch()

    monitors = Monitors([CSVMonitor(path)])
    monitors.resume(0)
    epochs(1, 2)
    epochs(3, name='val,"error"')
    assert path.read_text().splitlines() == [
        'step,epoch,cost,"val,""error"""', "10,1,0.5,", "20,2,1.0,", "30,3,,1.5"
    ]  # fmt: skip
    with path.open("a") as file:
        file.write("40,4,9")  # killed here
    monitors = Monitors([CSVMonitor(path)])
    monitors.resume(20)
    epochs(3)
    assert path.read_text().splitlines()[1:] == ["10,1,0.5,", "20,2,1.0,", "30,3,1.5,"]


def test_a_command_gets_numbers_without_a_shell(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "said"
    code = f"import sys; open({str(path)!r}, 'a').write(repr(sys.argv[1:]) + chr(10))"
    command = [
        sys.executable,
        "-c",
        code.replace("{", "{{"),
        "{val/error:.2f}; rm x",
        "{epoch}",
        "$HOME",
    ]
    monitors = Monitors([SendMonitorData(command, ["val/error"])])
    for epoch in (1, 2):
        monitors.set_step(5 * epoch, epoch)
        monitors.put_scalar("val/err", 1)
        if epoch == 2:
            monitors.put_scalar("val/error", 0.125)
        monitors.end_epoch()
    assert path.read_text() == "['0.12; rm x', '2', '$HOME']\n"
    [warning] = caplog.messages
    assert "waits for 'val/error', which no callback has put. Did you mean 'val/err'?" in warning


def test_a_command_that_fails_is_run_again_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "said"
    path.mkdir()
    now = [0.0]
    command = (
        f"{sys.executable} -c \"import sys; open('{path}', 'a').write(sys.argv[1])\" {{cost}},"
    )
    monitors = Monitors([SendMonitorData(command, ["cost"])], clock=lambda: now[0])
    for epoch in range(1, 4):
        monitors.set_step(epoch, epoch)
        monitors.put_scalar("cost", epoch)
        monitors.end_epoch()
    assert "ended with 1" in caplog.text
    path.rmdir()
    now[0] = 100.0
    monitors.flush()
    assert path.read_text() == "1.0,2.0,3.0,"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("no-such-program {cost}", "does not exist"),
        ("true {coost}", "Did you mean 'cost'"),
        ("", "does not exist"),
    ],
)
def test_commands_that_make_no_sense(command: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SendMonitorData(command, ["cost"])


def test_a_command_that_hangs_is_ended(caplog: pytest.LogCaptureFixture) -> None:
    monitors = Monitors([SendMonitorData("sleep 100", [], timeout_s=0.1)])
    monitors.end_epoch()
    assert "TimeoutError: sleep took more than 0.1 s" in caplog.text


def test_arguments_of_a_command_are_in_no_log(caplog: pytest.LogCaptureFixture) -> None:
    secret = "hunter2-token"
    command = [sys.executable, "-c", "import sys; sys.exit(sys.argv[1])", secret, "{cost}"]
    monitor = SendMonitorData(command, ["cost"])
    monitors = Monitors([monitor])
    for epoch in (1, 2):
        monitors.set_step(epoch, epoch)
        if epoch == 2:
            monitors.put_scalar("cost", 1.0)
        monitors.end_epoch()
    assert "waits for 'cost'" in caplog.text and "ended with 1: ***" in caplog.text
    assert secret not in caplog.text and secret not in repr(monitor)
    assert "cost" in repr(monitor) and sys.executable in repr(monitor)


class Rememberer(Monitor):
    def resume(self, step: int) -> Iterable[Scalar]:
        return [Scalar("x", s, s / 2) for s in range(step + 1)]


def test_history_after_a_resume_comes_from_who_remembers() -> None:
    monitors = Monitors([Recorder(), Rememberer(), Rememberer()])
    monitors.put_scalar("gone", 1, step=9)
    monitors.resume(2)
    assert monitors.names() == ["x"]
    assert monitors.history("x") == [(0, 0), (1, 0.5), (2, 1)]


# JSONLMonitor


def lines(path: Path) -> list[dict[str, Any]]:
    def refuse(name: str) -> None:
        raise AssertionError(f"{name} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]


def test_one_line_a_step(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "stats.jsonl"
    monitors = Monitors([JSONLMonitor(path, clock=lambda: 9.0)])
    monitors.set_step(1, 1)
    monitors.put_scalar("a", 1)
    monitors.put_scalar("b", 2)
    monitors.set_step(2, 1)
    monitors.put_scalar("a", 3)
    assert len(lines(path)) == 1
    monitors.flush()
    monitors.flush()
    monitors.close()
    assert lines(path) == [
        {"step": 1, "epoch": 1, "time": 9.0, "scalars": {"a": 1.0, "b": 2.0}},
        {"step": 2, "epoch": 1, "time": 9.0, "scalars": {"a": 3.0}},
    ]
    assert read_stats(path)[1] == Record(2, 1, 9.0, {"a": 3.0})


@settings(max_examples=scaled(1000, at_least=25))
@given(st.lists(st.tuples(st.text(max_size=5), st.floats())))
def test_numbers_come_back_exactly(values: list[tuple[str, float]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "stats.jsonl"
        monitors = Monitors([JSONLMonitor(path)])
        for step, (name, value) in enumerate(values):
            monitors.put_scalar(name, value, step=step)
        monitors.close()
        if not values:
            assert not path.exists()
            return
        lines(path)
        found = [(name, value) for r in read_stats(path) for name, value in r.scalars.items()]
        assert [name for name, _ in found] == [name for name, _ in values]
        for (_, one), (_, other) in zip(found, values, strict=True):
            assert one == other or (math.isnan(one) and math.isnan(other))
            assert math.copysign(1, one) == math.copysign(1, other) or math.isnan(one)


def train(path: Path, first: int, last: int, *, resume: bool = False) -> Monitors:
    monitors = Monitors([JSONLMonitor(path)])
    if resume:
        monitors.resume(first - 1)
    for step in range(first, last + 1):
        monitors.set_step(step, 1)
        monitors.put_scalar("cost", 1 / step)
        if step % 3 == 0:
            monitors.put_scalar("val/error", step)
    monitors.flush()
    return monitors


def test_history_after_resumes_is_that_of_an_undisturbed_run(tmp_path: Path) -> None:
    whole = train(tmp_path / "whole.jsonl", 1, 20)
    train(tmp_path / "cut.jsonl", 1, 10)
    train(tmp_path / "cut.jsonl", 8, 15, resume=True)
    cut = train(tmp_path / "cut.jsonl", 3, 20, resume=True)
    assert cut.names() == whole.names()
    for name in whole.names():
        assert cut.history(name) == whole.history(name)
    steps = [record.step for record in read_stats(tmp_path / "cut.jsonl")]
    assert steps == list(range(1, 21))
    assert {"resumed_at": 7} in [{"resumed_at": row.get("resumed_at")} for row in
                                 lines(tmp_path / "cut.jsonl")]  # fmt: skip


def test_resuming_without_a_file_writes_none(tmp_path: Path) -> None:
    monitors = Monitors([JSONLMonitor(tmp_path / "stats.jsonl")])
    monitors.resume(0)
    monitors.close()
    assert not (tmp_path / "stats.jsonl").exists()


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_torn_last_line_is_cut_off(
    tmp_path: Path, cut: int, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "stats.jsonl"
    train(path, 1, 3)
    content = path.read_bytes()
    path.write_bytes(content[:-cut])
    assert [record.step for record in read_stats(path)] == [1, 2]
    monitors = train(path, 3, 4, resume=True)
    assert monitors.history("cost") == [(s, 1 / s) for s in range(1, 5)]
    assert "torn" in caplog.text
    lines(path)


def test_a_file_that_is_one_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "stats.jsonl"
    path.write_bytes(b"x" * 200_000)
    train(path, 1, 1)
    assert len(lines(path)) == 1


LINES = [
    *("?", "3", "{}", '{"step": 1, "scalars": 3}', "[" * 100_000),
    '{"step": 1e30, "epoch": 1, "time": 0, "scalars": {}}',
    *('{"resumed_at": 1e999}', f'{{"step": 1, "epoch": 1, "time": {10**400}, "scalars": {{}}}}'),
]


@pytest.mark.parametrize("line", LINES)
def test_a_damaged_line_is_left_out_and_said(
    tmp_path: Path, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "stats.jsonl"
    train(path, 1, 1)
    with open(path, "a") as file:
        file.write(line + "\n")
    train(path, 2, 2)
    with caplog.at_level(logging.WARNING):
        assert [record.step for record in read_stats(path)] == [1, 2]
    assert "Skipped line 2 of" in caplog.text


def test_a_line_that_does_not_fit_on_the_disk_leaves_no_half(tmp_path: Path) -> None:
    program = """
import resource, signal, sys
from towerpack import CallbackError
from towerpack.callbacks.monitors import JSONLMonitor, Monitors
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
monitors = Monitors([JSONLMonitor(sys.argv[1])])
monitors.put_scalar("x", 1, step=1)
monitors.flush()
resource.setrlimit(resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
monitors.put_scalar("x", 2, step=2)
try:
    monitors.flush()
except CallbackError as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
monitors.put_scalar("x", 3, step=3)
monitors.close()
"""
    path = tmp_path / "stats.jsonl"
    command = [sys.executable, "-c", program, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "File too large" in done.stdout
    assert [record.step for record in read_stats(path)] == [1, 3]
    lines(path)


# ConsoleMonitor


def on_terminal(width: int = 80, **options: Any) -> tuple[ConsoleMonitor, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, color_system=None)
    times = iter(range(0, 10_000, 90))
    return ConsoleMonitor(console=console, clock=lambda: float(next(times)), **options), out


def epoch(monitor: ConsoleMonitor, number: int, values: dict[str, float]) -> None:
    monitors = Monitors([monitor])
    monitors.set_step(number * 1000, number)
    for name, value in values.items():
        monitors.put_scalar(name, value)
    monitors.end_epoch()


def test_a_row_for_each_epoch_and_a_header_when_columns_change() -> None:
    monitor, out = on_terminal(width=80)
    epoch(monitor, 1, {"cost": 2.0123456, "val/error": 0.25})
    monitor.remark("best val/error so far")
    monitor.remark("0:07 left")
    epoch(monitor, 2, {"cost": 1.5, "val/error": 0.125})
    epoch(monitor, 3, {"cost": math.nan, "images": 60000})
    assert [line.rstrip() for line in out.getvalue().splitlines()] == [
        "epoch     step      time       cost  val/error",
        "    1    1,000  1:30 min      2.012     0.2500",
        "    2    2,000  1:30 min      1.500     0.1250*  0:07 left",
        "epoch     step      time       cost  val/error     images",
        "    3    3,000  1:30 min        nan                60,000",
    ]


def test_the_least_important_columns_are_left_out_first() -> None:
    values = {"cost": 1.0, "train/error": 0.5, "learning_rate": 0.1, "queue/fill": 1.0}
    values |= {"val/cost": 2.0, "val/error": 0.25}
    shown = []
    for width in range(100, 30, -1):
        monitor, out = on_terminal(width)
        monitor.remark("best val/error so far")
        epoch(monitor, 1, values)
        assert all(len(line.rstrip(" *")) <= width for line in out.getvalue().splitlines())
        columns = out.getvalue().split("\n")[0].split()[3:]
        if not shown or columns != shown[-1]:
            shown.append(columns)
    gone = [(set(more) - set(less)).pop() for more, less in itertools.pairwise(shown)]
    order = ["queue/fill", "learning_rate", "train/error", "val/cost", "val/error", "cost"]
    assert gone == order
    assert shown[0] == list(values)


def test_files_and_pipes_have_the_same_rows(caplog: pytest.LogCaptureFixture) -> None:
    out = io.StringIO()
    monitor = ConsoleMonitor(console=Console(file=out), clock=lambda: 0.0)
    with caplog.at_level(logging.INFO):
        epoch(monitor, 1, {"cost": 0.5, "error": math.inf})
        epoch(monitor, 2, {})
    assert out.getvalue() == ""
    assert [record.getMessage() for record in caplog.records] == [
        "epoch     step      time       cost      error",
        "    1    1,000     0.0 s     0.5000        inf",
        "    2    2,000     0.0 s",
    ]


def test_names_can_be_chosen() -> None:
    monitor, out = on_terminal(include=["^val/", "cost"], exclude=["ema$"])
    epoch(monitor, 1, {"cost": 1, "val/error": 2, "cost_ema": 3, "lr": 4})
    assert "val/error" in out.getvalue()
    assert "cost" in out.getvalue()
    assert "ema" not in out.getvalue()
    assert "lr" not in out.getvalue()


# TensorBoardMonitor


def events(logdir: Path) -> Any:
    """As TensorBoard's own reader finds them."""
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.plugin_event_accumulator"
    )
    found = accumulator.EventAccumulator(str(logdir), size_guidance={"tensors": 0})
    found.Reload()
    return found


def test_tensorboard_reads_what_was_put(tmp_path: Path) -> None:
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    monitors = Monitors([TensorBoardMonitor(tmp_path)])
    monitors.put_scalar("cost", 0.5, step=3)
    monitors.put_image("picture", image, step=3)
    monitors.put_histogram("weights", np.array([0.0, 1.0, 1.0, np.nan]), step=3)
    monitors.put_histogram("nothing", np.array([np.nan]), step=3)
    monitors.close()
    found = events(tmp_path)
    (cost,) = found.Tensors("cost")
    assert (cost.step, cost.tensor_proto.float_val[0]) == (3, 0.5)
    width, height, data = found.Tensors("picture")[0].tensor_proto.string_val
    assert (width, height) == (b"4", b"2")
    assert decode_png(data) == image.tobytes()
    bins = np.frombuffer(found.Tensors("weights")[0].tensor_proto.tensor_content).reshape(-1, 3)
    assert bins[0].tolist() == [0.0, 1 / 30, 1.0]
    assert bins[-1].tolist()[1:] == [1.0, 2.0]
    assert {found.SummaryMetadata(tag).plugin_data.plugin_name for tag in found.Tags()["tensors"]} \
        == {"scalars", "images", "histograms"}  # fmt: skip


def decode_png(data: bytes) -> bytes:
    """The pixels of a PNG whose rows are differences to the row above; checks its checksums too."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    position, pixels, width, channels = 8, b"", 0, 0
    while position < len(data):
        size = int.from_bytes(data[position : position + 4])
        chunk = data[position + 4 : position + 8 + size]
        assert zlib.crc32(chunk) == int.from_bytes(data[position + 8 + size :][:4])
        if chunk[:4] == b"IHDR":
            width, channels = int.from_bytes(chunk[4:8]), {0: 1, 2: 3, 6: 4}[chunk[13]]
        if chunk[:4] == b"IDAT":
            pixels += chunk[4:]
        position += 12 + size
    rows = np.frombuffer(zlib.decompress(pixels), np.uint8).reshape(-1, width * channels + 1)
    assert (rows[:, 0] == 2).all()
    return rows[:, 1:].cumsum(axis=0, dtype=np.uint8).tobytes()


def test_settings_and_graph(tmp_path: Path) -> None:
    hparams = pytest.importorskip("tensorboard.plugins.hparams.metadata")
    graphs = pytest.importorskip("tensorboard.compat.proto.graph_pb2")
    graph = graphs.GraphDef()
    graph.node.add(name="conv0")
    monitors = Monitors([TensorBoardMonitor(tmp_path)])
    settings = {"lr": 0.1, "xla": False, "optimizer": "Adam", "long": "x" * 999, "list": [1]}
    monitors.put_settings(settings)
    monitors.put_graph(graph.SerializeToString)
    monitors.close()
    found = events(tmp_path)
    assert [node.name for node in found.Graph().node] == ["conv0"]
    content = found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    given = hparams.parse_session_start_info_plugin_data(content).hparams
    assert sorted(given) == ["lr", "optimizer", "xla"]
    assert given["lr"].number_value == 0.1


def test_every_start_has_a_file_of_its_own_in_order(tmp_path: Path) -> None:
    for start in range(2):
        monitor = TensorBoardMonitor(tmp_path, clock=lambda: 5.0)
        monitor.resume(start)
        for step in (1, 2):
            monitor.put_scalar("cost", start, step=start + step)
        monitor.close()
    first, second = sorted(tmp_path.iterdir())
    assert first.name.startswith("events.out.tfevents.0000000005.")
    assert [events(file).Tensors("cost")[0].step for file in (first, second)] == [1, 2]
    assert [event.step for event in events(tmp_path).Tensors("cost")] == [1, 2, 3]
    assert _points(tmp_path) == [0, 1, 1]


def test_without_tensorboard_it_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monitors = Monitors([TensorBoardMonitor(tmp_path / "events")])
    monitors.resume(0)
    monitors.put_scalar("cost", 0.5)
    monitors.put_image("x", np.zeros((2, 2, 3)))
    monitors.put_histogram("x", np.zeros(3))
    monitors.end_epoch()
    monitors.close()
    assert caplog.text.count('pip install "towerpack[tensorboard]"') == 1
    assert len(caplog.records) == 1
    assert not (tmp_path / "events").exists()


def test_tensorboard_flushes_by_itself(tmp_path: Path) -> None:
    now = [1.7e9]
    monitor = TensorBoardMonitor(tmp_path, clock=lambda: now[0])
    sizes: list[int] = []
    for step in range(1, 25):
        monitor.put_scalar("cost", 1.0, step)
        sizes.append(sum(file.stat().st_size for file in tmp_path.iterdir()))
        now[0] += 1.0
    assert len(set(sizes)) == 3, "nothing yet, after 11 seconds, and after 22"
    monitor.close()


def test_monitors_load_no_framework() -> None:
    program = """
import sys, numpy as np
from towerpack.callbacks.monitors import *
import tempfile
monitors = Monitors([TensorBoardMonitor(tempfile.mkdtemp()), ConsoleMonitor()])
monitors.put_image("x", np.zeros((2, 2, 3)))
monitors.close()
print({"tensorflow", "keras"} & sys.modules.keys())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
