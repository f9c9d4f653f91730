"""Files of a run that are damaged, or were forged: one error of ours, which names the file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from towerpack import ConfigError, TowerpackError
from towerpack.cli import app

TRAIN = ["train", "digits", "train.steps_per_epoch=1", "data.synthetic=true"]
NPY = b"\x93NUMPY\x01\x00\x76\x00{'descr': '<u8', 'fortran_order': False, 'shape': (%d,), }"
COMMANDS = ["eval", "infer", "train", "runs data"]
JSON = [b"", b"[" * 100_000, b"5", b'["0", 1e308]']
ARRAYS = [
    b"",
    (NPY % 10**14).ljust(127) + b"\n",
    NPY[:8] + b"\xe8\3" + b"(" * 999 + b"\n",
    b"PK\3\4",
]
DAMAGE = [
    *(("classes.json", content, command) for content, command in zip(JSON, COMMANDS, strict=True)),
    *(("trained_on.npy", content, "eval") for content in ARRAYS),
    ("trained_on.npy", b"", "train"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("run") / "digits"
    done = CliRunner().invoke(app, [*TRAIN, "train.epochs=1", f"--run-dir={run}"])
    assert not done.exit_code, done.exception
    return run


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "digits"))


TUNE = ["tune", "digits", *TRAIN[2:], "train.epochs=1", "--trials=1"]


@pytest.mark.parametrize("content", [b"x" * 5000, None])
def test_the_database_of_a_study(tmp_path: Path, content: bytes | None) -> None:
    mine = tmp_path / "mine.db"
    mine.write_bytes(b"")
    (tmp_path / "tune").mkdir()
    file = tmp_path / "tune" / "study.db"
    file.symlink_to(mine) if content is None else file.write_bytes(content)
    done = CliRunner().invoke(app, [*TUNE, f"--out={file.parent}"])
    assert isinstance(done.exception, ConfigError) and "study.db" in str(done.exception)
    assert not mine.read_bytes()


def test_a_study_with_another_search_space(tmp_path: Path) -> None:
    space = tmp_path / "space.yaml"
    space.write_text("optimizer.name: [adam, sgd]")
    tune = [*TUNE, f"--out={tmp_path / 'tune'}", f"--space={space}"]
    assert CliRunner().invoke(app, tune).exit_code == 0
    space.write_text("optimizer.name: [adam]")
    done = CliRunner().invoke(app, [*tune, "--trials=2"])
    assert isinstance(done.exception, ConfigError)
    assert "different search space" in str(done.exception)


def error_of(command: str, run: Path) -> str:
    arguments = {
        "train": [*TRAIN, "train.epochs=2", f"--run-dir={run}"],
        "infer": ["infer", str(run), str(run)],
    }
    done = CliRunner().invoke(app, arguments.get(command, [*command.split(), str(run)]))
    assert isinstance(done.exception, TowerpackError), (done.exception, done.output)
    return str(done.exception)


@pytest.mark.parametrize(("name", "content", "command"), DAMAGE)
def test_a_damaged_file_is_named(run: Path, name: str, content: bytes, command: str) -> None:
    (run / name).write_bytes(content)
    assert name in error_of(command, run)
