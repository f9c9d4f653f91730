from __future__ import annotations

from typing import Annotated, Literal

import typer

from towerpack._core.errors import ConfigError
from towerpack._core.logs import console as show_log


def launch(
    script: Annotated[
        list[str],
        typer.Argument(help="SCRIPT.py [ARGUMENTS], or -m MODULE [ARGUMENTS].", show_default=False),
    ],
    workers: Annotated[
        str, typer.Option(help="Number of workers; with --on ray also a range: 1:4.")
    ],
    on: Annotated[
        Literal["here", "ray"], typer.Option(help="Run on this machine, or on a Ray cluster.")
    ] = "here",
    ps: Annotated[
        int, typer.Option(min=0, help="Number of parameter servers. If any, adds a chief.")
    ] = 0,
    max_restarts: Annotated[
        int, typer.Option(min=0, help="Maximum number of restarts after failures.")
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
    resources: Annotated[
        str, typer.Option(help="Resources of each worker on Ray: CPU=4,GPU=1.")
    ] = "CPU=1",
    storage: Annotated[str, typer.Option(help="Directory for logs and Ray's files.")] = "runs/ray",
) -> None:
    """Train in several local processes: towerpack launch --workers 2 -- SCRIPT.py.

    TF_CONFIG tells each process its task, and output lines start with the task's name. If a process
    fails, the others are stopped, and its exit code is returned. SIGTERM and Ctrl-C are passed on
    (exit code 143 or 130). Run the same command again to continue the job.

    With --on ray, the workers are placed, restarted and resized by the Ray cluster in RAY_ADDRESS,
    and --ps, --backoff and --min-life do not apply.
    """
    from towerpack.cluster import Launcher

    show_log()
    least, colon, most = workers.partition(":")
    try:
        number, largest = int(least), int(most if colon else least)
        amounts = {
            name: float(x) for name, _, x in (r.partition("=") for r in resources.split(","))
        }
    except ValueError as error:
        raise ConfigError(
            "--workers and --resources must contain numbers.",
            got=f"--workers {workers} --resources {resources}",
            expected="--workers 2 or 1:4, --resources CPU=4,GPU=1",
        ) from error
    if on == "ray":
        from towerpack.cluster.ray import train

        raise typer.Exit(
            train(
                script,
                workers=(number, largest) if colon else number,
                resources=amounts,
                storage=storage,
                max_restarts=max_restarts,
                grace_s=grace,
            )
        )
    if colon or number < 1:
        raise ConfigError(f"--workers must be a number from 1 on this machine, got {workers!r}.")
    launcher = Launcher(
        script,
        workers=number,
        ps=ps,
        max_restarts=max_restarts,
        grace_s=grace,
        backoff_s=backoff,
        min_life_s=min_life,
    )
    raise typer.Exit(launcher.run())
