from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Final

import typer

from towerpack.cli._console import console
from towerpack.cli._options import ALLOW_CODE, JSON, RUN, RUN_DIR
from towerpack.cli._recipe import open_run

_LONGEST: Final = 120


def infer(
    run: RUN,
    sources: Annotated[
        list[str],
        typer.Argument(help="Files, folders, patterns or texts; - reads lines of standard input."),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Folder for images and tables (default: RUN/infer)."),
    ] = None,
    run_dir: RUN_DIR = None,
    allow_code: ALLOW_CODE = False,
    json_: JSON = False,
) -> None:
    """Run the best checkpoint of a run on files or texts, and show the predictions."""
    settings = [source for source in sources if _is_setting(source)]
    runner, display = open_run(run, settings, run_dir, allow_code)
    from towerpack.apps import infer as run_inference

    files = [source for source in sources if not _is_setting(source)]
    folder = out or runner.folder("infer")
    done = run_inference(runner, display, files, folder)
    show = console()
    if json_:
        text = json.dumps(list(done.rows), ensure_ascii=False)
        print(text.encode("utf-8", "backslashreplace").decode())
    else:
        for row in done.rows:
            cells = [
                f"{k} {v:.3f}" if isinstance(v, float) else f"{k} {v}"
                for k, v in row.items()
                if k != "source" and not isinstance(v, list | dict)
            ]
            name = str(row["source"])
            name = name if len(name) <= _LONGEST else f"{name[:_LONGEST]} …"
            show.print(f"{name}: {'  '.join(cells)}", markup=False)
        show.print(f"{len(done.files)} files in {folder}")
    if any("error" in row for row in done.rows):
        raise typer.Exit(1)


def _is_setting(text: str) -> bool:
    key, equals, _ = text.partition("=")
    is_key = key.replace(".", "").replace("_", "").isalnum()
    return bool(equals) and is_key and not Path(text).exists()
