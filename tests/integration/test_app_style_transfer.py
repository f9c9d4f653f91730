"""Style transfer as a user starts it, with photographs of scikit-image and a small VGG-19."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from skimage import data
from typer.testing import CliRunner

from app_commands import asked, run, tune
from towerpack.apps import write_picture
from towerpack.callbacks.monitors import read_stats
from towerpack.cli import app
from towerpack.inference import load_exported

RECIPE = """
task: style_transfer
data: {path: photos, size: 32, batch_size: 2}
model:
  options: {width: 4, blocks: 1}
  style: style.png
  style_size: 64
  features: vgg.npz
  content_layers: [conv2_1]
  style_layers: [conv1_1, conv2_1]
optimizer: {name: adam, learning_rate: 0.01}
train: {epochs: 2, steps_per_epoch: 15, keep: 1}
search: {optimizer.learning_rate: [0.001, 0.01]}
"""


def write_vgg(file: Path) -> None:
    """Random weights of a sixteenth of the paper's widths, named as in Keras."""
    rng, channels, arrays = np.random.default_rng(0), 3, {}
    for stage, (count, width) in enumerate([(2, 4), (2, 8), (4, 16), (4, 32), (4, 32)], 1):
        for i in range(1, count + 1):
            scale = np.sqrt(2 / (9 * channels))
            name = f"block{stage}_conv{i}"
            arrays[f"{name}/kernel"] = rng.normal(0, scale, (3, 3, channels, width))
            arrays[f"{name}/bias"] = np.zeros(width)
            channels = width
    np.savez(file, **{name: value.astype(np.float32) for name, value in arrays.items()})


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("astronaut", "coffee", "chelsea", "rocket"):
        write_picture(tmp_path / "photos" / f"{name}.png", getattr(data, name)()[::4, ::4])
    write_picture(tmp_path / "style.png", data.colorwheel())
    write_vgg(tmp_path / "vgg.npz")
    (tmp_path / "wheel.yaml").write_text(RECIPE)
    return tmp_path


@pytest.mark.timeout(600)
def test_all_commands(here: Path) -> None:
    told = json.loads(run("train", "wheel.yaml", "--json"))
    first, last = (row.scalars for row in read_stats(here / "runs/wheel/stats.jsonl"))
    # The cost of the one validation picture is noise in so short a training of random features.
    assert last["cost"] < 0.95 * first["cost"]
    assert told["step"] == 30
    assert json.loads(run("eval", "wheel.yaml", "--split", "val", "--json"))["count"] == 1

    photograph = data.cat()[:211, :300]
    write_picture(here / "in" / "cat.png", photograph)
    write_picture(here / "in" / "large.png", np.tile(data.camera()[..., None], 3))
    (here / "style.png").rename(here / "elsewhere.png")  # What is learnt needs it no more.
    rows = json.loads(run("infer", "wheel.yaml", "in", "--json"))
    assert [(row["height"], row["width"]) for row in rows] == [(211, 300), (512, 512)]
    drawn = np.asarray(Image.open(here / "runs/wheel/infer/cat.png"))
    assert drawn.shape == (211, 606, 3)
    np.testing.assert_array_equal(drawn[:, :300], photograph)

    write_picture(here / "in" / "dot.png", photograph[:1, :1])  # too small for the network
    tables = CliRunner().invoke(app, ["infer", "wheel.yaml", "in", "--json"])
    assert tables.exit_code == 1
    cat, dot, large = json.loads(tables.stdout)
    assert "paddings" in dot["error"] and [cat, large] == rows
    assert json.loads((here / "runs/wheel/infer/predictions.json").read_text()) == [cat, dot, large]

    run("export", "wheel.yaml")
    versions = here / "runs/wheel/export/saved_model"
    files = [(here / "in" / f"{name}.png").read_bytes() for name in ("cat", "large")]
    exported = load_exported(versions / "1")
    made = [exported.run({"image_bytes": [file]})["picture_bytes"][0] for file in files]
    found = np.asarray(Image.open(io.BytesIO(made[0])))
    assert found.shape == photograph.shape
    assert np.abs(found - drawn[:, 306:].astype(int)).mean() < 6  # JPEG loses that much of noise
    answers = asked(versions, "in/cat.png", "in/large.png", "--out", "answers")
    assert [Path(row["picture"]).read_bytes() for row in answers] == made
    (here / "elsewhere.png").rename(here / "style.png")
    tune("wheel.yaml")


MISTAKES = {
    "model.style=absent.png": "image absent.png cannot be read",
    "model.style=null": "needs a style picture",
    "features=absent.npz": "existing file, got .*absent.npz",
    "features=few.npz": "must contain the weights of VGG-19",
    "content_layers=[conv9_1]": "no layer 'conv9_1'",
    "data.inputter=csv data.train=list.csv": "list.csv, line 2: the file",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_error(here: Path, mistake: str) -> None:
    np.savez(here / "few.npz", kernel=np.zeros((3, 3, 3, 8)), bias=np.zeros(8))
    (here / "photos" / "list.csv").write_text("coffee.png\nabsent.png\n")
    result = CliRunner().invoke(app, ["train", "wheel.yaml", *mistake.split()])
    assert re.search(MISTAKES[mistake], str(result.exception))
