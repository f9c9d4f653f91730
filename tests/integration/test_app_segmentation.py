"""Segmentation as a user starts it, from pictures to a server."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from app_commands import asked, run, tune
from label_files import scene, write_scenes
from towerpack.apps import write_picture
from towerpack.inference import load_exported

RECIPE = """
task: segmentation
data: {path: data, void: [255], size: [40, 48], batch_size: 8, augmenter: unet}
model: {network: unet, options: {width: 8, batch_norm: true}}
optimizer: {name: adam, learning_rate: 0.01}
train: {epochs: 2, steps_per_epoch: 20, keep: 1}
search: {optimizer.learning_rate: [0.001, 0.01]}
"""


@pytest.mark.timeout(600)
def test_all_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_scenes(tmp_path / "data", {"train": 24, "val": 8, "test": 9})
    (tmp_path / "shapes.yaml").write_text(RECIPE)
    run("train", "shapes.yaml")
    told = json.loads(run("eval", "shapes.yaml", "--json"))
    assert told["count"] == 9
    assert told["mean_iou"] > 0.6
    rows = (tmp_path / "runs/shapes/eval-test/classes.csv").read_text().splitlines()[1:]
    assert sum(int(row.rpartition(",")[2]) for row in rows) == 9 * 39 * 48  # without void

    # The numbers of `eval`, of what `infer` gives, by NumPy.
    listed = [line.split(",") for line in Path("data/test.csv").read_text().splitlines()[1:]]
    run("infer", "runs/shapes", *(f"data/{picture}" for picture, _ in listed), "--out", "tested")
    both = np.zeros([3, 3], int)
    for picture, truth in listed:
        right = np.asarray(Image.open(Path("data") / truth))
        found = np.asarray(Image.open(f"tested/{Path(picture).stem}.labels.png"))
        np.add.at(both, (right[right != 255], found[right != 255]), 1)
    hits = np.diag(both)
    iou = hits / (both.sum(0) + both.sum(1) - hits)
    assert told["mean_iou"] == pytest.approx(iou.mean(), abs=1e-6)

    sizes = {"wide": (50, 90), "tall": (120, 60)}
    for seed, (name, size) in enumerate(sizes.items(), 50):
        write_picture(tmp_path / "in" / f"{name}.png", scene(seed, *size)[0])
    (tmp_path / "data").rename(tmp_path / "elsewhere")  # predictions need no data
    shares = json.loads(run("infer", "runs/shapes", "in", "--json"))
    (tmp_path / "elsewhere").rename(tmp_path / "data")
    assert [row["source"] for row in shares] == ["in/tall.png", "in/wide.png"]
    assert all(abs(sum(row[n] for n in ("paper", "disc", "square")) - 1) < 1e-6 for row in shares)
    with Image.open(tmp_path / "runs/shapes/infer/tall.png") as drawn:
        assert drawn.size[0] == 256 and drawn.size[1] > 120  # the legend is below, and wider
    labels = {
        name: (tmp_path / f"runs/shapes/infer/{name}.labels.png").read_bytes() for name in sizes
    }

    run("export", "shapes.yaml")
    place = tmp_path / "runs/shapes/export/saved_model/1"
    exported = load_exported(place)
    assert exported.metadata["class_names"] == ["paper", "disc", "square"]
    assert len(exported.metadata["colours"]) == 3
    files = [(tmp_path / "in" / f"{name}.png").read_bytes() for name in sizes]
    masks = [exported.run({"image_bytes": [file]})["mask_bytes"][0] for file in files]
    answers = asked(place.parent, "in/wide.png", "in/tall.png", "--out", "answers")
    assert [Path(row["mask"]).read_bytes() for row in answers] == masks
    for seed, (size, mask) in enumerate(zip(sizes.values(), masks, strict=True), 50):
        found = np.asarray(Image.open(io.BytesIO(mask)))
        assert found.shape == size and found.dtype == np.uint8
        assert (found == scene(seed, *size)[1]).mean() > 0.8
    for mask, own in zip(masks, labels.values(), strict=True):  # scaled by OpenCV, not TensorFlow
        both = [np.asarray(Image.open(io.BytesIO(one))) for one in (mask, own)]
        assert (both[0] == both[1]).mean() > 0.99

    tune("shapes.yaml")
