"""Workers that are forks are workers: the laws of every flow, in a process of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from every_flow import STAGES, assert_same, in_order, packed_state, planned
from scaling import sample
from towerpack.dataflow import DataFlow, PrefetchData

SEED = 11
LIMIT = 22
NAMES = sample([name for name in STAGES if not STAGES[name].needs_plan], at_least=3)


def check_stops(flow: DataFlow, again: DataFlow, whole: list[Any], epoch: int, where: str) -> None:
    """Stopped in a few places and restored, the rest is identical."""
    for stop in sorted({1, len(whole) // 2, len(whole)}):
        iterator = flow.iterate(seed=SEED, epoch=epoch)
        assert_same(list(islice(iterator, stop)), whole[:stop], f"{where}, up to {stop}")
        state = packed_state(iterator)
        iterator.close()
        rest = list(islice(again.iterate(state=state), len(whole) - stop))
        assert_same(rest, whole[stop:], f"{where}, from {stop} on")


def check_forks(name: str) -> None:
    """Runs in a process of its own: where there are threads, or TensorFlow, forks are refused."""
    for source in (planned, in_order):
        whole = list(islice(STAGES[name].plain(source).iterate(seed=SEED, epoch=1), LIMIT))
        for workers, others in ((1, 2), (2, 0)):
            one, other = (
                PrefetchData(STAGES[name].plain(source), num_proc=count, start="fork")
                for count in (workers, others)
            )
            where = f"{name}, {source.__name__}, {workers} forks and then {others}"
            check_stops(one, other, whole, 1, where)


@pytest.mark.slow
def test_forks_give_what_one_process_gives() -> None:
    command = [sys.executable, __file__, *NAMES]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "support")}
    # What was printed and is not written yet must not be written by forks, too.
    environment.pop("PYTHONUNBUFFERED", None)
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=250, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == [*NAMES, ""]


if __name__ == "__main__":
    for one in sys.argv[1:]:
        check_forks(one)
        sys.stdout.write(f"{one}\n")
