"""A recipe, and the directory of a run, can be data: code that they name runs only if it may."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from towerpack import ConfigError
from towerpack.apps import CALLBACKS, Runner, find_recipe
from towerpack.apps import __file__ as apps_file
from towerpack.callbacks import Callback
from towerpack.cli import app
from towerpack.config import Registry

DIGITS = Path(apps_file).parent / "classification" / "recipes" / "digits.yaml"
LEFT = "left_by_code.txt"


@pytest.fixture(autouse=True)
def _module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the working directory that leaves a file where it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    Path("stranger.py").write_text(f"open({LEFT!r}, 'w').close()\n{LEFT.split('.')[0]} = dict\n")
    Path("stran-ger.py").write_bytes(Path("stranger.py").read_bytes())
    yield
    sys.modules.pop("stranger", None)


CODE = {
    "task": "stranger:x",
    "data.inputter": "stranger:x",
    "data.augmenter": "stranger:x",
    "model.network": "stran-ger: x",
    "optimizer.name": "stranger:x",
    "train.trainer": "stranger:x",
    "train.callbacks": [{"subprocess:call": {"args": ["touch", LEFT]}}, "stranger:x"],
    "search": {"train.callbacks": [[{"subprocess:call": {"args": ["touch", LEFT]}}]]},
}
# YAML has several types for one text: pydantic converts them all.
OTHER_TYPES = {
    "bytes": ("optimizer.name", b"stranger:x"),
    "bytes in a list": ("train.callbacks", [{b"stranger:x": {}}]),
    "set": ("train.callbacks", {"stranger:x"}),
    "set of a search": ("search", {"optimizer.name": {"stranger:x"}}),
}


def recipe_with(key: str, value: Any) -> Path:
    recipe = yaml.safe_load(DIGITS.read_text())
    *sections, last = key.split(".")
    inner = recipe
    for section in sections:
        inner = inner.setdefault(section, {})
    inner[last] = value
    path = Path("run") / "recipe.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(recipe))
    return path


@pytest.mark.parametrize("key", CODE)
def test_code_that_a_file_names_is_not_even_imported(key: str) -> None:
    path = recipe_with(key, CODE[key])
    with pytest.raises(ConfigError, match="names code") as caught:
        find_recipe(path)
    assert "--allow-code" in str(caught.value.fix) and key.split(".")[-1] in str(caught.value)
    assert not Path(LEFT).exists()


@pytest.mark.parametrize("case", OTHER_TYPES)
def test_code_is_found_in_every_type_of_yaml(case: str) -> None:
    path = recipe_with(*OTHER_TYPES[case])
    assert "!!binary" in path.read_text() or "!!set" in path.read_text()
    with pytest.raises(ConfigError, match="names code"):
        find_recipe(path)


@pytest.mark.parametrize(
    "command", ["train", "eval", "infer", "tune", "export", "model show", "train --show-config"]
)
def test_every_command_refuses_the_code_of_a_run(command: str) -> None:
    path = recipe_with("train.callbacks", CODE["train.callbacks"])
    (path.parent / "checkpoints").mkdir()
    arguments = [*command.split()[:1], *command.split()[1:], str(path.parent)]
    done = CliRunner().invoke(app, [*arguments, "x.png"] if command == "infer" else arguments)
    assert done.exit_code and "names code" in str(done.exception or done.output)
    assert not Path(LEFT).exists()


def test_a_search_space_is_data_too() -> None:
    Path("space.yaml").write_text("train.callbacks: [['subprocess:call']]")
    done = CliRunner().invoke(app, ["tune", str(DIGITS), "--space", "space.yaml", "--trials=1"])
    assert done.exit_code and "names code" in str(done.exception or done.output)


def test_code_that_the_user_names_or_allows_is_run() -> None:
    assert find_recipe(DIGITS, ["network=stranger:x"]).config.model.network == "stranger:x"
    path = recipe_with("train.callbacks", ["stranger:left_by_code"])
    found = find_recipe(path, allow_code=True)
    with pytest.raises(ConfigError, match="must be a subclass of Callback"):
        Runner.from_recipe(found, Path("other")).train()
    assert Path(LEFT).exists()


@pytest.mark.parametrize("name", ["stranger:/x", "stranger:", "stran-ger:x", "./stranger:x"])
def test_what_is_no_name_of_code_is_not_imported_either(name: str) -> None:
    with pytest.raises(ConfigError):
        find_recipe(recipe_with("task", name))
    assert not Path(LEFT).exists()


def test_of_what_kind_a_thing_is_shows_before_it_is_called() -> None:
    for spec in ("subprocess:call", "os:system", "towerpack.callbacks:CallbackFactory.trigger"):
        with pytest.raises(ConfigError, match=r"must be a subclass of Callback|has no callback"):
            CALLBACKS.get(spec)
    assert issubclass(CALLBACKS.get("towerpack.callbacks:BestSaver"), Callback)


def test_the_working_directory_comes_after_installed_packages() -> None:
    Path("json.py").write_text(f"open({LEFT!r}, 'w').close()")
    Path("wave.py").write_text(f"open({LEFT!r}, 'w').close()")  # nothing has imported it so far
    sys.modules.pop("wave", None)
    assert callable(Registry[Any]("thing", {}).get("wave:open"))
    assert not Path(LEFT).exists()


def test_modules_of_the_working_directory_are_found_only_for_names_of_the_user(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Libraries try to import packages that are not installed, such as pandas.
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(Path.cwd())])
    recipe = find_recipe(DIGITS)
    Runner.from_recipe(recipe, Path("run"))
    assert importlib.util.find_spec("stranger") is None
    with pytest.raises(ConfigError, match="no network"):
        find_recipe(DIGITS, ["network=stranger:other"]).modeler(recipe.inputter())
    assert importlib.util.find_spec("stranger")


def test_a_run_is_written_into_through_no_link(tmp_path: Path) -> None:
    runner = Runner.from_recipe(find_recipe(DIGITS), tmp_path / "run")
    for name in ("infer", "export", "eval-test"):
        assert runner.folder(name) == tmp_path / "run" / name
        (tmp_path / "run").mkdir(exist_ok=True)
        (tmp_path / "run" / name).symlink_to(tmp_path)
        with pytest.raises(ConfigError, match="must not be a link"):
            runner.folder(name)
    found = CliRunner().invoke(app, ["infer", "run", "stranger.py"])
    assert found.exit_code and not Path("contact-sheet.png").exists()


def test_weights_of_a_run_that_names_code_are_taken_without_it(caplog: Any) -> None:
    run = recipe_with("data.augmenter", "stranger:x").parent
    shutil.copy(DIGITS, "mine.yaml")
    found = find_recipe("mine.yaml", [f"transfer.pretrained={run}"])
    found.modeler(found.inputter()).check_pixels(str(run))
    assert "names code" in caplog.text and not Path(LEFT).exists()
    (run / "recipe.yaml").write_text("title: no task")
    with pytest.raises(ConfigError, match="There is no task"):
        found.modeler(found.inputter()).check_pixels(str(run))
