from __future__ import annotations

from towerpack.cli._console import print_rows
from towerpack.cli._options import ALLOW_CODE
from towerpack.cli._replay import FLOW, RUN_DIRECTORY, replay_of


def data(run: RUN_DIRECTORY, flow: FLOW = None, allow_code: ALLOW_CODE = False) -> None:
    """Count how often the steps of a run read each row of its data."""
    replay = replay_of(run, flow, allow_code)
    from towerpack.training.replay.audit import rows_read

    steps, counts = rows_read(replay)
    total = sum(read.sum() for read in counts.values()) or 1
    print(f"{steps:,} of {replay.history.last:,} steps trained on each row so many times:")
    print_rows(
        ("source", ">rows", ">reads", ">share", ">least", ">most", ">never"),
        (
            (name, n.size, n.sum(), f"{n.sum() / total:.1%}", n.min(), n.max(), (n == 0).sum())
            for name, n in counts.items()
        ),
    )
    if steps < replay.history.last:
        print("To count other steps, pass the --flow that they had.")
