"""Exported == Predictor, over formats and models."""

from __future__ import annotations

import itertools
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from scaling import sample
from towerpack import ConfigError, ExportError, MissingExtraError, ModelDesc, SpecError
from towerpack.checkpoint import CheckpointStore
from towerpack.inference import (
    Predictor,
    compare_exported,
    export,
    installed_runtimes,
    load_exported,
)
from towerpack.nn import FullyConnected, LinearWrap, expose
from towerpack.tower import TowerFunction
from warm_python import warm_python

# Keras 3.15 saves its variables through an `__array__` of before NumPy 2.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

FORMATS = ["saved_model", "onnx", "litert", "keras"]
RNG = np.random.default_rng(3)
CLASSES = ["cat", "dog", "café"]


class Pictures(ModelDesc):
    """Batch normalisation, whose averages are not 0 and 1, and dropout; pixels in."""

    def inputs(self) -> list[tf.TensorSpec]:
        return [
            tf.TensorSpec([None, 12, 12, 3], tf.uint8, "image"),
            tf.TensorSpec([None], tf.int64, "label"),
        ]

    def build_graph(self, image: tf.Tensor, label: tf.Tensor) -> tf.Tensor:
        net = LinearWrap(tf.cast(image, tf.float32) / 255 - 0.5).Conv2D("conv0", 4, 3)
        net = net.BatchNorm("bn").MaxPooling("pool", 2).Dropout("drop", 0.5)
        logits = net.FullyConnected("fc", 3)() / 20  # else the probabilities are 0 and 1
        expose("prob", tf.nn.softmax(logits))
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits))


class Several(ModelDesc):
    """Several inputs of several dtypes, one without rows; outputs of several dtypes."""

    def inputs(self) -> list[tf.TensorSpec]:
        return [
            tf.TensorSpec([None, 5], tf.int32, "words"),
            tf.TensorSpec([None, 5], tf.bool, "mask"),
            tf.TensorSpec([], tf.float32, "temperature"),
        ]

    def build_graph(self, words: tf.Tensor, mask: tf.Tensor, temperature: tf.Tensor) -> tf.Tensor:
        x = tf.one_hot(words, 7) * tf.cast(mask, tf.float32)[:, :, None]
        logits = FullyConnected("fc", tf.reshape(x, [-1, 35]), 4) / (temperature + 1)
        expose("logits", logits)
        expose("best", tf.argmax(logits, -1))
        expose("sure", tf.reduce_max(logits, -1) > 0)
        return tf.reduce_mean(logits)


class KerasInside(ModelDesc):
    """A Keras model is the network."""

    def __init__(self) -> None:
        self.network = keras.Sequential(
            [keras.layers.Dense(6, "gelu"), keras.layers.LayerNormalization()]
        )

    def inputs(self) -> list[tf.TensorSpec]:
        return [tf.TensorSpec([None, 3], tf.float32, "x")]

    def build_graph(self, x: tf.Tensor) -> tf.Tensor:
        y = self.network(x)
        expose("y", y)
        return tf.reduce_mean(y)


MODELS: dict[str, tuple[Callable[[], ModelDesc], Any]] = {
    "pictures": (Pictures, ["prob", "pool/output"]),
    "several": (Several, {"logits": "logits", "class": "best", "sure": "sure"}),
    "keras inside": (KerasInside, "y"),
}


def trained(model: ModelDesc, directory: Path, seed: int = 3) -> Path:
    """A checkpoint whose every variable is drawn, as training would leave it."""
    tower = TowerFunction(model.build_graph, model.inputs())
    tower.trace(is_training=True)
    rng = np.random.default_rng(seed)
    values = {
        name: rng.uniform(0.3, 1.0, v.shape).astype(v.dtype.name)
        * (1 if "moving" in name else rng.choice([-1, 1], v.shape).astype(v.dtype.name))
        for name, v in tower.store.named_variables().items()
    }
    with CheckpointStore(directory / "checkpoints") as store:
        store.save(7, {"model": values, "optimizer": {}}, {})
    return directory


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: trained(make(), tmp_path_factory.mktemp("run")) for name, (make, _) in MODELS.items()
    }


@pytest.mark.parametrize(
    ("form", "name"), sample(list(itertools.product(FORMATS, MODELS)), at_least=6)
)
def test_exported_computes_what_the_predictor_does(
    form: str, name: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    make, outputs = MODELS[name]
    lines: list[str] = []
    path = export(make(), runs[name], tmp_path, format=form, outputs=outputs, tell=lines.append)
    assert path == tmp_path / "1" and len(lines) == 3
    exported = load_exported(tmp_path)
    runtimes = [load_exported(tmp_path, name) for name in installed_runtimes(tmp_path)]
    assert exported.runtime == runtimes[0].runtime
    names = outputs if isinstance(outputs, dict) else {n: n for n in np.atleast_1d(outputs)}
    predictor = Predictor(make(), runs[name], outputs=list(names.values()))
    for rows in (1, 5):  # not only the sizes that it was compared with
        given = {str(s.name): drawn(s, rows) for s in predictor.specs}
        for model in runtimes:
            got = model.run(given)
            assert got.keys() == names.keys()
            for output, value in zip(names, predictor(**given), strict=True):
                assert got[output].dtype == value.dtype
                np.testing.assert_allclose(got[output], value, rtol=1e-4, atol=1e-5)
    told = exported.metadata
    assert (told["format"], told["source"]["step"]) == (form, 7)
    assert 0 <= told["compared"]["greatest_difference"] < 1e-4


def drawn(spec: tf.TensorSpec, rows: int) -> np.ndarray:
    shape = [rows if n is None else n for n in spec.shape]
    if spec.dtype.is_floating:
        return RNG.normal(size=shape).astype(np.float32) ** 2
    high = {"uint8": 256, "bool": 2, "int32": 7}[spec.dtype.name]
    return RNG.integers(0, high, shape).astype(spec.dtype.as_numpy_dtype)


def decode(file: tf.Tensor) -> tf.Tensor:
    """A picture's file as pixels of the network's size."""
    image = tf.io.decode_image(file, channels=3, expand_animations=False)
    return tf.cast(tf.image.resize(image, [12, 12], "nearest"), tf.uint8)


def test_classifier_takes_files_and_names_classes(runs: dict[str, Path], tmp_path: Path) -> None:
    export(
        Pictures(),
        runs["pictures"],
        tmp_path,
        outputs="prob",
        preprocess=decode,
        class_names=CLASSES,
        metadata={"task": "classification"},
    )
    exported = load_exported(tmp_path)
    assert exported.metadata["task"] == "classification"
    assert exported.metadata["class_names"] == CLASSES
    image = RNG.integers(0, 256, [20, 2, 2, 3]).astype(np.uint8).repeat(24, 1).repeat(24, 2)
    (prob,) = Predictor(Pictures(), runs["pictures"], outputs=["prob"])(image[:, ::4, ::4])
    files = [tf.io.encode_png(picture).numpy() for picture in image]
    named = exported.run({"image_bytes": files})
    assert [name.decode() for name in named["classes"]] == [CLASSES[i] for i in prob.argmax(1)]
    assert len(set(prob.argmax(1))) > 1
    np.testing.assert_allclose(named["probabilities"], prob, atol=1e-6)
    pixels = exported.run({"image": image[:, ::4, ::4]}, "tensors")
    np.testing.assert_array_equal(pixels["class_ids"], prob.argmax(1))
    np.testing.assert_allclose(pixels["probabilities"], prob, atol=1e-6)


@pytest.mark.parametrize("form", FORMATS[1:])
def test_classifier_of_one_signature(form: str, runs: dict[str, Path], tmp_path: Path) -> None:
    export(Pictures(), runs["pictures"], tmp_path, format=form, outputs="prob", class_names=CLASSES)
    exported = load_exported(tmp_path)
    assert set(exported.signatures) == {"tensors", "serving_default"}
    image = RNG.integers(0, 256, [6, 12, 12, 3]).astype(np.uint8)
    for signature in exported.signatures:
        got = exported.run({"image": image.tolist()}, signature)  # lists, as JSON gives them
        np.testing.assert_array_equal(got["class_ids"], got["probabilities"].argmax(1))
    with pytest.raises(SpecError, match="signature 'serving_default' takes other inputs"):
        exported.run({"image_bytes": [b""]})


@pytest.mark.parametrize(
    ("form", "quantize", "share"),
    sample(
        [
            ("onnx", "dynamic", 0.6),
            ("litert", "dynamic", 0.6),
            ("litert", "int8", 0.6),
            ("litert", "float16", 0.7),
        ],
        at_least=2,
    ),
)
def test_quantized(form: str, quantize: str, share: float, tmp_path: Path) -> None:
    class Wide(KerasInside):
        def __init__(self) -> None:
            self.network = keras.Sequential(
                [keras.layers.Dense(256, "relu"), keras.layers.Dense(64)]
            )

    run = trained(Wide(), tmp_path / "run")
    x = RNG.normal(size=[32, 3]).astype(np.float32)
    sizes = {}
    for quantized in (None, quantize):
        path = export(
            Wide(), run, tmp_path, format=form, outputs="y", quantize=quantized, batch_examples=x
        )
        sizes[quantized] = max(f.stat().st_size for f in path.iterdir())
    assert sizes[quantize] < share * sizes[None]
    compared = load_exported(tmp_path / "2").metadata["compared"]
    assert 1e-5 < compared["greatest_difference"] < 0.1 and compared["examples"] == 32


def test_tampered_weights_are_noticed(runs: dict[str, Path], tmp_path: Path) -> None:
    import onnx

    path = export(Pictures(), runs["pictures"], tmp_path, format="onnx", outputs="prob")
    model = onnx.load(path / "model.onnx")
    (bias,) = [t for t in model.graph.initializer if list(t.dims) == [3]]
    values = onnx.numpy_helper.to_array(bias) + np.array([0.01, 0, 0], np.float32)
    bias.CopyFrom(onnx.numpy_helper.from_array(values, bias.name))
    exported = load_exported(tmp_path)
    onnx.save(model, path / "model.onnx")
    predictor = Predictor(Pictures(), runs["pictures"], outputs=["prob"])
    image = {"image": RNG.integers(0, 256, [8, 12, 12, 3]).astype(np.uint8)}
    [(key, before)] = compare_exported(exported, predictor, image).items()
    [after] = compare_exported(load_exported(tmp_path), predictor, image).values()
    assert key == "serving_default/prob"
    assert before < 1e-5 < 1e-4 < after < 0.1


@pytest.mark.parametrize("form", sample(FORMATS, at_least=2))
def test_a_model_that_computes_something_else_leaves_nothing(form: str, tmp_path: Path) -> None:
    class Random(KerasInside):
        def build_graph(self, x: tf.Tensor) -> tf.Tensor:
            y = self.network(x) + tf.random.uniform([])
            expose("y", y)
            return tf.reduce_mean(y)

    run = trained(Random(), tmp_path / "run")
    with pytest.raises(
        ExportError, match=r"differ too much from those of the model.*\n.*'serving_default/y'"
    ):
        export(Random(), run, tmp_path / "out", format=form, outputs="y")
    assert not (tmp_path / "out").exists()

    # Whoever interrupts it: no version either.
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export(KerasInside(), run, tmp_path / "out", format=form, outputs="y", tell=interrupt)
    assert not (tmp_path / "out").exists()


def test_versions(runs: dict[str, Path], tmp_path: Path) -> None:
    def write(**kwargs: Any) -> str:
        return export(KerasInside(), runs["keras inside"], tmp_path, outputs="y", **kwargs).name

    assert [write(version=9), write()] == ["9", "10"]
    assert load_exported(tmp_path).path == tmp_path / "10"
    assert load_exported(tmp_path / "9").path == tmp_path / "9"
    with pytest.raises(ConfigError, match="Version 9 already exists"):
        write(version=9)


FRESH = """
import sys, numpy as np, keras
import towerpack.inference
model = keras.saving.load_model(sys.argv[1])
np.save(sys.argv[2], model({"x": np.load(sys.argv[2])})["y"].numpy())
"""


def test_keras_file_in_another_process(runs: dict[str, Path], tmp_path: Path) -> None:
    x = RNG.normal(size=[4, 3]).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    run = runs["keras inside"]
    path = export(KerasInside(), run, tmp_path, format="keras", outputs="y")
    command = [*warm_python(), "-c", FRESH, path / "model.keras", tmp_path / "x.npy"]
    subprocess.run(command, check=True)
    expected = Predictor(KerasInside(), run, outputs="y")(x)
    np.testing.assert_allclose(np.load(tmp_path / "x.npy"), expected, atol=1e-6)


class WithoutGradient(KerasInside):
    def build_graph(self, x: tf.Tensor) -> tf.Tensor:
        @tf.custom_gradient
        def rounded(value: tf.Tensor) -> Any:
            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                raise NotImplementedError

            return tf.round(value), gradient

        return super().build_graph(rounded(x))


def test_a_gradient_that_cannot_be_computed_does_not_matter(tmp_path: Path) -> None:
    run = trained(WithoutGradient(), tmp_path / "run")
    path = export(WithoutGradient(), run, tmp_path / "out", format="keras", outputs="y")
    x = RNG.normal(size=[4, 3]).astype(np.float32)
    expected = Predictor(WithoutGradient(), run, outputs="y")(x)
    np.testing.assert_allclose(load_exported(path).run({"x": x})["y"], expected, atol=1e-6)


class Words(KerasInside):
    """A lookup table that the model holds."""

    def __init__(self) -> None:
        super().__init__()
        words = tf.lookup.KeyValueTensorInitializer(["a", "four"], [0, 1])
        self.table = tf.lookup.StaticHashTable(words, 2)

    def inputs(self) -> list[tf.TensorSpec]:
        return [tf.TensorSpec([None], tf.string, "text")]

    def build_graph(self, text: tf.Tensor) -> tf.Tensor:
        y = self.network(tf.one_hot(self.table.lookup(text), 3))
        expose("y", y)
        return tf.reduce_mean(y)


class Odd(KerasInside):
    def inputs(self) -> list[tf.TensorSpec]:
        return [tf.TensorSpec([None, 3], tf.float32, "x/left-1")]


class Above2(KerasInside):
    def build_graph(self, x: tf.Tensor) -> tf.Tensor:
        return super().build_graph(tf.debugging.check_numerics(tf.math.log(x - 2), "below 2"))


TEXT = [b"a", b"four", b"fourteen"]


def test_strings(runs: dict[str, Path], tmp_path: Path) -> None:
    run = runs["keras inside"]
    export(Words(), run, tmp_path, outputs="y", batch_examples=np.array(TEXT, object))
    got = load_exported(tmp_path).run({"text": TEXT})
    np.testing.assert_allclose(
        got["y"], Predictor(Words(), run, outputs="y")(np.array(TEXT, object))
    )


LOOKUP = keras.layers.StringLookup(vocabulary=["a", "global"])


class Lookups(KerasInside):
    """Tables of Keras layers in every place where a model may hold them."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        layers, words = keras.layers, ["a", "four"]
        (folder / "words.txt").write_text("a\nfour\n")
        initializer = tf.lookup.TextFileInitializer(
            str(folder / "words.txt"), tf.string, 0, tf.int64, -1, delimiter=" "
        )
        self.numbers = layers.IntegerLookup(vocabulary=[1, 8])
        self.text = layers.TextVectorization(vocabulary=words, output_sequence_length=1)
        self.network = keras.Sequential([layers.Dense(3)])
        self.sequence = keras.Sequential(
            [keras.Input([], dtype="string"), layers.StringLookup(vocabulary=words)]
        )
        self.listed = [{"in": (layers.StringLookup(vocabulary=words),)}]
        self.inner = Words()
        self.inner.lookup = layers.StringLookup(vocabulary=words)  # type: ignore[attr-defined]
        self.files = [tf.lookup.StaticHashTable(initializer, 7)]

    def inputs(self) -> list[tf.TensorSpec]:
        return [tf.TensorSpec([None], tf.string, "text")]

    def build_graph(self, text: tf.Tensor) -> tf.Tensor:
        inner: Any = self.inner
        ids = [
            self.numbers(tf.cast(tf.strings.length(text), tf.int64)),
            self.text(text)[:, 0],
            self.sequence(text),
            self.listed[0]["in"][0](text),
            inner.lookup(text),
            inner.table.lookup(text),
            LOOKUP(text),
            self.files[0].lookup(text),
        ]
        y = self.network(tf.stack([tf.cast(each, tf.float32) for each in ids], 1))
        expose("y", y)
        return tf.reduce_mean(y)


def test_lookup_tables_are_exported_wherever_the_model_holds_them(tmp_path: Path) -> None:
    model, text = Lookups(tmp_path), np.array(TEXT, object)
    run = trained(model, tmp_path / "run")
    export(model, run, tmp_path / "out", outputs="y", batch_examples=text)
    (tmp_path / "words.txt").unlink()  # the file is part of the export
    got = load_exported(tmp_path / "out").run({"text": text})["y"]
    np.testing.assert_allclose(got, Predictor(model, run, outputs="y")(text), rtol=1e-5)
    assert len(np.unique(got, axis=0)) == 3


class Recurrent(KerasInside):
    """Zero rows end ONNX Runtime's process here, and LiteRT refuses them."""

    def __init__(self, unroll: bool) -> None:
        layers = keras.layers
        self.network = keras.Sequential([layers.LSTM(4, unroll=unroll), layers.Dense(2)])

    def inputs(self) -> list[tf.TensorSpec]:
        return [tf.TensorSpec([None, 7, 3], tf.float32, "x")]


@pytest.mark.parametrize("form", FORMATS)
def test_zero_rows_give_zero_rows(form: str, tmp_path: Path) -> None:
    def make() -> ModelDesc:
        return Recurrent(unroll=form == "litert")

    export(make(), trained(make(), tmp_path / "run"), tmp_path, format=form, outputs="y")
    for runtime in installed_runtimes(tmp_path):
        got = load_exported(tmp_path, runtime).run({"x": np.zeros([0, 7, 3], np.float32)})["y"]
        assert (got.shape, got.dtype) == ((0, 2), np.float32)


class Mean(KerasInside):
    def build_graph(self, x: tf.Tensor) -> tf.Tensor:
        y = tf.reduce_mean(self.network(x))
        expose("y", y)
        return y


@pytest.mark.parametrize("form", ["onnx", "litert"])
def test_zero_rows_without_an_answer_are_refused(form: str, tmp_path: Path) -> None:
    export(Mean(), trained(Mean(), tmp_path / "run"), tmp_path, format=form, outputs="y")
    exported = load_exported(tmp_path)
    with pytest.raises(SpecError, match="'x' must not be empty"):
        exported.run({"x": np.zeros([0, 3], np.float32)})


@pytest.mark.parametrize(
    ("name", "kwargs", "error", "message"),
    [
        ("pictures", {"format": "onxx"}, ConfigError, "'onnx'"),
        ("pictures", {"quantize": "int8"}, ConfigError, "'saved_model' does not support quantize"),
        ("pictures", {"format": "litert", "quantize": "int8"}, ConfigError, "real inputs"),
        ("pictures", {"format": "onnx", "preprocess": decode}, ConfigError, "pixels"),
        ("pictures", {"class_names": ["a", "b"]}, SpecError, "[n, 2]"),
        ("pictures", {"metadata": {"format": "mine"}}, ConfigError, "writes itself"),
        (
            "pictures",
            {"outputs": ["prob", "cost"], "preprocess": decode},
            ConfigError,
            "int64 label",
        ),
        ("pictures", {"batch_examples": {"picture": []}}, ConfigError, "has no input ['image']"),
        ("odd", {}, ConfigError, "a letter"),
        ("above 2", {}, ExportError, "below 2"),
        ("words", {}, ConfigError, "cannot be generated for the input 'text'"),
        (
            "words",
            {"format": "onnx", "batch_examples": [TEXT]},
            ConfigError,
            "does not support strings",
        ),
    ],
)
def test_refused(
    name: str, kwargs: Any, error: Any, message: str, runs: dict[str, Path], tmp_path: Path
) -> None:
    own: dict[str, Any] = {"words": Words, "odd": Odd, "above 2": Above2}
    make, outputs = (own[name], "y") if name in own else (Pictures, "prob")
    run = runs.get(name, runs["keras inside"])
    with pytest.raises(error) as raised:
        export(make(), run, tmp_path / "out", **{"outputs": outputs, **kwargs})
    assert message in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_inputs_are_checked(runs: dict[str, Path], tmp_path: Path) -> None:
    export(Several(), runs["several"], tmp_path, outputs="logits", format="litert")
    exported = load_exported(tmp_path)
    good = {"words": [[1] * 5], "mask": [[True] * 5], "temperature": 1}
    assert exported.run(good)["logits"].shape == (1, 4)
    for name, bad in {"words": [[1.5] * 5], "mask": [[2] * 5], "temperature": [1]}.items():
        with pytest.raises(SpecError, match=f"'{name}' has a wrong dtype or shape"):
            exported.run({**good, name: bad})
    with pytest.raises(SpecError, match="cannot be converted to an array"):
        exported.run({**good, "words": [[1], [1, 2]]})
    with pytest.raises(SpecError, match="no signature 'tensor'"):
        exported.run(good, "tensor")
    with pytest.raises(ConfigError, match="'onnx' does not support"):
        load_exported(tmp_path, "onnx")
    with pytest.raises(ConfigError, match="does not contain an exported model"):
        load_exported(tmp_path / "nothing")


def test_a_runtime_that_is_not_installed_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.onnx").touch()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert installed_runtimes(tmp_path) == []
    with pytest.raises(MissingExtraError, match="package openvino") as caught:
        load_exported(tmp_path, "openvino")
    assert caught.value.fix == "pip install openvino"
