"""Data files and exported models that Towerpack 0.1.0 wrote are read by this version.

`python tests/unit/test_stored_files.py` wrote `stored_files` once. Never write them again: add new
ones beside them. Runs and checkpoints have such tests in `training` and `checkpoint`.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from towerpack import TFRecordSerializer
from towerpack.dataflow import (
    DataFromList,
    HDF5Data,
    HDF5Serializer,
    LMDBSerializer,
    NumpySerializer,
)
from towerpack.inference import load_exported

STORED = Path(__file__).parent / "stored_files"
ROWS = [(np.full([2, 3], n, np.uint8), n / 4, f"row {n}") for n in range(5)]
NUMBERS = [(np.full([2], n, np.float32), n) for n in range(5)]
READERS = {
    "rows.lmdb": (lambda path: LMDBSerializer.load(path, shuffle=False), ROWS),
    "rows.npz": (lambda path: NumpySerializer.load(path, shuffle=False), ROWS),
    "rows.tfrecord": (TFRecordSerializer.load, ROWS),
    "numbers.h5": (lambda path: HDF5Data(path, ["vector", "number"], shuffle=False), NUMBERS),
}


@pytest.mark.parametrize("name", READERS)
def test_rows_are_read(name: str, tmp_path: Path) -> None:
    copy = tmp_path / name
    (shutil.copytree if (STORED / name).is_dir() else shutil.copy)(STORED / name, copy)
    load, rows = READERS[name]
    read = list(load(str(copy)).iterate(seed=0))
    assert len(read) == len(rows)
    for row, expected in zip(read, rows, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(row, expected, strict=True))


@pytest.mark.parametrize("format", ["saved_model", "onnx"])
def test_an_exported_model_answers(format: str) -> None:
    model = load_exported(STORED / format)
    expected = json.loads((STORED / "answers.json").read_text())
    answers = model.run({"x": np.eye(3, dtype=np.float32)})["prob"]
    np.testing.assert_allclose(answers, expected, rtol=1e-5)
    assert model.metadata["format"] == format


def main() -> None:
    """Write the files."""
    import keras
    import tensorflow as tf

    from towerpack import (
        BatchData,
        FullyConnected,
        ModelDesc,
        ModelSaver,
        SimpleTrainer,
        TrainConfig,
        expose,
    )
    from towerpack.inference import export

    class Model(ModelDesc):
        def inputs(self) -> list[tf.TensorSpec]:
            specs = [("x", [None, 3], tf.float32), ("label", [None], tf.int64)]
            return [tf.TensorSpec(shape, dtype, name) for name, shape, dtype in specs]

        def build_graph(self, x: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
            logits = FullyConnected("fc", x, 2)
            expose("prob", tf.nn.softmax(logits))
            return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits))

        def optimizer(self) -> keras.Optimizer:
            return keras.optimizers.SGD(0.1)

    STORED.mkdir()
    flow = DataFromList(ROWS)
    LMDBSerializer.save(flow, str(STORED / "rows.lmdb"))
    NumpySerializer.save(flow, str(STORED / "rows.npz"))
    TFRecordSerializer.save(flow, str(STORED / "rows.tfrecord"))
    HDF5Serializer.save(DataFromList(NUMBERS), str(STORED / "numbers.h5"), ["vector", "number"])
    run = STORED / "run"
    rows = [(np.float32([n, 1, 0]), n % 2) for n in range(4)]
    SimpleTrainer(
        TrainConfig(
            model=Model(), dataflow=BatchData(DataFromList(rows), 2), callbacks=[ModelSaver()],
            max_epoch=1, seed=0, run_dir=run,
        )
    ).train()  # fmt: skip
    for format in ("saved_model", "onnx"):
        export(Model(), run, STORED / format, outputs="prob", format=format)
    shutil.rmtree(run)
    answers = load_exported(STORED / "onnx").run({"x": np.eye(3, dtype=np.float32)})["prob"]
    (STORED / "answers.json").write_text(json.dumps(answers.tolist()))


if __name__ == "__main__":
    main()
