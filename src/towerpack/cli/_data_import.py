"""`towerpack data import`: a folder of pictures becomes a recipe to train on."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import os
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
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
from towerpack.dataflow.sources._discovery import (
    IMAGE_EXTENSIONS,
    LeftOut,
    discover,
    folders_in,
    summary,
)

if TYPE_CHECKING:
    from towerpack.apps._box_files import Annotated as WithBoxes
    from towerpack.apps.classification._image_inputter import Pictures

_SPLITS = ("train", "val", "test")
_SHOWN = 20
_LEAST_PX, _SMALL_PX, _LARGE_PX = 16, 32, 64  # good for small networks, which a CPU has time for
_BATCH, _EPOCHS, _MOST_EPOCHS, _STEPS = 64, 15, 60, 900
_FEW, _MANY = 2000, 50_000  # pictures to train on
_PRETRAINED_PX, _HEAD_STEPS = 96, 150
# Both data sets are in files of the same names; the first labels tell them apart.
_FIRST_LABELS = {"mnist": [5, 0, 4, 1, 9, 2, 1, 3], "fashion_mnist": [9, 0, 0, 3, 0, 2, 7, 2]}

_Rows = list[tuple[str, int]]
"""Files and the numbers of their classes."""

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
    digest: bytes


@dataclass
class _Inventory:
    """What is in the folder, and what became of it.

    Attributes:
        bad: Files that cannot be decoded.
        left_out: Other files that are not used.
        classes: Number of files used, by split and class.
        identical: Files of equal content in different splits.
    """

    bad: list[LeftOut] = field(default_factory=list[LeftOut])
    left_out: list[LeftOut] = field(default_factory=list[LeftOut])
    classes: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    identical: list[list[str]] = field(default_factory=list[list[str]])

    @property
    def few(self) -> dict[str, int]:
        """Classes with no or one file."""
        totals: Counter[str] = Counter()
        for counts in self.classes.values():
            totals.update(counts)
        return {name: count for name, count in totals.items() if count < 2}


def import_(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="FOLDER/CLASS/*.jpg, or FOLDER/train/CLASS/*.jpg with val and test beside it; the "
            "files of MNIST, Fashion-MNIST, CIFAR-10 or CIFAR-100; COCO, VOC or YOLO annotations; "
            "pairs in images and masks; or texts in tables or in folders of classes.",
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
    inventory = _Inventory()
    data_set = _data_set(folder)
    files = list(discover(folder, lambda _: None, inventory.left_out))
    recognized = None if data_set else _recognized(folder, files, inventory)
    lists = () if recognized else (f"{split}.csv" for split in _SPLITS)
    written = [target / name for name in (*lists, "recipe.yaml")]
    there = [str(path) for path in written if path.exists()]
    if there and not overwrite:
        raise ConfigError(
            f"{', '.join(there)} would be lost.",
            fix="pass --overwrite, or choose another folder with --out",
        )
    _make_folder(target)
    task, data = recognized or _label_pictures(folder, files, target, split, inventory) or (
        "classification", data_set or _pictures(folder, target, split, inventory)
    )  # fmt: skip
    recipe: dict[str, Any] = {"task": task, "title": folder.resolve().name, "data": data}
    if task == "classification":
        recipe |= _training(written[0], data)
    own = set(map(str, written))  # Of an earlier import.
    inventory.left_out = [one for one in inventory.left_out if one.file not in own]
    inputter = _write_recipe(written[-1], recipe)
    counts = _counts(inputter, inventory)
    if task == "detection":
        _look_at_boxes(inputter.parts, list(inputter.class_names), files, inventory)
    if recognized and counts["train"] < 4 * inputter.batch_size:
        data["batch_size"] = max(1, counts["train"] // 4)
        _write_recipe(written[-1], recipe)
    if as_json:
        report: dict[str, Any] = {"recipe": str(written[-1]), "pictures": counts}
        report |= {"classes": inventory.classes, "few": inventory.few}
        report |= {"bad": [one._asdict() for one in inventory.bad]}
        report |= {"left_out": [one._asdict() for one in inventory.left_out]}
        typer.echo(json.dumps({**report, "identical": inventory.identical}))
        return
    _tell(written[-1], counts, data, inventory)


def _training(listed: Path, data: dict[str, Any]) -> dict[str, Any]:
    """Sections of a recipe that suit the number of pictures; `data` may be changed."""
    from towerpack.zoo import has_pretrained

    count = len(listed.read_bytes().splitlines()) - 1 if listed.is_file() else _MANY
    colour = data["channels"] == 3
    if count >= _FEW or not colour or not has_pretrained():
        steps = max(1, count // data["batch_size"])
        epochs = min(_MOST_EPOCHS, max(_EPOCHS, -(-_STEPS // steps)))
        if count < _FEW and colour:
            typer.echo(
                f"With {count} training pictures, a pretrained network is better: install "
                "'towerpack[pretrained]', and import again with --overwrite.",
                err=True,
            )
        return {"model": {"network": "resnet20"}, "train": {"epochs": epochs, "best": "val/cost"}}
    side = _PRETRAINED_PX
    data |= {"size": [side, side], "channels": 3, "augmenter": "efficientnet_lite"}
    epochs = min(_EPOCHS, max(5, -(-_HEAD_STEPS * data["batch_size"] // count)))
    return {
        "model": {"network": "efficientnet_lite0"},
        "optimizer": {"name": "adam", "learning_rate": 0.01},
        "train": {"epochs": epochs, "best": "val/cost"},
        "transfer": {
            "pretrained": "efficientnet-lite0", "skip": "fc/.*", "trainable": "fc/.*"
        },
    }  # fmt: skip


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        writable = os.access(folder, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        raise ConfigError(
            f"Nothing can be written to {folder}.", fix="choose another folder with --out"
        )


def _write_recipe(path: Path, recipe: dict[str, Any]) -> Any:
    """Write a recipe, and return its inputter."""
    with explain_missing("towerpack data import"):
        from towerpack.apps import find_recipe
    text = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, default_flow_style=None)
    replace_file(path, text.encode())
    return find_recipe(path).inputter()


def _counts(inputter: Any, inventory: _Inventory) -> dict[str, int]:
    """Return the size of each split that training will find; count the examples of classes."""
    if not hasattr(inputter, "parts"):  # Texts.
        examples = inputter.find()
        for split in [name for name in _SPLITS if name in examples]:
            inventory.classes[split] = dict(Counter(label for _, label, _ in examples[split]))
        return {s: len(inputter.part(s)) for s in _SPLITS if s in examples or s == "val"}
    return {s: len(inputter.parts[s]) for s in _SPLITS if s in inputter.parts}


def _look_at_boxes(
    parts: dict[str, Sequence[WithBoxes]],
    names: list[str],
    files: Sequence[str],
    inventory: _Inventory,
) -> None:
    """Count boxes of each class, and check the pictures."""
    lists = {split: [one.picture for one in part] for split, part in parts.items()}
    for split, part in parts.items():
        ids: list[int] = [k for one in part for k in one.class_ids.tolist()]
        counts = Counter(names[k] for k in ids)
        inventory.classes[split] = {name: counts[name] for name in names}
    used = {os.path.realpath(file) for several in lists.values() for file in several}
    inventory.left_out += [
        LeftOut(file, "a picture without annotations")
        for file in files
        if file.lower().endswith(IMAGE_EXTENSIONS) and os.path.realpath(file) not in used
    ]
    good = _good([file for several in lists.values() for file in several], "checking", inventory)
    inventory.identical = _identical(good, lists)


def _tell(
    recipe: Path, counts: dict[str, int], data: dict[str, Any], inventory: _Inventory
) -> None:
    show = console()
    for left_out in (inventory.bad, inventory.left_out):
        for one in left_out[:_SHOWN]:
            show.print(f"[yellow]left out[/] {escape(one.file)}: {escape(one.why)}")
        if len(left_out) > _SHOWN:
            show.print(f"[yellow]left out[/] {len(left_out) - _SHOWN} more; --json lists all")
    if inventory.left_out:
        show.print(f"left out {summary(inventory.left_out)}")
    for name in list(inventory.classes.get("train", ()))[:_SHOWN]:
        used = (f"{many.get(name, 0):,} {split}" for split, many in inventory.classes.items())
        show.print(f"{escape(name)}: {', '.join(used)}")
    for name, count in inventory.few.items():
        show.print(f"[yellow]The class {escape(name)} has {count} examples.[/]")
    if inventory.identical:
        first = escape(" and ".join(inventory.identical[0]))
        number = len(inventory.identical)
        show.print(f"[yellow]{number} pictures are in several splits, first {first}[/]")
    told = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    names = data.get("class_names") or inventory.classes.get("train")
    classes = f"{len(names)} classes, " if names else ""
    size = " x ".join(map(str, data.get("size", ())))
    trained = f"; trained on {size} pixels, channels: {data['channels']}" if size else ""
    show.print(f"{classes}{told}{trained}")
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


def _recognized(
    folder: Path, files: Sequence[str], inventory: _Inventory
) -> tuple[str, dict[str, Any]] | None:
    """Return task and data of a recipe for annotations or texts in usual places."""
    with explain_missing("towerpack data import"):
        from towerpack.cli._data_kinds import recognize
    names = [os.path.relpath(file, folder) for file in files]
    found = recognize(folder, names, inventory.left_out)
    return found and (found[0], {"path": str(folder.resolve()), **found[1]})


def _label_pictures(
    folder: Path, files: Sequence[str], target: Path, split: float, inventory: _Inventory
) -> tuple[str, dict[str, Any]] | None:
    """List pairs of pictures and label pictures; return task and data of a recipe for them."""
    from towerpack.cli._data_kinds import classes_of_labels, label_pictures

    pairs = label_pictures([os.path.relpath(file, folder) for file in files])
    if not pairs:
        return None
    named = {
        split: {str(folder / picture): str(folder / label) for picture, label in several}
        for split, several in pairs.items()
    }
    label_of = {p: label for several in named.values() for p, label in several.items()}
    names = folder / "classes.txt"
    used = {*label_of, *label_of.values(), str(names)}
    why = "no pair of a picture and a label picture"
    inventory.left_out += [LeftOut(file, why) for file in files if file not in used]
    good = _good([*label_of, *label_of.values()], "checking", inventory)
    lists = {
        split: [(p, 0) for p, label in several.items() if p in good and label in good]
        for split, several in named.items()
    }
    if list(lists) == ["train"]:
        lists = _divided(lists["train"], good, split, folder)
    inventory.identical = _write_lists(
        target, lists, good, lambda picture, _: os.path.relpath(label_of[picture], target)
    )
    data: dict[str, Any] = {"path": str(target.resolve())}
    data["batch_size"] = min(8, len(lists["train"]))
    if names.is_file():
        return "segmentation", {**data, "classes": str(names.resolve())}
    labels = (label_of[picture] for rows in lists.values() for picture, _ in rows)
    return "segmentation", {**data, **classes_of_labels(labels)}


def _pictures(folder: Path, target: Path, split: float, inventory: _Inventory) -> dict[str, Any]:
    """Check and list the pictures; the section `data` of a recipe for them."""
    found, classes = _found(folder, inventory)
    good: dict[str, _Picture] = {}
    lists: dict[str, _Rows] = {}
    for name, rows in found.items():
        good |= _good([file for file, _ in rows], f"checking {name}", inventory)
        lists[name] = [row for row in rows if row[0] in good]
    if list(lists) == ["train"]:
        lists = _divided(lists["train"], good, split, folder)
    for name, rows in lists.items():
        counts = Counter(label for _, label in rows)
        inventory.classes[name] = {c: counts[k] for k, c in enumerate(classes)}
    present = sorted({label for _, label in lists["train"]})
    if len(present) < 2:
        bad = inventory.bad
        raise ConfigError(
            f"{folder} has fewer than two classes with pictures that can be read.",
            got=f"{len(bad)} bad pictures" + (f", as {bad[0].file}: {bad[0].why}" if bad else ""),
            expected=f"{folder}/CLASS/*.jpg",
        )
    inventory.identical = _write_lists(target, lists, good, lambda _, label: classes[label])
    grey = all(picture.channels == 1 for picture in good.values())
    return {
        "inputter": "csv",
        "path": str(target.resolve()),
        "class_names": [classes[k] for k in present],
        "size": _size(list(good.values())),
        "channels": 1 if grey else 3,
        "batch_size": min(_BATCH, max(1, len(lists["train"]) // 4)),
        "augmenter": "digits" if grey else "cifar",  # `digits` does not mirror.
    }


def _identical(good: dict[str, _Picture], lists: dict[str, list[str]]) -> list[list[str]]:
    """Return the names of files with the same content that are in different splits."""
    groups: dict[bytes, dict[str, str]] = defaultdict(dict)
    for split, files in lists.items():
        for file in files:
            if file in good:
                groups[good[file].digest][file] = split
    return [list(group) for group in groups.values() if len(set(group.values())) > 1]


def _found(folder: Path, inventory: _Inventory) -> tuple[dict[str, _Rows], list[str]]:
    """Files and labels of each split, or of 'train' alone, and names of the classes."""
    with explain_missing("towerpack data import"):
        from towerpack.apps.classification._data_config import DataConfig
        from towerpack.apps.classification.augmenters import none
        from towerpack.apps.classification.folder_inputter import FolderInputter
    config = DataConfig(inputter="folder", path=str(folder), validation=0)
    inputter = FolderInputter(config, none)
    found = {name: _rows(inputter.part(name)) for name in inputter.splits}
    several = [one for folders in inputter.folders.values() for one in folders]
    inventory.left_out.clear()  # The folders tell the reasons more exactly.
    if several[0].root != folder:
        folders_in(folder, inventory.left_out, "not in the folder of a split")
    inventory.left_out += [skipped for one in several for skipped in one.skipped]
    return found, list(inputter.class_names)


def _rows(part: Pictures) -> _Rows:
    return list(zip(map(str, part.pictures), part.labels.tolist(), strict=True))


def _good(files: Sequence[str], doing: str, inventory: _Inventory) -> dict[str, _Picture]:
    """Return the pictures that can be decoded; the others are added to the inventory."""
    results = _checked(files, doing)
    inventory.bad += [one for one in results if isinstance(one, LeftOut)]
    return {one.file: one for one in results if isinstance(one, _Picture)}


def _checked(files: Sequence[str], doing: str) -> list[_Picture | LeftOut]:
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


def _check(file: str) -> _Picture | LeftOut:
    from towerpack.dataflow.images import decode_image, image_header

    try:
        data = Path(file).read_bytes()
        height, width, _ = decode_image(data, name="it").shape
        digest = hashlib.blake2b(data, digest_size=16).digest()
        return _Picture(file, height, width, image_header(data).channels, digest)
    except FormatError as error:
        return LeftOut(file, error.what)
    except OSError as error:
        return LeftOut(file, str(error.strerror))


def _divided(
    rows: _Rows, good: dict[str, _Picture], split: float, folder: Path
) -> dict[str, _Rows]:
    """Return training, validation and test pictures, chosen by a hash of each picture's name.

    Pictures of equal content share the name of the first one, so that they stay together.
    """
    from towerpack.apps._splits import held_out, parted, relative_name

    lists: dict[Any, _Rows] = {"train": rows, "val": [], "test": []}
    half = (1 - split) / 2
    shares: dict[Any, float] = {"test": half, "val": half / (1 - half)}
    first: dict[bytes, str] = {}
    for file, _ in rows:
        first.setdefault(good[file].digest, file)
    for name, share in shares.items():
        names = [relative_name(first[good[file].digest], folder) for file, _ in lists["train"]]
        chosen = held_out(names, share, name, [label for _, label in lists["train"]])
        lists["train"], lists[name] = parted(lists["train"], chosen)
    return lists


def _size(pictures: Sequence[_Picture]) -> list[int]:
    """Height and width for the network: that of small pictures of one size, or a square."""
    sizes = {(picture.height, picture.width) for picture in pictures}
    size = sizes.pop()
    if not sizes and max(size) <= _LARGE_PX:
        return [side * math.ceil(_LEAST_PX / min(size)) for side in size]
    middle = statistics.median(min(picture.height, picture.width) for picture in pictures)
    return [_LARGE_PX if middle >= _LARGE_PX else _SMALL_PX] * 2


def _write_lists(
    target: Path,
    lists: dict[str, _Rows],
    good: dict[str, _Picture],
    second: Callable[[str, int], str],
) -> list[list[str]]:
    """Write a list of each split, and return files of equal content in different ones.

    Args:
        target: Where the lists go.
        lists: Pictures and the numbers of their classes.
        good: What is known of the pictures.
        second: Returns the second column for a row.
    """
    for name in _SPLITS:
        (target / f"{name}.csv").unlink(missing_ok=True)  # not all of them are written each time
    for name, rows in lists.items():
        path = target / f"{name}.csv"
        with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as out:
            lines = csv.writer(out, lineterminator="\n")
            lines.writerow(("path", "label"))
            lines.writerows((os.path.relpath(row[0], target), second(*row)) for row in rows)
    return _identical(good, {name: [file for file, _ in rows] for name, rows in lists.items()})
