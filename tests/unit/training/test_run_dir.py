from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from small_training import train
from towerpack import ConfigError, TowerpackError
from towerpack._core.logs import get_logger
from towerpack.callbacks import ModelSaver
from towerpack.training.distribution.team import Team
from towerpack.training.run import opening
from towerpack.training.state.run_dir import RunDir, default_run_dir


def started(path: Path) -> Path:
    """A directory with a finished run of one start in it."""
    with RunDir(path, clock=lambda: 100.0) as run:
        run.record_start(seed=1)
        (run.checkpoints / "step-00000001").mkdir(parents=True)
    return path


def test_everything_has_its_place(tmp_path: Path) -> None:
    with RunDir(tmp_path / "a" / "run") as run:
        assert run.path == tmp_path / "a" / "run"
        assert run.path.is_dir()
        names = [p.name for p in (run.log, run.stats, run.events, run.checkpoints)]
        assert names == ["log.txt", "stats.jsonl", "events", "checkpoints"]
        assert os.fspath(run) == str(run.path)
        assert run.recorded() == {}


def test_the_log_is_appended_to(tmp_path: Path) -> None:
    for number in (1, 2):
        with RunDir(tmp_path):
            get_logger("towerpack.test").info("start %d", number)
    get_logger("towerpack.test").info("outside")
    text = (tmp_path / "log.txt").read_text()
    assert "start 1" in text
    assert "start 2" in text
    assert "outside" not in text


def test_starts_are_recorded(tmp_path: Path) -> None:
    config = {"lr": 0.1, "loss": float("nan"), "path": Path("x"), "f": len, "sizes": (1, 2)}
    with RunDir(tmp_path, clock=lambda: 0.0) as run:
        run.record_start(seed=5, config=config, command=["train", "--fast"])
    with RunDir(tmp_path, clock=lambda: 1.0) as run:
        run.record_start(seed=5, config={"lr": 0.2}, resumed_at=40)
        recorded = run.recorded()
    assert recorded["seed"] == 5
    assert recorded["config"] == {"lr": 0.2}
    first, second = recorded["starts"]
    assert first["time"] == "1970-01-01T00:00:00+00:00"
    assert first["command"] == ["train", "--fast"]
    assert first["versions"]["python"] == sys.version.split()[0]
    assert (first["resumed_at"], second["resumed_at"]) == (None, 40)
    assert second["command"] == sys.orig_argv


def test_secrets_of_the_command_line_are_not_kept(tmp_path: Path) -> None:
    words = "train.py --api-key abc --token=abc wandb.password=abc https://me:abc@host/x"
    words += " --wandb-key abc --private_key abc --auth abc --pwd abc https://abc@h"
    words += " --max_tokens 5 --keyboard us --author me --key_frames 3 a:b"
    words += " --lr 0.1 max_tokens=9 --pass=abc --passphrase abc --cookie=abc --bearer abc"
    words += " https://host/x?a=1&api_key=abc&b=2 mysql://me:abc@abc:abc@host/x bypass=1"
    words += " https://host/x?se=1&sig=abc https://host/x?X-Amz-Signature=abc --signal 9 design=1"
    words += " -p abc --token -abc --secret --verbose --auth -v"
    spaced = ["-H", "Authorization: Bearer abc", '{"a": {"password": "abc==", "lr": "1"}}']
    with RunDir(tmp_path) as run:
        run.record_start(seed=5, command=[*words.split(), *spaced])
    [start] = json.loads((tmp_path / "run.json").read_text())["starts"]
    assert " ".join(start["command"][:-3]) == words.replace("abc@abc:abc", "abc").replace(
        " -abc", " abc"
    ).replace("abc", "***")
    hidden = ["-H", "Authorization: ***", '{"a": {"password": ***, "lr": "1"}}']
    assert start["command"][-3:] == hidden


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
@pytest.mark.parametrize("mask", [0o077, 0o022])
def test_the_umask_says_who_reads_a_run(tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        train(tmp_path / "run", [ModelSaver()], monitors=None, max_epoch=1)
    finally:
        os.umask(before)
    found = {path: path.stat().st_mode & 0o777 for path in (tmp_path / "run").rglob("*")}
    names = {path.name for path in found}
    assert {"run.json", "log.txt", "stats.jsonl"} < names
    assert [path for path in found if path.suffix == ".safetensors"]
    assert not [path for path, mode in found.items() if mode & mask]
    readable = 0o444 & ~mask
    assert not [path for path, mode in found.items() if mode & readable != readable]


def test_a_configuration_is_noted_as_json(tmp_path: Path) -> None:
    config = {"loss": float("inf"), "path": Path("x"), "f": len, "sizes": (1, 2), 3: None}
    with RunDir(tmp_path) as run:
        run.record_start(seed=5, config=config)
    found = json.loads((tmp_path / "run.json").read_text())["config"]
    function = "<built-in function len>"
    assert found == {"loss": "inf", "path": "x", "f": function, "sizes": [1, 2], "3": None}


RECORDS = [
    *("{", "[]", "{}", '{"starts": 3}', '{"starts": []}', "[" * 100_000),
    '{"starts": [{"command": [], "unix_time": 1}], "config": 5}',
    *('{"starts": [null]}', '{"starts": [{"command": []}]}'),
    '{"starts": [{"command": [], "unix_time": 1e999}]}',
    '{"starts": [{"command": [3], "unix_time": 1}]}',
]


@pytest.mark.parametrize("text", RECORDS)
def test_a_damaged_record_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    with RunDir(tmp_path) as run, pytest.raises(ConfigError, match=r"run\.json"):
        run.record_start(seed=1)


def test_resume_keeps_what_is_there(tmp_path: Path) -> None:
    path = started(tmp_path / "run")
    with RunDir(path, on_existing="resume") as run:
        assert run.path == path
        assert (run.checkpoints / "step-00000001").is_dir()


def test_new_counts_up(tmp_path: Path) -> None:
    path = tmp_path / "run"
    taken = [RunDir(path, on_existing="new") for _ in range(2)]
    assert [run.path.name for run in taken] == ["run", "run-2"]
    for run in taken:
        run.close()
    with RunDir(path, on_existing="new") as run:
        assert run.path.name == "run-3"


def test_error_refuses(tmp_path: Path) -> None:
    path = started(tmp_path / "run")
    with pytest.raises(ConfigError, match="exists already") as caught:
        RunDir(path, on_existing="error")
    assert "run.json" in str(caught.value)
    with RunDir(path):
        pass  # The lock was given back.


def test_an_empty_directory_does_not_exist_already(tmp_path: Path) -> None:
    with RunDir(tmp_path, on_existing="error") as run:
        assert run.path == tmp_path


def test_delete_empties(tmp_path: Path) -> None:
    path = started(tmp_path / "run")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").touch()
    (path / "link").symlink_to(tmp_path / "elsewhere")
    with RunDir(path, on_existing="delete") as run:
        assert sorted(os.listdir(run)) == [".lock", "log.txt"]
        assert run.recorded() == {}
    assert (tmp_path / "elsewhere" / "precious").exists()


def test_delete_spares_what_is_no_run(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="did not empty"):
        RunDir(tmp_path, on_existing="delete")
    assert (tmp_path / "thesis.tex").exists()


def test_a_run_directory_has_one_process(tmp_path: Path) -> None:
    path = started(tmp_path / "run")
    with RunDir(path):
        for how in ("resume", "delete", "error"):
            with pytest.raises(ConfigError, match=f"in use(.|\n)*pid {os.getpid()}"):
                RunDir(path, on_existing=how)
    assert (path / "run.json").exists()


def test_the_kernel_ends_the_lock_of_a_killed_process(tmp_path: Path) -> None:
    program = f"""
import time
from towerpack.training.distribution.team import Team
from towerpack.training.run import opening
from towerpack.training.state.run_dir import RunDir
run = RunDir({str(tmp_path)!r})
print("open", flush=True)
time.sleep(60)
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == b"open\n"
        with pytest.raises(ConfigError, match=f"pid {child.pid}"):
            RunDir(tmp_path)
    finally:
        child.send_signal(signal.SIGKILL)
        child.communicate()
    with RunDir(tmp_path):
        pass


@pytest.mark.parametrize("how", ["resume", "new", "error", "delete"])
def test_a_place_that_cannot_be_used(tmp_path: Path, how: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be used"):
        RunDir(tmp_path / "file" / "run", on_existing=how)


def test_a_wrong_word_is_an_error_with_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'resume'"):
        RunDir(tmp_path, on_existing="resum")


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["work/mnist.py"], "mnist"),
        (["site/towerpack/__main__.py", "train"], "towerpack"),
        (["-c"], "interactive"),
        ([""], "interactive"),
        ([], "interactive"),
        (["x/ipykernel_launcher.py"], "interactive"),
    ],
)
def test_the_default_is_named_for_the_program(
    monkeypatch: pytest.MonkeyPatch, argv: list[str], name: str
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    assert default_run_dir() == Path("runs") / name


@pytest.mark.parametrize(
    "link_to", [Path.symlink_to, Path.hardlink_to, lambda path, _: os.mkfifo(path)]
)
def test_a_training_writes_through_no_link_of_its_directory(tmp_path: Path, link_to: Any) -> None:
    """Each file of a run from elsewhere is a link to a file of the user's, or a pipe."""
    whole = tmp_path / "whole"
    train(whole, [ModelSaver()], monitors=None)
    names = [str(p.relative_to(whole)) for p in whole.rglob("*") if p.is_file()]
    assert {".lock", "log.txt", "run.json", "ledger.jsonl", "stats.jsonl"} <= {*names}
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    for name in names:
        run = tmp_path / "runs" / name.replace("/", "-")
        (run / name).parent.mkdir(parents=True)
        link_to(run / name, mine)
        with contextlib.suppress(TowerpackError):
            train(run, [ModelSaver()], monitors=None)
        assert mine.read_text() == "mine", name


def test_a_training_writes_through_no_link_to_a_directory(tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    for name in ("checkpoints", "events"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).symlink_to(mine)
        with pytest.raises(ConfigError, match="must not be a link"):
            train(tmp_path / name, [ModelSaver()], monitors=None)
        assert not os.listdir(mine)


@pytest.mark.parametrize("name", ["SLURM_JOB_ID", "TOWERPACK_RUN_FILE"])
def test_a_chief_that_may_move_needs_shared_storage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    class Blind(Team):
        def exchange(self, value: Any) -> list[Any]:
            return [value, False]

    opening._check_shared(Blind(), tmp_path)
    monkeypatch.setenv(name, "1")
    with pytest.raises(ConfigError, match="not visible to process 1"):
        opening._check_shared(Blind(), tmp_path)
