"""Weights from files of TensorFlow and Keras; names that are skipped."""

from __future__ import annotations

import io
import logging
import zipfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf

from towerpack import CheckpointError, CheckpointMismatchError
from towerpack.tower import TowerFunction
from towerpack.training import SmartInit
from towerpack.training.weights.read_foreign import read_arrays
from towers import fill, spec, tower_of, variables

V1 = tf.compat.v1


class Model:
    """A Keras model that hangs on ours, and a layer of its own."""

    def __init__(self) -> None:
        K = keras.layers
        inner = keras.Sequential([K.Conv2D(2, 1, name="inner")], name="seq")
        layers = [K.Conv2D(2, 3, name="c1"), K.BatchNormalization(name="bn"), inner]
        self.net = keras.Sequential([keras.Input((4, 4, 3)), *layers, K.Conv2D(2, 1, name="c2")])

    def __call__(self, x: tf.Tensor) -> tf.Tensor:
        return keras.layers.Dense(2, name="own")(self.net(x))


@cache
def tower() -> tuple[Model, TowerFunction]:
    model = Model()
    made = tower_of(model, spec(None, 4, 4, 3))
    made.trace(is_training=True)
    return model, made


def load(init: SmartInit) -> dict[str, np.ndarray]:
    _, made = tower()
    fill(made, seed=50)
    init.load(made.store.named_variables())
    return variables(made)


def write(kind: str, folder: Path) -> tuple[Path, dict[str, np.ndarray]]:
    model, made = tower()
    values = fill(made)
    names = [n for n in values if "own/" not in n]
    path = folder / f"w{kind}"
    if kind == ".ckpt":
        with tf.Graph().as_default(), V1.Session() as session:
            slim = {n: n.replace("c1/kernel", "c1/weights") for n in names}
            held = [V1.get_variable(slim[n], initializer=values[n]) for n in names]
            session.run(V1.global_variables_initializer())
            V1.train.Saver(held).save(session, str(path), write_meta_graph=False)
    elif kind == ".weights.h5":
        model.net.save_weights(path)
    else:
        model.net.save(path)
    return path, {n: values[n] for n in names}


KINDS = [".ckpt", ".keras", ".weights.h5", ".h5"]


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning:keras")
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_what_was_written(kind: str, tmp_path: Path) -> None:
    path, written = write(kind, tmp_path)
    loaded = load(SmartInit(path))
    assert len(written) == 10
    for name, value in written.items():
        np.testing.assert_array_equal(loaded[name], value, err_msg=name)
    target = path if kind != ".ckpt" else Path(f"{path}.index")
    target.write_bytes(target.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="cannot be read"):
        load(SmartInit(target))


def of_hdf5(change: Callable[[Any], object]) -> bytes:
    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        file.attrs["layer_names"] = [b"a"]
        file.create_group("a").attrs["weight_names"] = [b"k"]
        change(file)
    return out.getvalue()


def zipped(data: bytes, at: int = 0, flag: int = 0) -> bytes:
    """A `.keras` file, in whose directory and header of the file a byte is changed."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.weights.h5", data)
    content = bytearray(out.getvalue())
    for place in (6, content.index(b"PK\x01\x02") + 8):
        content[place + at] |= flag
    return bytes(content)


GOOD = of_hdf5(lambda file: file["a"].create_dataset("k", data=np.ones(9)))
ZEROS: dict[str, Any] = {"shape": (1 << 25,), "dtype": "f4", "chunks": True}
HOSTILE = {
    "an encrypted file": (".keras", zipped(GOOD, flag=1)),
    "an unknown compression": (".keras", zipped(GOOD, at=2, flag=99)),
    "much in little": (".keras", zipped(bytes(80 << 20))),
    "much that is not stored": (".h5", of_hdf5(lambda f: f["a"].create_dataset("k", **ZEROS))),
    "more than any memory": (
        ".h5",
        of_hdf5(lambda f: f["a"].create_dataset("k", **{**ZEROS, "shape": (1 << 50,)})),
    ),
    "a number of names": (".h5", of_hdf5(lambda file: file.attrs.create("layer_names", 5))),
    "a group of weights": (".h5", of_hdf5(lambda file: file["a"].create_group("k"))),
    "an array in another file": (
        ".h5",
        of_hdf5(lambda f: f["a"].create_dataset("k", (9,), "u1", external="/etc/hostname")),
    ),
    "a link to another file": (
        ".h5",
        of_hdf5(lambda file: file["a"].update({"k": h5py.ExternalLink("good.h5", "a/k")})),
    ),
    "a wrong heap": (".h5", GOOD.replace(b"HEAP", b"heap")),
    "a wrong signature": (".h5", b"\x89HDF\r\n\x1a\n" + b"\xff" * 2000),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_file_of_keras_from_others_is_refused_in_our_words(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("good.h5").write_bytes(GOOD)
    suffix, data = HOSTILE[case]
    (tmp_path / f"w{suffix}").write_bytes(data)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_arrays(tmp_path / f"w{suffix}")
    (tmp_path / "good.keras").write_bytes(zipped(GOOD))
    np.testing.assert_array_equal(read_arrays(tmp_path / "good.keras")[1]["a/k"], np.ones(9))


def test_what_is_skipped_keeps_its_values(caplog: pytest.LogCaptureFixture) -> None:
    _, made = tower()
    values = {n: v + 1 for n, v in fill(made).items()}
    values["own/bias"] = np.zeros(9)  # Of other classes: its shape does not matter.
    before = load(SmartInit(None))
    with caplog.at_level(logging.INFO):
        loaded = load(SmartInit(values, skip=["own/.*", "func/net/c2/bias"]))
    for name, value in loaded.items():
        skipped = name in ("own/kernel", "own/bias", "func/net/c2/bias")
        np.testing.assert_array_equal(value, (before if skipped else values)[name], err_msg=name)
    assert "skipped because of skip= (3)" in caplog.text
    assert "without a value" not in caplog.text
    chained = load(SmartInit([SmartInit(values)], skip="own/.*"))
    np.testing.assert_array_equal(chained["own/kernel"], before["own/kernel"])
    with pytest.raises(CheckpointMismatchError, match=r"skip='fc/\.\*'\) matches no variable"):
        load(SmartInit(values, skip="fc/.*"))
