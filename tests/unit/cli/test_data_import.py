"""`towerpack data import`, over folders as users have them."""

from __future__ import annotations

import csv
import gzip
import json
import re
import shlex
import struct
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from typer.testing import CliRunner

from towerpack import ConfigError
from towerpack.apps import find_recipe
from towerpack.cli import app

NAMES = ("cats, big", "dogs")


def picture(file: Path, seed: int, shape: tuple[int, ...] = (40, 50, 3)) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    img = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    file.write_bytes(cv2.imencode(file.suffix, img)[1].tobytes())


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    """Twenty good pictures of each class, three bad ones, and what is no picture."""
    root = tmp_path / "my pets"
    for k, name in enumerate(NAMES):
        for i in range(20):
            picture(root / name / f"{i}, é.png", 100 * k + i)
    whole = (root / "dogs/0, é.png").read_bytes()
    (root / "dogs/cut.png").write_bytes(whole[:-100])
    (root / "dogs/empty.jpg").write_bytes(b"")
    (root / "dogs/page.jpg").write_text("<html>not found</html>")
    (root / "dogs/notes.txt").write_text("no picture by its name")
    return root


def towerpack(*arguments: Any) -> str:
    result = CliRunner().invoke(app, ["data", "import", *map(str, arguments)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def listed(file: Path) -> dict[Path, str]:
    with open(file, encoding="utf-8", newline="") as lines:
        first, *rows = csv.reader(lines)
    assert first == ["path", "label"]
    return {(file.parent / path).resolve(): label for path, label in rows}


@pytest.mark.parametrize("inside", [True, False])
def test_a_folder_of_classes(pets: Path, tmp_path: Path, inside: bool) -> None:
    """Each good picture is in one list, with its class; the next command is a recipe that works."""
    before = sorted(pets.rglob("*"))
    out = pets if inside else tmp_path / "lists"
    told = towerpack(pets, *(() if inside else ("--out", out)))
    assert f"Next: towerpack train {shlex.quote(str(out / 'recipe.yaml'))}\n" in told
    for name in ("cut.png", "empty.jpg", "page.jpg"):
        assert f"left out {pets / 'dogs' / name}: " in told.replace("\n", " ")
    lists = {split: listed(out / f"{split}.csv") for split in ("train", "val", "test")}
    every = {path: label for files in lists.values() for path, label in files.items()}
    assert every == {path.resolve(): path.parent.name for path in pets.rglob("*é.png")}
    assert all(set(files.values()) == set(NAMES) for files in lists.values())
    assert [p for p in sorted(pets.rglob("*")) if p.suffix not in (".csv", ".yaml")] == before
    inputter: Any = find_recipe(out / "recipe.yaml").inputter()
    assert list(inputter.class_names) == sorted(NAMES)
    batch, labels = next(iter(inputter.flow("train")))
    assert batch.shape == (inputter.batch_size, *inputter.config.size, 3)
    assert set(labels.tolist()) <= {0, 1}


def test_what_was_made_is_not_lost(pets: Path) -> None:
    towerpack(pets)
    with pytest.raises(ConfigError, match=r"would overwrite .*recipe\.yaml"):
        towerpack(pets)
    (pets / "test.csv").write_text("path,label\ndogs/lost.jpg,dogs\n")
    found = json.loads(towerpack(pets, "--overwrite", "--split", 0.5, "--json"))
    assert sum(found["pictures"].values()) == 40 and 10 < found["pictures"]["train"] < 30
    assert found["recipe"] == str(pets / "recipe.yaml")
    assert [Path(one["file"]).name for one in found["bad"]] == ["cut.png", "empty.jpg", "page.jpg"]
    assert all(one["why"] for one in found["bad"])


def test_folders_that_are_split_stay_so(tmp_path: Path) -> None:
    for split, count in (("train", 6), ("valid", 3)):
        for name in ("10", "9"):  # Integers that are names, and not in the order of their labels.
            for i in range(count):
                picture(tmp_path / split / name / f"{i}.png", i, (9 + i, 30))
    towerpack(tmp_path)
    inputter: Any = find_recipe(tmp_path / "recipe.yaml").inputter()
    assert {split: len(inputter.part(split)) for split in inputter.splits} == {
        "train": 12, "val": 6
    }  # fmt: skip
    assert list(inputter.class_names) == ["10", "9"]
    val = inputter.part("val")
    for file, label in zip(val.pictures, val.labels, strict=True):
        assert Path(file).parent.name == inputter.class_names[label]
    assert inputter.config.channels == 1 and inputter.config.size == (32, 32)


FIRST = {"fashion_mnist": [9, 0, 0, 3, 0, 2, 7, 2], "mnist": [5, 0, 4, 1, 9, 2, 1, 3]}


@pytest.mark.parametrize("kind", ["fashion_mnist", "mnist", "other"])
def test_files_of_known_data_sets(kind: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for prefix, count in (("train", 40), ("t10k", 10)):
        labels = np.arange(count, dtype=np.uint8) % 10
        labels[:8] = FIRST.get(kind, [0] * 8)
        for name, array in (
            ("images-idx3", rng.integers(0, 256, (count, 28, 28), np.uint8)),
            ("labels-idx1", labels),
        ):
            head = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
            file = tmp_path / "idx" / f"{prefix}-{name}-ubyte.gz"
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(gzip.compress(head + array.tobytes()))
    found = json.loads(towerpack(tmp_path / "idx", "--out", tmp_path / "new", "--json"))
    counts = found["pictures"]
    assert counts["train"] + counts["val"] == 40 and counts["test"] == 10 and not found["bad"]
    inputter: Any = find_recipe(found["recipe"]).inputter()
    assert inputter.config.inputter == ("mnist" if kind == "other" else kind)
    assert inputter.class_names[9] == ("ankle boot" if kind == "fashion_mnist" else "9")


@pytest.mark.parametrize("inside", ["", "cifar-10-batches-bin"])
def test_files_of_cifar(tmp_path: Path, inside: str) -> None:
    folder = tmp_path / "cifar" / inside
    folder.mkdir(parents=True)
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        rows = np.zeros((10, 1 + 3072), np.uint8)
        rows[:, 0] = np.arange(10)
        rows.tofile(folder / name)
    (folder / "batches.meta.txt").write_text("\n".join(f"class {i}" for i in range(10)))
    found = json.loads(towerpack(tmp_path / "cifar", "--json"))
    assert found["pictures"] == {"train": 40, "val": 10, "test": 10}


def test_what_cannot_be_imported(tmp_path: Path) -> None:
    for i in range(8):
        picture(tmp_path / "one/only" / f"{i}.png", i)
    (tmp_path / "none").mkdir()
    for folder, message in (
        ("missing", "does not exist"),
        ("none", "no images"),
        ("one", "at least two classes"),
    ):
        with pytest.raises(ConfigError, match=message):
            towerpack(tmp_path / folder)


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("count", [40, 2600])
def test_the_recipe_suits_the_pictures(
    tmp_path: Path, channels: int, count: int, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Color pictures start from a pretrained network, if its extra is installed."""
    monkeypatch.setattr("towerpack.zoo.has_pretrained", lambda: installed)
    for k in range(count):
        shape = (8, 8) if channels == 1 else (8, 8, 3)
        picture(tmp_path / f"{k % 2}/{k}.png", k, shape)
    told = towerpack(tmp_path)
    recipe = find_recipe(tmp_path / "recipe.yaml")
    config: Any = recipe.config
    pretrained, few = installed and channels == 3, count < 2000
    assert config.transfer.pretrained == ("efficientnet-lite0" if pretrained else None)
    assert config.model.network == ("efficientnet_lite0" if pretrained else "resnet20")
    assert (config.optimizer.name, config.optimizer.schedule) == ("adam", "cosine")
    assert ("Install 'towerpack[pretrained]'" in told) == (channels == 3 and not installed)
    if not pretrained:
        steps = config.train.steps_per_epoch or len(recipe.inputter().flow("train"))
        assert config.train.epochs * steps >= (900 if few else 450)
        return
    assert recipe.modeler(recipe.inputter()).pretrained() is not None
    # The last layer alone, or what lies behind the first blocks, too.
    assert bool(re.fullmatch(config.transfer.trainable, "block6/kernel")) != few
    assert not re.fullmatch(config.transfer.trainable, "block0/kernel")


@pytest.mark.parametrize("installed", [True, False])
@pytest.mark.parametrize("channels", [1, 3])
def test_own_pictures_are_not_mirrored(
    tmp_path: Path, channels: int, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Letters, digits, and arrows have another meaning if they are mirrored, in color too."""
    monkeypatch.setattr("towerpack.zoo.has_pretrained", lambda: installed)
    for k in range(8):  # bright on the left, on paper that is as bright as in the middle
        img = np.full((64, 64, 3)[: 2 + channels // 2], 128, np.uint8)
        img[:, :16], img[:, -16:] = 250, 5
        file = tmp_path / f"{k % 2}/{k}.png"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(cv2.imencode(".png", img)[1].tobytes())
    towerpack(tmp_path)
    flow: Any = find_recipe(tmp_path / "recipe.yaml", ["batch_size=1"]).inputter().flow("train")
    flow.reset_state()
    for _ in range(5):
        for images, _labels in flow:
            columns = images[0].mean(axis=(0, 2))
            assert columns[:4].mean() > columns[-4:].mean() + 50
