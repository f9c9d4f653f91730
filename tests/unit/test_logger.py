"""The run directory and the log by the predecessor's names."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from towerpack import ConfigError, logger
from towerpack.training.state.run_dir import RunDir, choose_run_dir, default_run_dir


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    choose_run_dir(None)


def test_trainers_without_a_run_dir_use_the_one_that_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert logger.get_logger_dir() is None
    monkeypatch.chdir(tmp_path)
    logger.set_logger_dir("log/one")
    monkeypatch.chdir("/")  # the directory stays where it was meant
    assert logger.get_logger_dir() == str(tmp_path / "log" / "one")
    assert Path(logger.get_logger_dir() or "").is_dir()
    with RunDir() as directory:
        assert directory.path == tmp_path / "log" / "one"


def test_automatic_directories_have_the_name_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["/somewhere/mnist.py"])
    without_logger = default_run_dir()
    logger.auto_set_dir()
    assert default_run_dir() == without_logger.absolute() == tmp_path / "runs" / "mnist"
    logger.auto_set_dir("k", "second")
    assert default_run_dir() == tmp_path / "runs" / "mnist-second"


def test_actions_never_ask(tmp_path: Path) -> None:
    place = tmp_path / "run"
    with RunDir(place) as run:
        run.record_start(seed=0)
    logger.set_logger_dir(place)
    assert run.recorded()
    with pytest.raises(ConfigError, match="exists already"):
        logger.set_logger_dir(place, "q")
    logger.set_logger_dir(place, "n")
    assert logger.get_logger_dir() == str(tmp_path / "run-2") and run.recorded()
    logger.set_logger_dir(place, action="d")
    assert logger.get_logger_dir() == str(place) and not run.recorded()
    with pytest.raises(ConfigError, match="'b'") as caught:
        logger.set_logger_dir(place, "b")
    assert "'n'" in str(caught.value)


def test_messages_reach_the_log_and_load_no_framework(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom towerpack import logger\n"
        "logger.auto_set_dir(name='x')\nlogger.info('%d pictures', 7)\nlogger.warn('few')\n"
        "print('tensorflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "7 pictures" in done.stderr and "few" in done.stderr
    assert done.stdout == "False\n"
    assert (tmp_path / "runs" / "interactive-x").is_dir()


def test_messages_are_in_the_log_of_the_run(tmp_path: Path) -> None:
    logging.getLogger("towerpack").setLevel(logging.INFO)
    logger.set_logger_dir(tmp_path)
    with RunDir() as run:
        logger.error("broken")
        logger.debug("not shown")
    assert "broken" in run.log.read_text() and "not shown" not in run.log.read_text()
