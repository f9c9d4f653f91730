"""`towerpack launch`: a job of several processes on this machine."""

from __future__ import annotations

from typing import Annotated

import typer

from towerpack._core.logs import console as show_log


def launch(
    script: Annotated[
        list[str],
        typer.Argument(help="SCRIPT.py [ARGUMENTS], or -m MODULE [ARGUMENTS].", show_default=False),
    ],
    workers: Annotated[int, typer.Option(min=1, help="How many workers.")],
    ps: Annotated[
        int, typer.Option(min=0, help="How many parameter servers; with any also a chief.")
    ] = 0,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="How often all are started again after one has failed.")
    ] = 0,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds from SIGTERM until what is left is killed.")
    ] = 30.0,
    backoff: Annotated[
        float, typer.Option(min=0, help="Seconds before the first restart; they double up to 60.")
    ] = 1.0,
    min_life: Annotated[
        float,
        typer.Option(min=0, help="Three failures in a row within so many seconds end the job."),
    ] = 60.0,
) -> None:
    """Train in several local processes: towerpack launch --workers 2 -- SCRIPT.py.

    Each finds its place in TF_CONFIG, and its lines are shown with its name. When one fails, all
    are ended. Exits with the status of the one that failed first; with 143 or 130 after SIGTERM or
    Ctrl-C, which are passed on, as then the same command continues.
    """
    from towerpack.cluster import Launcher

    show_log()
    launcher = Launcher(
        script,
        workers=workers,
        ps=ps,
        max_restarts=max_restarts,
        grace_s=grace,
        backoff_s=backoff,
        min_life_s=min_life,
    )
    raise typer.Exit(launcher.run())
