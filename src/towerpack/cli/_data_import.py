"""`towerpack data import`: a folder of pictures becomes a recipe to train on."""

from __future__ import annotations

import csv
import json
import math
import os
import statistics
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.markup import escape
from rich.progress import track

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.extras import explain_missing
from towerpack._core.files import replace_file
from towerpack.cli._console import console

if TYPE_CHECKING:
    from towerpack.apps.classification._image_inputter import Pictures

_SPLITS = ("train", "val", "test")
_SHOWN = 20
_LEAST_PX, _SMALL_PX, _LARGE_PX = 16, 32, 64  # good for small networks, which a CPU has time for
_BATCH, _LEAST_BATCH, _EPOCHS, _STEPS = 64, 8, 15, 60
_FEW = 2000  # pictures to train on
_PRETRAINED_PX, _HEAD_STEPS, _TUNE_EPOCHS = 96, 10, 5
# Both data sets are in files of the same names; the first labels tell them apart.
_FIRST_LABELS = {"mnist": [5, 0, 4, 1, 9, 2, 1, 3], "fashion_mnist": [9, 0, 0, 3, 0, 2, 7, 2]}

_CIFAR = (
    ("cifar10", "cifar-10-batches-bin", "data_batch_1.bin"),
    ("cifar100", "cifar-100-binary", "train.bin"),
)


@dataclass(frozen=True)
class _Picture:
    file: str
    height: int
    width: int
    channels: int


@dataclass(frozen=True)
class _Bad:
    file: str
    why: str


def import_(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="FOLDER/CLASS/*.jpg, or FOLDER/train/CLASS/*.jpg with val and test beside it; or "
            "the files of MNIST, Fashion-MNIST, CIFAR-10 or CIFAR-100.",
        ),
    ],
    split: Annotated[
        float,
        typer.Option(
            min=0.01, max=0.99, help="Share to train on; half of the rest validates, half tests."
        ),
    ] = 0.8,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where lists and recipe go.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Those of before.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object.")] = False,
) -> None:
    """Make a folder of pictures trainable: check each, list them, write a recipe. Copies nothing.

    towerpack data import pets && towerpack train pets/recipe.yaml
    """
    folder, target = folder.expanduser(), (out or folder).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"There is no folder {folder}.")
    written = [target / name for name in (*(f"{s}.csv" for s in _SPLITS), "recipe.yaml")]
    there = [str(path) for path in written if path.exists()]
    if there and not overwrite:
        raise ConfigError(f"{', '.join(there)} would be lost.", fix="--overwrite, or --out FOLDER")
    _make_folder(target)
    bad: list[_Bad] = []
    data = _data_set(folder) or _pictures(folder, target, split, bad)
    recipe = {"task": "classification", "title": folder.resolve().name, "data": data}
    recipe |= _training(written[0], data)
    text = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, default_flow_style=None)
    replace_file(written[-1], text.encode())
    counts = _counts(written[-1])
    if as_json:
        listed = [{"file": one.file, "why": one.why} for one in bad]
        typer.echo(json.dumps({"recipe": str(written[-1]), "pictures": counts, "bad": listed}))
        return
    _tell(written[-1], counts, data, bad)


def _training(listed: Path, data: dict[str, Any]) -> dict[str, Any]:
    """Sections of a recipe that suit the number of pictures; `data` may be changed."""
    from towerpack.zoo import has_pretrained

    own, colour = listed.is_file(), data["channels"] == 3  # A known data set has no list.
    count = len(listed.read_bytes().splitlines()) - 1 if own else 0
    few = own and count < _FEW
    if not (own and colour and has_pretrained()):
        if own and colour:
            typer.echo(
                f"With {count} training pictures, a pretrained network is better: install "
                "'towerpack[pretrained]', and import again with --overwrite.",
                err=True,
            )
        recipe: dict[str, Any] = {"model": {"network": "resnet20"}}
        if few:
            recipe["optimizer"] = {"name": "adam", "learning_rate": 0.003}
        steps = {"steps_per_epoch": _STEPS} if few else {}
        return recipe | {"train": {"epochs": _EPOCHS, **steps, "best": "val/cost"}}
    data["size"] = [_PRETRAINED_PX] * 2
    trained, rate, length = "(?!stem|block[0-2]/).*", 0.001, {"epochs": _TUNE_EPOCHS}
    if few:
        trained, rate = "fc/.*", 0.01
        length = {"epochs": _EPOCHS, "steps_per_epoch": _HEAD_STEPS}
    return {
        "model": {"network": "efficientnet_lite0"},
        "optimizer": {"name": "adam", "learning_rate": rate},
        "train": {**length, "best": "val/cost"},
        "transfer": {"pretrained": "efficientnet-lite0", "skip": "fc/.*", "trainable": trained},
    }


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        raise ConfigError(f"Nothing can be written to {folder}.", fix="--out FOLDER")


def _counts(recipe: Path) -> dict[str, int]:
    """How many pictures of each split training will find, by the recipe that was written."""
    with explain_missing("towerpack data import"):
        from towerpack.apps import find_recipe
    inputter: Any = find_recipe(recipe).inputter()
    return {name: len(inputter.part(name)) for name in inputter.splits}


def _tell(recipe: Path, counts: dict[str, int], data: dict[str, Any], bad: list[_Bad]) -> None:
    show = console()
    for one in bad[:_SHOWN]:
        show.print(f"[yellow]left out[/] {escape(one.file)}: {escape(one.why)}")
    if len(bad) > _SHOWN:
        show.print(f"[yellow]left out[/] {len(bad) - _SHOWN} more; --json lists all")
    told = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    size = " x ".join(map(str, data["size"]))
    names = data.get("class_names")
    classes = f"{len(names)} classes, " if names else ""
    show.print(f"{classes}{told}; trained on {size} pixels, channels: {data['channels']}")
    show.print(f"Next: towerpack train {escape(str(recipe))}", soft_wrap=True)


def _data_set(folder: Path) -> dict[str, Any] | None:
    """The section `data` of a recipe, for a folder with files of a known data set."""
    where = {"path": str(folder.resolve())}
    if any(folder.glob("train-images-idx3-ubyte*")):
        from towerpack.dataflow.datasets import Mnist

        first = Mnist("train", shuffle=False, dir=folder).labels[:8].tolist()
        kind = next((name for name, labels in _FIRST_LABELS.items() if labels == first), None)
        known = {"inputter": kind or "mnist", **where}
        named: dict[str, Any] = {} if kind else {"class_names": list("0123456789")}
        if kind == "fashion_mnist":
            named["augmenter"] = "cifar"
        return {**known, "size": [28, 28], "channels": 1, "batch_size": 128, **named}
    for kind, inner, file in _CIFAR:
        if (folder / file).is_file() or (folder / inner / file).is_file():
            more = {"size": [32, 32], "channels": 3, "batch_size": 128, "augmenter": "cifar"}
            return {"inputter": kind, **where, **more}
    return None


def _pictures(folder: Path, target: Path, split: float, bad: list[_Bad]) -> dict[str, Any]:
    """Check and list the pictures; the section `data` of a recipe for them."""
    found, classes = _found(folder)
    checked: dict[str, list[_Picture]] = {}
    kept: dict[str, list[int]] = {}
    for name, (files, labels) in found.items():
        results = _checked(files, f"checking {name}")
        bad += [one for one in results if isinstance(one, _Bad)]
        checked[name] = [one for one in results if isinstance(one, _Picture)]
        pairs = zip(labels, results, strict=True)
        kept[name] = [label for label, one in pairs if isinstance(one, _Picture)]
    lists = {name: ([p.file for p in checked[name]], kept[name]) for name in checked}
    if list(lists) == ["train"]:
        lists = _divided(*lists["train"], split, folder)
    present = sorted(set(lists["train"][1]))
    if len(present) < 2:
        raise ConfigError(
            f"{folder} has fewer than two classes with pictures that can be read.",
            got=f"{len(bad)} bad pictures" + (f", as {bad[0].file}: {bad[0].why}" if bad else ""),
            expected=f"{folder}/CLASS/*.jpg",
        )
    for name in _SPLITS:
        (target / f"{name}.csv").unlink(missing_ok=True)  # not all of them are written each time
    for name, (files, labels) in lists.items():
        _write_list(target / f"{name}.csv", files, [classes[k] for k in labels])
    every = [picture for pictures in checked.values() for picture in pictures]
    count = len(lists["train"][0])
    grey = all(picture.channels == 1 for picture in every)
    return {
        "inputter": "csv",
        "path": str(target.resolve()),
        "class_names": [classes[k] for k in present],
        "size": _size(every),
        "channels": 1 if grey else 3,
        "batch_size": min(_BATCH, count, max(_LEAST_BATCH, count // 16)),
        "augmenter": "unmirrored",  # The pictures may be letters or arrows.
    }


def _found(folder: Path) -> tuple[dict[str, tuple[list[str], list[int]]], list[str]]:
    """Files and labels of each split, or of 'train' alone, and names of the classes."""
    with explain_missing("towerpack data import"):
        from towerpack.apps.classification._data_config import DataConfig
        from towerpack.apps.classification.augmenters import none
        from towerpack.apps.classification.folder_inputter import FolderInputter
    config = DataConfig(inputter="folder", path=str(folder), validation=0)
    inputter = FolderInputter(config, none)
    found = {name: _rows(inputter.part(name)) for name in inputter.splits}
    return found, list(inputter.class_names)


def _rows(part: Pictures) -> tuple[list[str], list[int]]:
    return [str(file) for file in part.pictures], part.labels.tolist()


def _checked(files: Sequence[str], doing: str) -> list[_Picture | _Bad]:
    """Decode each whole file."""
    bar = Console(stderr=True)
    with ThreadPoolExecutor(os.cpu_count()) as threads:
        results = threads.map(_check, files)
        watched = track(
            results,
            doing,
            total=len(files),
            console=bar,
            transient=True,
            disable=not bar.is_terminal,
        )
        return list(watched)


def _check(file: str) -> _Picture | _Bad:
    from towerpack.dataflow.images import decode_image, image_header

    try:
        data = Path(file).read_bytes()
        height, width, _ = decode_image(data, name="it").shape
        return _Picture(file, height, width, image_header(data).channels)
    except FormatError as error:
        return _Bad(file, error.what)
    except OSError as error:
        return _Bad(file, str(error.strerror))


def _divided(
    files: list[str], labels: list[int], split: float, folder: Path
) -> dict[str, tuple[list[str], list[int]]]:
    """Return training, validation and test pictures, chosen by a hash of each picture's name."""
    from towerpack.apps._splits import held_out, parted, relative_name

    rows = list(zip(files, labels, strict=True))
    lists: dict[Any, list[tuple[str, int]]] = {"train": rows, "val": [], "test": []}
    half = (1 - split) / 2
    shares: dict[Any, float] = {"test": half, "val": half / (1 - half)}
    for name, share in shares.items():
        names = [relative_name(file, folder) for file, _ in lists["train"]]
        chosen = held_out(names, share, name, [label for _, label in lists["train"]])
        lists["train"], lists[name] = parted(lists["train"], chosen)
    return {name: ([f for f, _ in rows], [k for _, k in rows]) for name, rows in lists.items()}


def _size(pictures: Sequence[_Picture]) -> list[int]:
    """Height and width for the network: that of small pictures of one size, or a square."""
    sizes = {(picture.height, picture.width) for picture in pictures}
    size = sizes.pop()
    if not sizes and max(size) <= _LARGE_PX:
        return [side * math.ceil(_LEAST_PX / min(size)) for side in size]
    middle = statistics.median(min(picture.height, picture.width) for picture in pictures)
    return [_LARGE_PX if middle >= _LARGE_PX else _SMALL_PX] * 2


def _write_list(path: Path, files: Sequence[str], names: Sequence[str]) -> None:
    with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as out:
        lines = csv.writer(out, lineterminator="\n")
        lines.writerow(("path", "label"))
        lines.writerows(zip((os.path.relpath(f, path.parent) for f in files), names, strict=True))
