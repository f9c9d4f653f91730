from __future__ import annotations

from towerpack.cli._console import console, print_rows
from towerpack.cli._options import ALLOW_CODE
from towerpack.cli._replay import FLOW, RUN_DIRECTORY, replay_of


def data(run: RUN_DIRECTORY, flow: FLOW = None, allow_code: ALLOW_CODE = False) -> None:
    """Count how often the steps of a run read each row of its data."""
    replay = replay_of(run, flow, allow_code)
    from towerpack.training.replay.audit import rows_read

    steps, counts = rows_read(replay)
    total = sum(int(read.sum()) for read in counts.values()) or 1
    console().print(
        f"{steps:,} of {replay.history.last:,} steps trained on each row so many times:"
    )
    numbers = {
        n: (len(read), *map(int, (read.sum(), read.min(), read.max(), (read == 0).sum())))
        for n, read in counts.items()
    }
    print_rows(
        ("source", ">rows", ">reads", ">least", ">most", ">never", ">share"),
        ((name, *values, f"{values[1] / total:.1%}") for name, values in numbers.items()),
    )
    if steps < replay.history.last:
        console().print("To count other steps, pass the --flow that they had.")
