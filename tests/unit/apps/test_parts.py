"""Parts of applications: names, schedules, mixed pictures, reports."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn import metrics

from towerpack import ConfigError, callbacks
from towerpack.apps import Runner, find_recipe
from towerpack.apps._application import APPLICATIONS
from towerpack.apps._config import Optimizer
from towerpack.apps._optimizers import make_optimizer, schedule_of
from towerpack.apps.classification import ClassificationReport
from towerpack.apps.classification._mixing import mix_batch
from towerpack.apps.detection import DetectionConfig, DetectionReport
from towerpack.apps.segmentation import DataConfig as SegmentationData
from towerpack.apps.segmentation._classes import Classes
from towerpack.apps.segmentation._modeler import SegmentationReport
from towerpack.apps.text_generation._report import TextReport
from towerpack.config import Registry, load
from towerpack.config._config import keys_of
from towerpack.tower import TowerFunction

# --------------------------------------------------------------------------------- registries


def test_a_registry_gives_its_own_and_a_users(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = ModuleType("their_module")
    theirs.thing = "theirs"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "their_module", theirs)
    things: Registry[Any] = Registry("thing", {"sqrt": "math:sqrt", "one": 1})
    assert (things.get("sqrt")(4), things.get("one"), things.get(len)) == (2, 1, len)
    assert things.get("their_module:thing") == "theirs"
    things.register("two", 2)
    assert list(things) == ["sqrt", "one", "two"]
    for wrong, text in {
        "sqr": "no thing 'sqr'.*'sqrt'",
        "no_such_module:x": "no module 'no_such_module'",
        "math:sqr": "no thing 'sqr'.*'sqrt'",
    }.items():
        with pytest.raises(ConfigError, match=f"(?s){text}"):
            things.get(wrong)
    with pytest.raises(ConfigError, match="already"):
        things.register("one", 3)


# --------------------------------------------------------------------------------- optimizers


def rates(steps: int = 10, epochs: int = 10, **settings: Any) -> np.ndarray:
    """The learning rate at each step of a run, as the callback sets it."""
    config = Optimizer(learning_rate=0.5, **settings)
    schedule = schedule_of(config, epochs, steps)
    due = [None if schedule is None else schedule.due(step) for step in range(epochs * steps)]
    return np.array([0.5 if value is None else value for value in due])


AT = np.arange(100)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"schedule": "constant"}, np.full(100, 0.5)),
        ({}, 0.25 * (1 + np.cos(np.pi * AT / 100))),
        (
            {"schedule": "step", "boundaries": [5, 7.5], "factors": [0.1, 0.01]},
            0.5 * np.select([AT < 50, AT < 75], [1, 0.1], 0.01),
        ),
        ({"schedule": "linear"}, 0.5 * (1 - AT / 100)),
        ({"schedule": "cosine"}, 0.25 * (1 + np.cos(np.pi * AT / 100))),
        ({"warmup": 2, "schedule": "constant"}, 0.5 * np.minimum(1, (AT + 1) / 20)),
        (
            {"warmup": 1, "schedule": "linear"},
            0.5 * np.minimum((AT + 1) / 10, (100 - AT) / 90),
        ),
    ],
)
def test_the_learning_rate_follows_its_schedule(settings: Any, expected: np.ndarray) -> None:
    np.testing.assert_allclose(rates(**settings), expected, atol=1e-3)


@pytest.mark.parametrize(
    "settings",
    [
        {"schedule": "step", "boundaries": [5], "factors": []},
        {"schedule": "step", "boundaries": [5, 5], "factors": [0.1, 0.1]},
        {"schedule": "cosine", "boundaries": [5], "factors": [0.1]},
        {"warmup": 10},
    ],
)
def test_a_schedule_that_makes_no_sense(settings: Any) -> None:
    with pytest.raises(ConfigError, match="optimizer"):
        rates(**settings)


def test_optimizers_and_their_options() -> None:
    assert make_optimizer(Optimizer(name="momentum")).momentum == 0.9
    assert make_optimizer(Optimizer(name="adamw", options={"weight_decay": 0.1})).weight_decay
    wrapped = make_optimizer(Optimizer(clip_norm=1, accumulate=2))
    assert "accumulate" in type(wrapped).__name__.lower()
    with pytest.raises(ConfigError, match=r"optimizer\.options"):
        make_optimizer(Optimizer(options={"momentun": 0.5}))


# --------------------------------------------------------------------------------- mixing


@pytest.mark.parametrize(("mixup", "cutmix"), [(0.4, 0), (0, 1.0), (0.4, 1.0)])
def test_targets_are_mixed_as_the_pictures_are(mixup: float, cutmix: float) -> None:
    images = np.broadcast_to(np.eye(6, dtype=np.float32)[:, None, None], (6, 16, 12, 6))
    specs = [tf.TensorSpec(images.shape, tf.float32, "x")]

    def build(x: tf.Tensor) -> tf.Tensor:
        image, target = mix_batch(x, tf.eye(6), mixup, cutmix)
        # Each picture shows its number in each pixel: their means are the shares.
        return tf.stack([tf.reduce_mean(image, [1, 2]), target])

    shares = mixed(build, specs, images)
    assert len(shares) > 1, "each step draws anew"
    for got, target in shares:
        np.testing.assert_allclose(got, target, atol=1e-5)
        np.testing.assert_allclose(target.sum(axis=1), 1, atol=1e-5)


def mixed(build: Any, specs: Any, images: np.ndarray) -> list[np.ndarray]:
    found = {}
    for step in range(4):
        result: list[tf.Tensor] = []

        def tower_function(x: tf.Tensor, result: Any = result) -> tf.Tensor:
            result.append(build(x))
            return tf.reduce_mean(x)

        tower = TowerFunction(tower_function, specs)
        tower(tf.constant(images), is_training=True, step=tf.constant(step, tf.int64))
        found[result[0].numpy().tobytes()] = result[0].numpy()
    return list(found.values())


# --------------------------------------------------------------------------------- reports


def test_top_k_of_as_many_classes_is_no_metric() -> None:
    for top_k in (1, 2, 5):
        report = ClassificationReport(["cat", "dog"], top_k=top_k)
        report.begin()
        report.update({"label": np.array([1]), "probabilities": np.array([[0.9, 0.1]])}, 1)
        assert report.finish() == {"accuracy": 0.0, "macro_f1": 0.0}


def test_a_report_agrees_with_scikit_learn(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    names = ["zero", "one", "two", "ünseen"]
    probabilities = rng.dirichlet(np.ones(4), 200)
    label = np.where(rng.random(200) < 0.6, probabilities.argmax(1), rng.integers(0, 3, 200)) % 3
    report = ClassificationReport(names, top_k=2, auc=True)
    for _ in range(2):  # The second evaluation starts from zero.
        report.begin()
        for part in np.split(np.arange(200), [64, 128]):
            report.update({"label": label[part], "probabilities": probabilities[part]}, len(part))
    predicted = probabilities.argmax(1)
    numbers = report.finish()
    assert numbers["accuracy"] == metrics.accuracy_score(label, predicted)
    assert numbers["top_2"] == metrics.top_k_accuracy_score(
        label, probabilities, k=2, labels=range(4)
    )
    each = metrics.precision_recall_fscore_support(
        label, predicted, labels=range(4), zero_division=0
    )
    assert numbers["macro_f1"] == pytest.approx(each[2][:3].mean())
    areas = [metrics.roc_auc_score(label == k, probabilities[:, k]) for k in range(3)]
    assert numbers["roc_auc"] == pytest.approx(np.mean(areas))
    rows = [line.split()[::2] for line in report.lines()[1:]]
    assert [row[0] for row in rows] == names
    assert np.array_equal(report.confusion, metrics.confusion_matrix(label, predicted))
    table, picture = report.report(tmp_path)
    assert table.read_text().splitlines()[3].startswith(f"two,{100 * each[0][2]:.1f} %")
    assert picture.stat().st_size > 10_000


# --------------------------------------------------------------------------------- directions

NAMES = ["a", "b", "c"]
LARGER = (
    *("accuracy", "top_", "macro_f1", "roc_auc", "pixel_accuracy", "mean_iou", "iou/", "ap", "ar"),
    *("precision", "recall", "balanced_accuracy", "auc", "binary_io_u"),
)
METRICS = {
    "classification": ClassificationReport(NAMES, 2, auc=True),
    "segmentation": SegmentationReport(Classes(tuple(NAMES), (), frozenset(), False)),
    "detection": DetectionReport(NAMES),
    "text_generation": TextReport(None),  # type: ignore[arg-type]
    "losses": callbacks.ScalarStats(["cost", "style"], mode="min"),
    "error": callbacks.ClassificationError(),
    "top": callbacks.TopKError(3),
    "yes_or_no": callbacks.BinaryClassificationStats(prefix="spam"),
    "confusion": callbacks.ConfusionMatrix(NAMES, draw=False),
    "iou": callbacks.MeanIoU(NAMES),
    "ap": callbacks.DetectionAP(NAMES),
    "perplexity": callbacks.Perplexity(),
    "keras": callbacks.KerasMetric(keras.metrics.AUC(), ["label", "score"]),
    "keras_error": callbacks.KerasMetric(keras.metrics.MeanAbsoluteError(), name="mae"),
}


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_every_number_declares_its_direction(metric: callbacks.Inferencer) -> None:
    """Errors, costs and perplexities should be small, and all other numbers large."""
    expected = {
        name: "max" if name.removeprefix("spam/").startswith(LARGER) else "min"
        for name in metric.names()
    }
    assert metric.directions() == expected


def test_numbers_without_a_direction() -> None:
    assert callbacks.ScalarStats(["cost", "temperature"], "x").directions() == {"x/cost": "min"}
    assert callbacks.KerasMetric(keras.metrics.Mean(), ["score"]).directions() == {}


@pytest.mark.parametrize(
    ("best", "expected"),
    [
        (None, ("val/error", "min")),
        ("val/macro_f1", ("val/macro_f1", "max")),
        ("val/top_2", ("val/top_2", "max")),
        ("val/cost", ("val/cost", "min")),
        ("cost", ("cost", "min")),
        ("max:val/luck", ("val/luck", "max")),
        ("min:learning_rate", ("learning_rate", "min")),
    ],
)
def test_best_follows_the_metric(tmp_path: Path, best: str | None, expected: Any) -> None:
    assert runner_of(tmp_path, best).best == expected


def test_best_of_an_undeclared_number_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"(?s)'train/error' is better.*max:train/error or min:"):
        runner_of(tmp_path, "train/error").train()
    assert not list(tmp_path.iterdir())


def runner_of(folder: Path, best: str | None) -> Runner:
    return Runner.from_recipe(find_recipe("digits", [f"best={best or 'null'}"]), folder)


# --------------------------------------------------------------------------------- defaults


@pytest.mark.parametrize("task", list(APPLICATIONS))
def test_each_key_has_a_whole_description(task: str) -> None:
    keys = list(keys_of(APPLICATIONS.get(task).config))
    assert [key.path for key in keys if not key.description.endswith((".", ")"))] == []


def test_former_names_of_public_things_work() -> None:
    classes = Classes(("a", "b"), ((0, 0, 0), (9, 9, 9)), by_colour=True)
    assert (classes.colours, classes.by_colour) == (classes.colors, True)
    data = SegmentationData(class_names=["a", "b"], colours=[[0, 0, 0], [9, 9, 9]])
    with pytest.warns(DeprecationWarning, match="Classes.of is now called from_config") as warned:
        assert Classes.of(data) == classes
    assert [warning.filename for warning in warned] == [__file__]
    with pytest.warns(DeprecationWarning, match="0.3 removes the former name"):
        assert Runner.of == Runner.from_recipe


@pytest.mark.parametrize("task", list(APPLICATIONS))
def test_every_task_has_sensible_defaults(task: str) -> None:
    kind = APPLICATIONS.get(task).config
    config = load(kind, {"task": task}, where="here")
    optimizer = config.optimizer
    assert (optimizer.name, optimizer.learning_rate) == ("adam", 1e-3)
    assert optimizer.schedule == ("constant" if task == "text_generation" else "cosine")
    given = ["optimizer.name=momentum", "patience=3"]
    other = load(kind, {"task": task}, given, where="here")
    assert other.optimizer.learning_rate == 0.02
    assert (
        other.train.epochs
        == config.train.epochs
        == (30 if task in ("detection", "instances") else 10)
    )


@pytest.mark.parametrize("installed", [True, False])
def test_detection_starts_from_a_backbone(installed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("towerpack.apps.detection._config.has_pretrained", lambda: installed)
    for values, expected in (
        ({}, installed),
        ({"model": {"network": "ssd_lite"}}, installed),
        ({"model": {"network": "ssd300"}}, False),
        ({"transfer": {}}, False),
    ):
        config: Any = DetectionConfig(**values)  # type: ignore[arg-type]
        assert (config.transfer.pretrained == "efficientnet-lite0") == expected
