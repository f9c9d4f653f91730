"""`towerpack data serve` and `towerpack data keys`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from typer.testing import CliRunner

from processes import communicate
from scaling import only_in_full
from towerpack import ConfigError
from towerpack.cli import app
from towerpack.dataflow import RemoteDataZMQ

pytestmark = pytest.mark.timeout(60)

PROGRAM = """\
from towerpack.dataflow import DataFromList

def numbers():
    return DataFromList([(i,) for i in range(20)])
"""


def command(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    program = [sys.executable, "-c", "from towerpack.cli import main; main()", "data", *arguments]
    return subprocess.Popen(program, cwd=cwd, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("bind", [pytest.param(False, marks=only_in_full), True])
def test_a_program_is_served(tmp_path: Path, bind: bool) -> None:
    (tmp_path / "programs.py").write_text(PROGRAM)
    address = f"ipc://{tmp_path}/s"
    options = ["--bind" if bind else "--to", address, "--passes", "2"]
    process = command("serve", "programs.py:numbers", *options, cwd=tmp_path)
    ds = RemoteDataZMQ(address, bind=not bind, timeout_s=30)
    assert [n for (n,) in ds] == list(range(20)) * 2
    _, text = communicate(process, 10)
    assert process.returncode == 0
    assert "Traceback" not in text


def test_it_ends_by_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "programs.py").write_text(PROGRAM)
    address = f"ipc://{tmp_path}/s"
    process = command("serve", "programs.py:numbers", "--to", address, cwd=tmp_path)
    iterator = RemoteDataZMQ(address, timeout_s=30).iterate()
    list(islice(iterator, 30))
    process.send_signal(signal.SIGINT)
    _, text = communicate(process, 10)
    iterator.close()
    assert process.returncode == 130
    assert "Traceback" not in text


@pytest.mark.parametrize("options", [[], ["--to", "ipc://x", "--bind", "ipc://y"]])
def test_it_needs_one_address(options: list[str]) -> None:
    with pytest.raises(ConfigError, match="needs exactly one of --to and --bind"):
        CliRunner().invoke(
            app, ["data", "serve", "x:y", *options], catch_exceptions=False, standalone_mode=False
        )


def test_keys_are_made_and_explained(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    done = CliRunner().invoke(app, ["data", "keys", str(folder), "--client", "gpu"])
    assert done.exit_code == 0
    assert "gpu.key_secret" in done.stdout and "server.key_secret" in done.stdout
    again = CliRunner().invoke(app, ["data", "keys", str(folder), "--client", "gpu"])
    assert isinstance(again.exception, ConfigError)
    assert os.listdir(folder / "allowed") == ["gpu.key"]
    on_a_file = CliRunner().invoke(app, ["data", "keys", str(folder / "server.key")])
    assert isinstance(on_a_file.exception, ConfigError)
