"""Applications as a user starts them."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn import metrics
from typer.testing import CliRunner

from app_commands import run
from digit_files import write_digits
from scaling import only_in_full
from towerpack import CheckpointError
from towerpack.apps import find_recipe, recipe_names, write_picture
from towerpack.callbacks.monitors import read_stats
from towerpack.checkpoint import list_checkpoints
from towerpack.cli import app
from towerpack.config import change, differences
from towerpack.dataflow.datasets import Digits
from towerpack.inference import load_exported
from warm_python import warm_python

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRATCH = ["augmenter=none", "pretrained=null", "transfer.skip=''", "transfer.trainable=''"]
SMALL = ["train.epochs=2", "steps_per_epoch=8", "network=lenet"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@only_in_full  # the demonstration does the same, and `tune` is tested with a text's application
@pytest.mark.timeout(600)
def test_the_quickstart_ends_with_answers(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name, module in {"python": "", "towerpack": "-m towerpack "}.items():
        path = tmp_path / "bin" / name
        path.write_text(f'#!/bin/sh\nexec {shlex.join(warm_python())} {module}"$@"\n')
        path.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", str(EXAMPLES / "quickstart.sh")],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "EPOCHS": "2", "TRIALS": "2"},
        capture_output=True,
        text=True,
        timeout=580,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "test: 360 datapoints" in done.stdout
    said = done.stdout.partition("== serve")[2]
    answers = [line.split()[:2] for line in said.splitlines() if "pictures/" in line]
    right = [name.removesuffix(".png")[-1] == answer for name, answer in answers]
    assert len(right) == 12
    assert sum(right) >= 9
    out = tmp_path / "runs" / "quickstart"
    for name in ("digits/infer/contact-sheet.png", "digits/eval-test/confusion.png"):
        assert (out / name).stat().st_size > 5000
    assert find_recipe(out / "tune" / "best.yaml").config.optimizer.learning_rate != 1e-3
    assert len(list((out / "tune").glob("trial-*/recipe.yaml"))) == 2


def test_a_run_is_the_recipe_of_all_commands(here: Path) -> None:
    """Every example is counted once; what was changed since is refused; results as JSON.

    Then inference, over good and bad files.
    """
    trained = json.loads(run("train", "digits", *SMALL, "--json"))
    assert trained["step"] == 16
    assert trained["val/error"] < 0.5
    told = json.loads(run("eval", "digits", "--json"))
    assert told["count"] == 360
    table = (here / "runs/digits/eval-test/classes.csv").read_text().splitlines()
    assert sum(int(line.rpartition(",")[2]) for line in table[1:]) == 360
    # The numbers of `eval`, of what `infer` gives, by scikit-learn.
    digits = Digits("test", shuffle=False)
    for i, image in enumerate(digits.images):
        write_picture(here / "test" / f"{i:03}.png", np.rint(image * (255 / 16)).astype(np.uint8))
    found = [row["class"] for row in json.loads(run("infer", "runs/digits", "test", "--json"))]
    truth = [str(label) for label in digits.labels]
    assert told["accuracy"] == pytest.approx(metrics.accuracy_score(truth, found), abs=1e-6)
    expected = metrics.f1_score(truth, found, average="macro")
    assert told["macro_f1"] == pytest.approx(expected, abs=1e-6)
    changed = CliRunner().invoke(app, ["train", "digits", *SMALL, "l2=0.5"])
    assert "model.l2: 1e-05 -> 0.5" in str(changed.exception)
    more = json.loads(run("train", "runs/digits", "epochs=3", "--json"))
    assert more["step"] == 24
    assert "conv0" in run("model", "show", "runs/digits")

    rng = np.random.default_rng(0)
    for name, shape in {"grey": (8, 8), "wide": (20, 90, 3), "colour": (33, 17, 3)}.items():
        write_picture(here / "in" / f"{name}.png", rng.integers(0, 256, shape).astype(np.uint8))
    (here / "in" / "broken.png").write_bytes(b"\x89PNG\r\n\x1a\nnothing")
    result = CliRunner().invoke(
        app,
        ["infer", "runs/digits", "in", "-", "absent.png", "--json"],
        input="in/grey.png\n",
    )
    rows = json.loads(result.stdout)
    assert result.exit_code == 1
    assert [Path(row["source"]).stem for row in rows] == [
        "broken",
        "colour",
        "grey",
        "wide",
        "grey",
        "absent",
    ]
    assert "absent.png" in rows[-1]["error"]
    assert "broken.png" in rows[0]["error"]
    assert rows[2]["top"] == rows[4]["top"]
    assert sum(len(list(here.glob(f"runs/*/infer/{s}*.png"))) for s in ("grey", "wide")) == 3
    nothing = CliRunner().invoke(app, ["infer", "runs/digits", "missing*.png"])
    assert "missing*.png" in str(nothing.exception)
    foreign = here / "in" / "predictions.json"
    foreign.write_text('{"of": "another"}')
    nothing = CliRunner().invoke(app, ["infer", "runs/digits", "in", "--out", "in"])
    assert "predictions.json" in str(nothing.exception)
    assert foreign.read_text() == '{"of": "another"}'


@only_in_full  # test_replicas.py has the trainers
def test_any_trainer_by_one_key(tmp_path: Path) -> None:
    # In a process of its own: TensorFlow divides the processor before it starts.
    command = [*warm_python(), "-m", "towerpack", "train", "digits", *SMALL, "--json"]
    done = subprocess.run(
        [*command, "trainer=sync", "devices=2", "epochs=1", "steps_per_epoch=2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "on 2 devices of the CPU" in done.stderr
    assert ".cc:" not in done.stderr
    assert json.loads(done.stdout)["step"] == 2


MISTAKES = {
    "model.l2_regex=((": "model.l2_regex: .*not a regular expression",
    "skip=fc.*": "transfer: .*pretrained",
    "optimizer.name=adm": "no optimizer 'adm'.*'adam'",
    "train.callbacks=[EarlyStoping]": "no callback 'EarlyStoping'.*'EarlyStopping'",
    "model.network=resnet33": "no network 'resnet33'.*'resnet32'",
    "devices=2": "train.devices needs one of the trainers",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_told_by_its_key(here: Path, mistake: str) -> None:
    result = CliRunner().invoke(app, ["train", "digits", mistake])
    assert re.search(MISTAKES[mistake], str(result.exception), re.DOTALL)
    assert not list(here.glob("runs/*/checkpoints/*"))


def test_a_folder_of_data_with_a_recipe_is_no_run(here: Path) -> None:
    (here / "pets").mkdir()
    recipe = here / "pets" / "recipe.yaml"
    recipe.write_text("task: classification\ndata: {inputter: digits}\n")
    assert find_recipe("pets").run_dir is None
    assert find_recipe("pets").name == "pets"


PATHS = {
    "classification": ("data: {inputter: csv, path: photographs}", "data.path"),
    "segmentation": ("data: {train: pictures/train.csv}", "data.path"),
    "detection": ("transfer: {pretrained: weights.npz}", "transfer.pretrained"),
    "style_transfer": ("model: {style: pictures/x.png}", "model.style"),
    "text_generation": ("model: {vectors: glove.txt}", "model.vectors"),
    "text_classification": ("data: {vocabulary: vocab.txt}", "data.vocabulary"),
}


@pytest.mark.parametrize("task", PATHS)
def test_paths_in_a_recipe_start_at_its_file(here: Path, task: str) -> None:
    text, key = PATHS[task]
    recipe = here / "project" / "own.yaml"
    recipe.parent.mkdir()
    recipe.write_text(f"task: {task}\n{text}\n")

    def value(*overrides: str) -> str:
        found: Any = find_recipe(recipe, overrides).config
        for name in key.split("."):
            found = getattr(found, name)
        return found

    assert Path(value()).is_absolute()
    assert Path(value()).is_relative_to(recipe.parent)
    assert value(f"{key}=elsewhere") == "elsewhere"  # which counts from the working directory


def test_names_are_found_however_they_are_written() -> None:
    for name in ("efficientnet-lite0", "efficientnet_lite0", "EfficientNet-Lite0"):
        given = [f"transfer.pretrained={name}"]
        assert find_recipe("digits", given).config.transfer.pretrained == "efficientnet-lite0"
        assert find_recipe(name).name == "efficientnet-lite0"
    usual, other = (
        find_recipe("digits", [f"optimizer={{name: {name}}}", f"network={network}"])
        for name, network in (
            ("momentum", "efficientnet_lite0"),
            ("Momentum", "EfficientNet-Lite0"),
        )
    )
    assert other.config == usual.config and usual.config.optimizer.learning_rate == 0.02


def test_a_run_goes_on_after_its_project_was_moved(here: Path) -> None:
    """Also if older versions kept the path as it was written, from the working directory."""
    (here / "project" / "photos").mkdir(parents=True)
    recipe = here / "project" / "own.yaml"
    recipe.write_text("task: classification\ndata: {inputter: folder, path: photos}\n")
    now: Any = find_recipe(recipe).config
    for path in ("project/photos", str(here / "old" / "photos"), "photos"):
        assert differences(change(now, **{"data.path": path}), now) == []
    (here / "old" / "photos").mkdir(parents=True)
    for path in (str(here / "old" / "photos"), "other"):
        old = change(now, **{"data.path": path})
        assert differences(old, now) == [("data.path", path, now.data.path)]


def test_no_checkpoint_is_an_error(here: Path) -> None:
    result = CliRunner().invoke(app, ["eval", "digits"])
    assert isinstance(result.exception, CheckpointError)
    assert "towerpack train" in str(result.exception)


def test_every_recipe_can_be_read_and_explained() -> None:
    listed = run("recipes")
    for name in recipe_names():
        said = run("train", name, "--show-config")
        assert f"network: {find_recipe(name).config.model.network}" in said
        assert name in listed


@only_in_full  # test_kill.py has the same of trainers
@pytest.mark.timeout(600)
def test_killed_and_continued_by_the_same_line(tmp_path: Path) -> None:
    write_digits(tmp_path, only=256)
    command = [
        *warm_python(),
        *("-m", "towerpack", "train", "resnet32-cifar10", f"data.path={tmp_path}/cifar10_data"),
        *("batch_size=32", "data.workers=0", "steps_per_epoch=4", "epochs=5", "validation=0.2"),
        *("learning_rate=0.01", "optimizer.warmup=0"),
    ]
    run_dir = tmp_path / "runs" / "resnet32-cifar10"
    first = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    while not (run_dir.is_dir() and list(run_dir.glob("checkpoints/step-*"))):
        assert first.poll() is None
        time.sleep(0.1)
    first.send_signal(signal.SIGKILL)
    first.wait()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    assert "Resumed at step" in done.stderr
    costs = dict(
        (record.step, record.scalars["cost"])
        for record in read_stats(run_dir / "stats.jsonl")
        if "cost" in record.scalars
    )
    assert list(costs) == [4, 8, 12, 16, 20]
    assert costs[20] < costs[4]
    assert max(row.step for row in list_checkpoints(run_dir)) == 20


@only_in_full
def test_the_walk_through_runs(here: Path) -> None:
    rng = np.random.default_rng(0)
    lines = []
    for i in range(96):
        image = rng.integers(0, 256, (32, 32, 3)).astype(np.uint8)
        write_picture(here / "pictures" / f"{i}.png", image)
        lines.append(f"{i}.png,{i % 10}")
    (here / "pictures" / "train.csv").write_text("\n".join(lines))
    script = str(EXAMPLES / "resnet32_cifar10.py")
    command = [*warm_python(), script, "pictures/train.csv", "--epochs", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    assert "validation error" in done.stdout


def test_an_application_of_ones_own(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file in EXAMPLES.glob("own_application.*"):
        (here / file.name).write_text(file.read_text())
    monkeypatch.syspath_prepend(here)
    few: Any = ("pictures=64", "batch_size=8", "--allow-code")
    run("train", "own_application.yaml", *few, "epochs=1")
    told = json.loads(run("eval", "own_application.yaml", "--json", "--allow-code"))
    assert told["count"] == 16
    assert 0 < told["mean_iou"] < 1
    run("export", "runs/own_application", "--allow-code")
    subprocess.run([*warm_python(), "own_application.py"], check=True)
    exported = load_exported(here / "runs" / "own_application" / "export" / "saved_model")
    files = [path.read_bytes() for path in sorted(here.glob("shapes/*.png"))]
    assert exported.run({"image_bytes": files})["classes"].shape == (6, 64, 64)
    rows = json.loads(run("infer", "runs/own_application", "shapes", "--json", "--allow-code"))
    assert len(rows) == 6
    assert all(abs(sum(v for v in row.values() if isinstance(v, float)) - 1) < 1e-6 for row in rows)


def test_rows_that_were_trained_on_are_reported(
    here: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Also after the data grew: the test set has new rows, but none that was trained on."""
    rng = np.random.default_rng(0)
    for k in range(48):
        colour = (
            rng.integers(0, 100, (20, 20, 3), np.uint8) + 150 * np.eye(3, dtype=np.uint8)[k % 2]
        )
        write_picture(here / f"digits/{k % 2}/{k}.png", colour.astype(np.uint8))
    run("data", "import", "digits")
    run("train", "digits", "epochs=1", "network=lenet", *SCRATCH)
    told = json.loads(run("eval", "digits", "--json"))
    assert told["trained_on"] == 0
    trained = json.loads(run("eval", "digits", "data.test=train.csv", "--json"))
    assert trained["trained_on"] == trained["count"] > 0
    assert f"{trained['count']} of the {trained['count']} rows in 'test'" in caplog.text
    for i, file in enumerate(sorted((here / "digits").glob("*/*.png"))[::3]):
        (file.parent / f"new{i}.png").write_bytes(file.read_bytes())
    run("data", "import", "digits", "--overwrite")
    again = json.loads(run("eval", "digits", "--json"))
    assert again["trained_on"] == 0 and again["count"] > told["count"]
