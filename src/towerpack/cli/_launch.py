from __future__ import annotations

from typing import Annotated

import typer

from towerpack._core.logs import console as show_log


def launch(
    script: Annotated[
        list[str],
        typer.Argument(help="SCRIPT.py [ARGUMENTS], or -m MODULE [ARGUMENTS].", show_default=False),
    ],
    workers: Annotated[int, typer.Option(min=1, help="Number of workers.")],
    ps: Annotated[
        int, typer.Option(min=0, help="Number of parameter servers. If any, adds a chief.")
    ] = 0,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="Maximum number of restarts of the job after failures.")
    ] = 0,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds between SIGTERM and SIGKILL for processes.")
    ] = 30.0,
    backoff: Annotated[
        float, typer.Option(min=0, help="Seconds before the first restart; doubles up to 60.")
    ] = 1.0,
    min_life: Annotated[
        float,
        typer.Option(min=0, help="Seconds; three failures sooner than this end the job."),
    ] = 60.0,
) -> None:
    """Train in several local processes: towerpack launch --workers 2 -- SCRIPT.py.

    TF_CONFIG tells each process its task, and output lines start with the task's name. If a process
    fails, the others are stopped, and its exit code is returned. SIGTERM and Ctrl-C are passed on
    (exit code 143 or 130). Run the same command again to continue the job.
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
