"""When checkpoints are written, over contents that are three numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towerpack import InternalError, NumericsError
from towerpack.checkpoint import list_checkpoints, load_checkpoint
from towerpack.training.state.clock import Clock
from towerpack.training.state.host_copies import Snapshot
from towerpack.training.state.ledger import Ledger, read_ledger
from towerpack.training.state.saver import Saves


class Contents:
    """Contents of a run at `step`."""

    def __init__(self) -> None:
        self.step = 0
        self.nan = False
        self.checked = 0

    @property
    def place(self) -> tuple[Any, ...]:
        return self.step, True, "steps"

    def check(self) -> None:
        self.checked += 1

    def capture(self) -> Snapshot:
        if self.nan:
            raise NumericsError("Weights are NaN.")
        tensors = {"model": {"w": np.float32([self.step])}}
        return Snapshot(self.step, self.place, tensors, {"step": self.step})


class Run:
    """A saver with an open store."""

    def __init__(self, directory: Path, *, writes: bool = True) -> None:
        directory.mkdir(exist_ok=True)
        self.directory = directory
        self.contents = Contents()
        self.values = {"val/error": 0.5}
        self.saves = Saves(self.values.__getitem__, writes=writes)
        self.ledger = Ledger(directory / "ledger.jsonl", Clock(), step=lambda: self.contents.step)
        contents: Any = self.contents
        self.store = self.saves.open(directory / "checkpoints", contents, self.ledger)

    def at(self, step: int) -> Run:
        self.contents.step = step
        return self

    def steps(self) -> list[tuple[int, str | None]]:
        self.store.wait()
        if not (self.directory / "checkpoints").exists():
            return []
        return [(row.step, row.tag) for row in list_checkpoints(self.directory)]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    run = Run(tmp_path)
    with run.ledger:
        yield run
        run.saves.close()


def test_nothing_is_written_unless_a_callback_asks(run: Run) -> None:
    run.at(3).saves.write()
    assert run.steps() == []
    run.saves.request(keep=None, best=None)
    run.saves.write()
    run.at(4).saves.write()
    assert run.steps() == [(3, None)]


def test_two_requests_of_one_moment_are_one_checkpoint_and_its_name(run: Run) -> None:
    run.at(3).saves.request(keep=None, best=None)
    run.saves.request(keep=None, best="val/error")
    run.saves.write()
    assert run.steps() == [(3, "best-val/error"), (3, None)]
    info = load_checkpoint(run.directory).manifest.info
    assert info["best"] == [{"name": "val/error", "value": 0.5}]


def test_the_best_alone_is_a_checkpoint_of_its_own(run: Run) -> None:
    for step, error in [(2, 0.5), (4, float("nan"))]:
        run.values["val/error"] = error
        run.at(step).saves.request(keep=None, best="val/error")
        run.saves.write()
    assert run.steps() == [(4, "best-val/error")]
    [row] = list_checkpoints(run.directory)
    assert row.info["value"] == "nan"


@pytest.mark.parametrize("saves_end", [False, True])
def test_the_end_is_saved_once_and_only_in_runs_that_save(run: Run, saves_end: bool) -> None:
    if saves_end:
        run.saves.save_end()
    run.at(5)
    for _ in range(2):
        run.saves.at_the_end(run.contents.place)
    assert run.steps() == ([(5, None)] if saves_end else [])
    assert run.contents.checked == (1 if saves_end else 2), "weights are looked at anyway"


def test_a_failure_is_saved_beside_all_that_is_there(run: Run) -> None:
    run.at(2).saves.request(keep=1, best=None)
    run.saves.write()
    run.at(4).saves.before_failure(KeyError(), run.contents.place)
    assert run.steps() == [(2, None), (4, None)]


def test_no_failure_is_saved_before_the_first_step_or_with_nan(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    run.saves.save_end()
    run.at(0).saves.before_failure(KeyError(), run.contents.place)
    assert "NaN" not in caplog.text
    run.contents.nan = True
    run.at(4).saves.before_failure(KeyError(), run.contents.place)
    assert "NaN" in caplog.text
    assert run.steps() == []


@pytest.mark.parametrize("own", [True, False])
def test_a_run_that_goes_on_from_its_own_checkpoint_has_saved_that_place(
    tmp_path: Path, own: bool
) -> None:
    first = Run(tmp_path / "first")
    with first.ledger:
        first.at(3).saves.save_now()
        first.saves.close()
    again = Run(tmp_path / ("first" if own else "other"))
    with again.ledger:
        again.saves.save_end()
        again.at(3).saves.resumed_from(load_checkpoint(first.directory), again.contents.place)
        again.saves.at_the_end(again.contents.place)
        assert again.contents.checked == (1 if own else 0), "looked at instead of saved"
        assert again.steps() == [(3, None)]
        again.saves.close()


def test_a_process_that_leaves_saving_to_the_chief_notes_when_it_was(tmp_path: Path) -> None:
    run = Run(tmp_path, writes=False)
    with run.ledger:
        run.at(3).saves.request(keep=None, best=None)
        run.saves.write()
        run.saves.save_now()
        run.saves.save_end()
        run.saves.at_the_end(run.contents.place)
        assert run.steps() == []
        run.saves.close()
    text = (tmp_path / "ledger.jsonl").read_text()
    assert text.count('"event": "save"') == 2
    assert read_ledger(tmp_path / "ledger.jsonl")[-1].to_step == 3


def test_a_save_before_the_run_is_open_is_a_fault_of_ours() -> None:
    saves = Saves({}.__getitem__)
    for part in ("store", "contents", "ledger"):
        with pytest.raises(InternalError, match="was requested before"):
            getattr(saves, part)
