"""Commands of applications, and a server of what they export, within this process."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import uvicorn
from typer.testing import CliRunner

from processes import wait_until
from scaling import SCALE
from towerpack.cli import app
from towerpack.serving import create_app


def run(*arguments: str, **options: Any) -> str:
    """What a command prints."""
    result = CliRunner().invoke(app, arguments, catch_exceptions=False, **options)
    assert result.exit_code == 0, result.output
    return result.stdout


def tune(recipe: str, *more: str) -> None:
    """A trial, with `make test-full`: it does what `train` has done, which takes as long."""
    if SCALE == 1:
        run("tune", recipe, "--trials", "1", "epochs=1", "steps_per_epoch=2", *more)
        assert Path(f"runs/{Path(recipe).stem}-tune/best.yaml").is_file()


def asked(folder: Path, *arguments: str) -> list[dict[str, Any]]:
    """What `towerpack client` prints of a server of the versions in a folder."""
    server = uvicorn.Server(
        uvicorn.Config(create_app(folder, name="it"), port=0, log_level="error")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, 60)
        port = server.servers[0].sockets[0].getsockname()[1]
        lines = run("client", f"http://127.0.0.1:{port}", *arguments, "--json").splitlines()
    finally:
        server.should_exit = True
        thread.join()
    return [json.loads(line) for line in lines]
