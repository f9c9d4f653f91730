"""The ledger of a run: what is lost to kills, and that nothing else is."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from small_training import LINE, Do, train
from towerpack.callbacks import Callback
from towerpack.training.interrupt import Interrupted
from towerpack.training.state.clock import DATA_WAIT, PRODUCTIVE, SAVE, Clock
from towerpack.training.state.ledger import Ledger, Life, goodput_of, read_ledger, totals_of


class Run:
    """Lives of a run on a clock of its own, which starts at 1000 s."""

    def __init__(self, path: Path) -> None:
        self.path, self.now, self.step = path, 1000.0, 0
        self.clock = Clock()

    ledger: Ledger

    def begin(self, resumed_at: int | None) -> Ledger:
        self.step = resumed_at or 0
        self.clock = Clock(lambda: self.now)
        self.now += 2.0  # of building
        self.ledger = Ledger(
            self.path, self.clock, step=lambda: self.step, resumed_at=resumed_at,
            wall_clock=lambda: self.now,
        )  # fmt: skip
        return self.ledger

    def do(self, steps: int, seconds: float, part: str = PRODUCTIVE) -> None:
        with self.clock.during(part):
            self.now += seconds
        self.step += steps
        if steps:
            self.clock.ran(steps)
        self.ledger.beat()

    def save(self) -> int:
        self.do(0, 0.5, SAVE)
        self.ledger.note("save")
        return self.step

    @contextmanager
    def life(self, resumed_at: int | None) -> Iterator[Run]:
        with self.begin(resumed_at):
            yield self


def test_a_kill_loses_what_came_after_the_save(tmp_path: Path) -> None:
    run = Run(tmp_path / "ledger.jsonl")
    run.begin(None)
    run.do(1, 1.0)  # The first step is part of compile.
    run.do(9, 9.0)
    run.save()
    run.do(0, 3.0, DATA_WAIT)
    run.do(5, 5.0)
    # Killed, and noticed 60 s later.
    run.now += 60.0
    with run.life(10):
        run.do(1, 1.0)
        run.do(9, 9.0)
        live = run.ledger.totals()
    first, second = read_ledger(run.path)
    assert (first.from_step, first.to_step, first.lost_steps, first.ending) == (0, 15, 5, None)
    assert (second.from_step, second.to_step, second.ending) == (10, 20, "Stopped")
    totals = totals_of([first, second])
    assert totals == live == pytest.approx({
        "productive": 18, "compile": 6, "data_wait": 0, "save": 0.5, "callbacks": 0,
        "lost": 8, "down": 60,
    })  # fmt: skip
    assert sum(totals.values()) == pytest.approx(run.now - 1000)
    assert goodput_of(totals) == pytest.approx(18 / 92.5)
    assert first.pid == os.getpid()


def test_the_goodput_of_short_runs_is_a_share_too() -> None:
    assert goodput_of({PRODUCTIVE: 0.03, SAVE: 0.01}) == pytest.approx(0.75)
    assert goodput_of({PRODUCTIVE: 0.0, SAVE: 0.0}) == 0


def test_the_sum_of_the_parts_is_the_wall_time_whatever_happens(tmp_path: Path) -> None:
    for seed in range(40):
        rng = random.Random(seed)
        run = Run(tmp_path / f"{seed}.jsonl")
        saves: list[int] = []
        for _ in range(rng.randint(1, 6)):
            # Any of the checkpoints, as the newest may be damaged; or none.
            start = rng.choice(saves) if saves and rng.random() < 0.9 else None
            saves = [step for step in saves if start is not None and step <= start]
            ledger = run.begin(start)
            for _ in range(rng.randint(0, 12)):
                choice = rng.random()
                if choice < 0.3:
                    saves.append(run.save())
                else:
                    part = DATA_WAIT if choice < 0.5 else PRODUCTIVE
                    run.do(rng.randint(1, 9) if part == PRODUCTIVE else 0, rng.uniform(1, 5), part)
            if rng.random() < 0.5:
                ledger.__exit__(None, None, None)
            run.now += rng.uniform(0, 9)
        lives = read_ledger(run.path)
        totals = totals_of(lives)
        assert min(totals.values()) >= 0
        assert sum(totals.values()) == pytest.approx(lives[-1].ended - 1000), seed
        # Each step was done once, and counted as lost each other time.
        done = sum(life.to_step - life.from_step - life.lost_steps for life in lives)
        assert done == lives[-1].to_step, seed


@pytest.mark.parametrize(
    ("error", "told"), [(None, "Complete"), (KeyError(), "KeyError"), (Interrupted("SIGTERM"),) * 2]
)
def test_how_a_life_ended(tmp_path: Path, error: Any, told: Any) -> None:
    run = Run(tmp_path / "ledger.jsonl")
    os.environ["TOWERPACK_RESTART"] = "3"
    try:
        with pytest.raises(type(error)) if error else run.life(None), run.life(None):
            run.ledger.ending = "Complete"
            if error:
                raise error
    finally:
        del os.environ["TOWERPACK_RESTART"]
    life = read_ledger(run.path)[-1]
    assert (life.ending, life.restart) == (str(told), "3")


@pytest.mark.parametrize(
    "changed", [{"step": 1e999}, {"time": 10**400}, {"time": 1e300}, {"pid": []}, {"pid": "x"}]
)
def test_a_ledger_of_others_may_hold_anything(
    tmp_path: Path, changed: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path / "ledger.jsonl")
    run.begin(None)
    run.save()
    start = json.loads(run.path.read_bytes().splitlines()[0])
    run.path.write_text(json.dumps({**start, **changed}) + "\n")
    assert read_ledger(run.path) == []
    assert "Skipped line 1" in caplog.text
    with run.life(3):
        pass
    assert [life.to_step for life in read_ledger(run.path)] == [3]


def test_signs_of_life_do_not_make_the_file_grow_and_torn_lines_are_passed_over(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(tmp_path / "ledger.jsonl")
    run.begin(None)
    for _ in range(500):
        run.do(1, 10.0 ** random.Random(run.step).randint(-3, 7))
        assert len(read_ledger(run.path)) == 1
    run.save()
    assert len(run.path.read_bytes().splitlines()) == 2
    with open(run.path, "ab") as file:
        file.write(b'{"event": 1}\n{"event": "sta')
    assert read_ledger(run.path)[0].to_step == 500
    assert "Skipped line 3 of" in caplog.text
    with run.life(500):
        pass
    assert [life.to_step for life in read_ledger(run.path)] == [500, 500]


def test_a_full_disk_is_warned_once_and_ends_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / "ledger.jsonl")
    with run.life(None):
        with monkeypatch.context() as patched:
            patched.setattr(os, "pwrite", lambda fd, line, at: 0)
            run.do(3, 3.0)
            run.save()
        assert caplog.text.count("cannot be written and is incomplete: the disk is full") == 1
        run.do(4, 4.0)
    assert read_ledger(run.path)[0].to_step == 7


def test_a_training_that_saves_nothing_tells_how_far_it_is(tmp_path: Path) -> None:
    """Should it be killed, what it has done until then is counted as lost."""
    seen: list[Life] = []

    def look(callback: Callback) -> None:
        seen.extend(read_ledger(tmp_path / "ledger.jsonl"))
        time.sleep(0.15)  # longer than from one sign of life to the next

    train(tmp_path, [Do("trigger", look)], model=LINE)
    assert 6 <= seen[1].to_step <= 12
