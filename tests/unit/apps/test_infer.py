"""`infer`: one bad item is a row with its error, and never the end of the others."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from towerpack import FormatError, SpecError
from towerpack.apps import Inference, infer
from towerpack.apps.detection import DetectionDisplay


@tf.function(autograph=False)
def model(image: tf.Tensor) -> tf.Tensor:
    """The mean of each row; the graph fails for a row with a 13."""
    unlucky = tf.debugging.assert_none_equal(image, np.int64(13), message="13 is unlucky")
    with tf.control_dependencies([unlucky]):
        return tf.reduce_mean(tf.cast(image, tf.float32), 1)


class Predictor:
    output_names = ("mean",)
    step = 7

    def __init__(self) -> None:
        self.batches: list[int] = []

    def __call__(self, image: np.ndarray) -> list[np.ndarray]:
        self.batches.append(len(image))
        if image.shape[1] == 3:
            raise SpecError("Three are too many.")
        return [model(image).numpy()]


class Inputter:
    batch_size = 8

    def sources(self, given: Sequence[str]) -> Sequence[str]:
        return given

    def read(self, source: str) -> np.ndarray:
        numbers = Path(source).name.split(".")[0].split("-")[-1]
        if numbers == "bad":
            raise FormatError(f"{source} holds no numbers.", fix="leave it out")
        return np.array([int(digits) for digits in numbers.split("_")])

    def prepare(self, sample: np.ndarray) -> tuple[np.ndarray]:
        return (sample,)


class Display:
    def row(self, outputs: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        return {"mean": float(outputs["mean"])}

    def draw(self, sample: np.ndarray, outputs: Mapping[str, np.ndarray]) -> np.ndarray:
        del outputs
        return np.full((9, 9, 3), sample[0], np.uint8)

    def files(self, sample: np.ndarray, outputs: Mapping[str, np.ndarray]) -> Mapping[str, bytes]:
        del outputs
        return {".txt": b"%d" % sample[0]}


def predict(sources: Sequence[str], folder: Path, predictor: Predictor | None = None) -> Inference:
    runner: Any = SimpleNamespace(
        inputter=Inputter(),
        predictor=lambda outputs, desc: predictor or Predictor(),
        modeler=SimpleNamespace(infer_outputs=["mean"], for_inference=lambda: None),
    )
    display: Any = Display()
    return infer(runner, display, sources, folder)


def tables(folder: Path) -> tuple[list[dict[str, str]], list[dict[str, Any]]]:
    with open(folder / "predictions.csv", encoding="utf-8", newline="") as opened:
        rows = list(csv.DictReader(opened))
    return rows, json.loads((folder / "predictions.json").read_text(encoding="utf-8"))


def test_what_fails_is_a_row_with_its_error(tmp_path: Path) -> None:
    sources = [
        "4_6",
        "13_1",
        "bad",
        "2_2",
        "1_2_3",
        "7",
        "13",
        *(f"{n}_{n}" for n in range(20, 35)),
    ]
    predictor = Predictor()
    done = predict(sources, tmp_path, predictor)
    errors = {
        "13_1": "13 is unlucky",
        "bad": "bad holds no numbers.",
        "1_2_3": "Three are too many.",
        "13": "13 is unlucky",
    }
    assert [row["source"] for row in done.rows] == sources
    for row in done.rows:
        if row["source"] in errors:
            assert set(row) == {"source", "error"}
            assert errors[row["source"]] in row["error"]
            assert "\n" not in row["error"] and "node" not in row["error"]
        else:
            assert row["mean"] == np.mean([int(n) for n in row["source"].split("_")])
    written, listed = tables(tmp_path)
    assert listed == list(done.rows)
    assert [row["source"] for row in written if row["error"]] == list(errors)
    assert len(predictor.batches) < 2 * len(sources)


def test_a_failure_of_all_is_a_table_of_errors(tmp_path: Path) -> None:
    done = predict(["13_1", "13_2"], tmp_path)
    assert all("13 is unlucky" in row["error"] for row in done.rows)
    assert len(tables(tmp_path)[1]) == 2


@pytest.mark.skipif(os.name == "nt", reason="names of files are text there")
def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    """The JSON table holds the very name, the CSV table the bytes that are no text as escapes."""
    sources = [os.fsdecode(name) for name in (b"caf\xe9-5", "café-6".encode(), b"\xff-bad")]
    for _ in range(2):  # the second time removes what the first one wrote
        done = predict(sources, tmp_path)
        written, listed = tables(tmp_path)
        assert [row["source"] for row in listed] == sources
        assert [row["source"] for row in written] == ["caf\\udce9-5", "café-6", "\\udcff-bad"]
        assert "holds no numbers" in listed[2]["error"]
        assert {Path(file).name for file in done.files} == set(os.listdir(tmp_path))
    assert (tmp_path / os.fsdecode(b"caf\xe9-5.txt")).read_bytes() == b"5"


@pytest.mark.parametrize("size", [(1, 1), (20_000, 1), (1, 3000), (300, 400)])
def test_boxes_on_pictures_of_any_shape(size: tuple[int, int]) -> None:
    """A column of pixels is not drawn 384 pixels wide: 7.7 million rows would take 9 GB."""
    inputter: Any = SimpleNamespace(class_names=["a", "b"])
    config: Any = SimpleNamespace(model=SimpleNamespace(shown=0.5))
    boxes = np.array([[0, 0, 1, 1], [0.2, 0.1, 0.7, 0.3]], np.float32)
    outputs = {"boxes": boxes, "scores": np.array([0.9, 0.6]), "class_ids": np.array([1, 0])}
    drawn = DetectionDisplay(config, inputter).draw(np.zeros([*size, 3], np.uint8), outputs)
    assert len(drawn) <= max(size[0], 4096)
    assert drawn.any()
