from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import towerpack
from towerpack import ConfigError, MissingExtraError
from towerpack.checkpoint import CheckpointStore
from towerpack.cli import app, main


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.stdout) == (0, f"towerpack {towerpack.__version__}\n")


def test_help_and_an_unknown_command() -> None:
    for arguments in ([], ["--help"]):
        assert "--version" in CliRunner().invoke(app, arguments).output
    result = CliRunner().invoke(app, ["frobnicate"])
    assert result.exit_code == 2
    assert "frobnicate" in result.output


def test_an_option_written_as_a_setting_is_named() -> None:
    with pytest.raises(ConfigError, match="'run_dir' is an option, not a setting") as raised:
        CliRunner().invoke(app, ["train", "digits", "run_dir=here"], catch_exceptions=False)
    assert raised.value.fix == "pass --run-dir"


def test_module_runs_as_a_program_and_loads_no_framework(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros(3))
    with CheckpointStore(tmp_path / "checkpoints") as store:
        store.save(7, {"model": {"fc/kernel": np.ones((2, 3))}})
    program = """
import runpy, sys
for arguments in (["--version"], ["data", "inspect", "x.npy"], ["ckpt", "show", "."]):
    sys.argv[1:] = arguments
    try:
        runpy.run_module("towerpack", run_name="__main__")
    except SystemExit as end:
        assert not end.code
print({"tensorflow", "keras"} & sys.modules.keys())
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert done.stdout.startswith(f"towerpack {towerpack.__version__}\n")
    assert "NumpyData(x.npy)" in done.stdout and "fc/kernel" in done.stdout
    assert done.stdout.endswith("set()\n")


@pytest.mark.parametrize(
    ("command", "extras"),
    [("demo", "apps,serve"), ("serve .", "serve,tf"), ("train digits", "apps"), ("eval x", "apps")],
)
def test_a_bare_install_is_told_all_extras_at_once(
    command: str, extras: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("tensorflow", "fastapi", "sklearn", "cv2", "matplotlib"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in [name for name in sys.modules if name.startswith("towerpack.serving")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError) as raised:
        CliRunner().invoke(app, command.split(), catch_exceptions=False)
    assert raised.value.fix == f'pip install "towerpack[{extras}]"'


SCRIPT = """
import tensorflow as tf
from towerpack import ModelDesc
class Model(ModelDesc):
    def inputs(self): return [tf.TensorSpec([None, 2], tf.float32, "x")]
    def build_graph(self, x): return tf.reduce_mean(x)
"""
SAID = {
    "export model.py:Model --run run --format onxx": "--format onxx.*'onnx'",
    "export model.py:Model --run run --format litert --quantize int8": "--quantize.*--examples",
    "export model.py:Model --run run --version 1": "leave --version out",
    "train digits xla=true deterministic=true": "train.xla=true.* with train.deterministic=true",
    "train digits trainer=sync devices=['CPU:7']": "set train.devices=NUMBER",
    "train digits transfer.pretrained=other.npz": "set transfer.ignore_mismatch=true or",
    "train digits transfer.pretrained=other.npz skip=nothing": "transfer.skip='nothing' matches no",
}
PYTHON = re.compile(r"\w+\([^)]*=|\b(True|False|None)\b|\w+=['…]")


@pytest.mark.parametrize("command", SAID)
def test_errors_are_told_in_the_words_of_the_command_line(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(SCRIPT)
    Path("run/export/saved_model/1").mkdir(parents=True)
    Path("run/checkpoints").mkdir()
    np.savez("other.npz", **{"conv0/kernel": np.zeros(3, np.float32)})
    monkeypatch.setattr(sys, "argv", ["towerpack", *command.split()])
    with pytest.raises(SystemExit):
        main()
    told = capsys.readouterr().err
    told = told[told.index("Error: ") :]
    assert re.search(SAID[command], told, re.DOTALL)
    assert not PYTHON.search(told.replace("devices=['CPU:7']", "").replace("skip='nothing'", ""))


def test_a_command_lives_in_the_module_of_its_name() -> None:
    def check(group: Any, prefix: str) -> None:
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                check(command, f"{prefix}_{name}")
            else:
                assert command.callback.__module__ == f"towerpack.cli.{prefix}_{name}"

    check(typer.main.get_command(app), "")
