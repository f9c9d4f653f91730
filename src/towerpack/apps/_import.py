"""Import of a data folder: check its files, list them, and write a recipe for training."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import itertools
import math
import os
import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from rich.console import Console
from rich.progress import track

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.files import replace_file
from towerpack._core.tables import lines_of, read_rows, read_text
from towerpack.apps._application import find_recipe
from towerpack.apps._label_pictures import open_labels, voc_color
from towerpack.apps._layouts import Layout, recognized
from towerpack.apps._splits import has_splits, held_out, matching, parted, relative_name
from towerpack.dataflow.sources.discovery import NO_IMAGE, NO_TEXT, Discovery, LeftOut, is_text

_SPLITS = ("train", "val", "test")
_LEAST_PX, _SMALL_PX, _LARGE_PX = 16, 32, 64  # image sizes for networks that a CPU can train
_BATCH, _LEAST_BATCH, _EPOCHS, _STEPS = 64, 8, 15, 60
_FEW_BATCH, _MOST_CLASSES, _MOST_LABEL = 16, 254, 64
_LOPSIDED = 0.2  # difference of the share of training pictures
_STRETCHED = 1.5
_DATA_SETS = {"mnist", "fashion_mnist", "cifar10", "cifar100"}
_VERY_FEW, _FEW = 150, 2000  # pictures to train on
_PRETRAINED_PX, _HEAD_STEPS, _TUNE_EPOCHS_OF_FEW, _TUNE_EPOCHS = 96, 10, 8, 5
# The files of both data sets have the same names, but their first labels differ.
_FIRST_LABELS = {"mnist": [5, 0, 4, 1, 9, 2, 1, 3], "fashion_mnist": [9, 0, 0, 3, 0, 2, 7, 2]}

_LISTS = re.compile(
    r"[/\\](classes\.txt|_classes\.csv|label_?(map|colors)\.txt|ImageSets[/\\].*\.txt)$",
    re.IGNORECASE,
)
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
    is_gray: bool
    digest: bytes


@dataclass(frozen=True)
class Bad:
    file: str
    why: str


@dataclass
class Imported:
    """Result of an import.

    Attributes:
        recipe: Path of the recipe.
        task: Name of the recipe's application.
        data: Section `data` of the recipe.
        used: Number of files by split and class. A file may have several classes.
        counts: Number of files, or of texts in tables, by split.
        bad: Damaged files and the reasons.
        left_out: Unused files and the reasons.
        small_classes: Number of files of each class with fewer than two files.
        identical: Groups of files with the same content that are in different splits.
        advice: Sentences for the user.
    """

    recipe: Path
    task: str = "classification"
    data: dict[str, Any] = field(default_factory=dict)
    used: dict[str, dict[str, int]] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    bad: list[Bad] = field(default_factory=list)
    left_out: list[LeftOut] = field(default_factory=list)
    small_classes: dict[str, int] = field(default_factory=dict)
    identical: list[list[str]] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the result as a dict that can be written as JSON."""
        by_reason: dict[str, list[str]] = {}
        for file, reason in self.left_out:
            by_reason.setdefault(reason, []).append(file)
        keys = "task", "used", "bad", "small_classes", "identical"
        plain = {key: value for key, value in asdict(self).items() if key in keys}
        plain |= {"recipe": str(self.recipe), "pictures": self.counts, "left_out": by_reason}
        return plain


def import_data(
    folder: Path, out: Path | None = None, *, split: float = 0.8, overwrite: bool = False
) -> Imported:
    """Check the files of a data folder, list them, and write a recipe. Copies no data.

    Args:
        folder: Folder of the data.
        out: Folder for the lists and the recipe; by default `folder`.
        split: Fraction of the data for training. The rest is split into validation and test data.
        overwrite: Whether to replace the lists and the recipe of an earlier import.

    Raises:
        ConfigError: The folder contains no usable data, or files of an earlier import.
        FormatError: A file with annotations or texts is damaged.
    """
    folder, target = folder.expanduser(), (out or folder).expanduser()
    if not folder.is_dir():
        raise ConfigError(f"The data folder {folder} does not exist.")
    known = _data_set(folder)
    layout = None if known else recognized(folder)
    listed = layout if layout and layout.task == "classification" else None
    layout = None if listed else layout
    written = [target / name for name in (*(f"{s}.csv" for s in _SPLITS), "recipe.yaml")]
    if layout is not None and not layout.pairs:
        written = written[-1:]  # Tables of texts may have the names of lists.
    existing = [str(path) for path in written if path.exists()]
    imported = written[-1].exists()  # Without a recipe, lists are the user's own tables.
    if existing and not (overwrite and imported):
        raise ConfigError(
            f"The import would overwrite {', '.join(existing)}.",
            fix=("pass --overwrite, or " if imported else "") + "choose another folder with --out",
        )
    with contextlib.suppress(OSError):
        target.mkdir(parents=True, exist_ok=True)
    if not os.access(target, os.W_OK):
        raise ConfigError(
            f"The folder {target} is not writable.", fix="choose another folder with --out"
        )
    result, pictures = Imported(written[-1]), _Pictures()
    classes: Sequence[str] = ()
    sections: dict[str, Any] = {}
    if layout is not None:
        result.task, result.data = layout.task, layout.data | {"path": str(folder.resolve())}
        if layout.pairs:
            result.data |= _label_pictures(folder, target, split, layout, pictures, result)
        result.data |= {"validation": round(1 - split, 6), "batch_size": 1}
    else:
        result.data = known or {}
        if not known:
            rows = _numbered(listed.pairs) if listed else _find_pictures(folder)
            classes, result.data = _pictures(folder, target, split, pictures, result, rows)
        sections = _training(target / "train.csv", result.data, result.advice)
        if not known:
            result.advice += _about(pictures.good(), result.data)
    if layout is not None and layout.has_masks:
        result.advice.append(
            f"Each object has a mask. To train masks too, set `task: instances` in {result.recipe}."
        )
    _write_recipe(folder, result, sections)
    inputter: Any = find_recipe(result.recipe).inputter()
    if layout is not None:
        train = len(inputter.row_names("train") or ())
        result.data["batch_size"] = min(_FEW_BATCH, max(1, train // 4))
        _write_recipe(folder, result, sections)
    used = _take_inventory(result, inputter, classes, pictures)
    unused = _left_out(result, folder, used, in_folders=not listed)
    result.left_out = [entry for entry in unused if Path(entry.file) not in written]
    if result.bad and result.task == "detection":
        result.advice.append("Training stops at damaged pictures: repair or remove them.")
    return result


def _write_recipe(folder: Path, result: Imported, sections: dict[str, Any]) -> None:
    recipe = {"task": result.task, "title": folder.resolve().name, "data": result.data, **sections}
    text = yaml.safe_dump(recipe, sort_keys=False, allow_unicode=True, default_flow_style=None)
    replace_file(result.recipe, text.encode())


def _take_inventory(
    result: Imported, inputter: Any, classes: Sequence[str], pictures: _Pictures
) -> set[str]:
    """Count the data that the recipe finds. Return the files that the recipe uses."""
    names = list(classes or inputter.class_names)
    digests: dict[bytes, dict[str, str]] = {}
    files: set[str] = set()
    for split in _SPLITS:
        rows = list(_rows_of(inputter, result, split, files, pictures))
        if not rows:
            continue
        counts = Counter(itertools.chain.from_iterable(labels for _, labels, _ in rows))
        result.used[split] = {name: counts[name] for name in names}
        result.counts[split] = len(rows)
        for file, _, digest in rows:
            files.add(file)
            digests.setdefault(digest, {})[split] = file
    totals = {name: sum(counts[name] for counts in result.used.values()) for name in names}
    result.small_classes = {name: total for name, total in totals.items() if total < 2}
    result.identical = [list(splits.values()) for splits in digests.values() if len(splits) > 1]
    return files


def _left_out(
    result: Imported, folder: Path, files: set[str], *, in_folders: bool
) -> list[LeftOut]:
    """Return the files below a folder that training does not use.

    `in_folders` is whether the folders of pictures are the classes.
    """
    inputter, is_text_task = result.data["inputter"], result.task == "text_classification"
    if inputter in _DATA_SETS or (is_text_task and inputter != "folder"):
        return []
    discovery = Discovery(is_text, NO_TEXT) if is_text_task else Discovery()
    if is_text_task or (result.task == "classification" and in_folders):
        splits = discovery.folders(folder) if has_splits(folder) else ["."]
        roots = [folder / name for name in splits]
        for root in roots:
            list(discovery.by_class(root, discovery.folders(root)))
        return discovery.left_out
    used = {os.path.realpath(file) for file in files | {bad.file for bad in result.bad}}
    unused = [file for file in discovery.files(folder) if os.path.realpath(file) not in used]
    # Annotations and tables are not images, but they are used.
    annotated = result.task != "segmentation"
    others = [
        entry
        for entry in discovery.left_out
        if not (entry.reason == NO_IMAGE and (annotated or _LISTS.search(entry.file)))
    ]
    return others + [LeftOut(file, "a picture without annotations") for file in unused]


def _rows_of(
    inputter: Any, result: Imported, split: str, files: set[str], pictures: _Pictures
) -> Iterator[tuple[str, Iterable[str], bytes]]:
    """Iterate over the rows of a split: name, classes, hash. Collects used and damaged files."""
    names = list(inputter.class_names)
    if result.task == "text_classification":
        if split != "test" or split in inputter.find():
            for text, label in inputter.part(split):
                yield text[:80], [names[label]], _hash(text.encode())
        return
    part = inputter.parts.get(split, ())
    if result.task == "classification":
        pairs = zip(part.pictures, part.labels, strict=True) if part else ()
        for number, (picture, label) in enumerate(pairs):
            if isinstance(picture, np.ndarray):
                name, digest = f"{split}[{number}]", _hash(picture.tobytes())
            else:
                name, digest = os.path.normpath(picture), pictures.hash_of(picture)
            yield name, [names[label]], digest
        return
    results = pictures.checked([item.picture for item in part], f"checking {split}")
    for item, checked in zip(part, results, strict=True):
        if isinstance(checked, Bad) and checked not in result.bad:
            result.bad.append(checked)
        if result.task == "detection":
            numbers = set(item.class_ids.tolist())
        else:
            files.add(item.labels)
            (values,) = pictures.checked([item.labels], "", _open_values)
            numbers = set(values.labels.flatten().tolist()) - {255}
        yield item.picture, [names[number] for number in numbers], pictures.hash_of(item.picture)


def _label_pictures(
    folder: Path, target: Path, split: float, layout: Layout, pictures: _Pictures, result: Imported
) -> dict[str, Any]:
    """Check and list images with label images. Return the section `data` of a recipe."""
    from towerpack.apps.segmentation._classes import Classes
    from towerpack.apps.segmentation._config import DataConfig

    all_pairs = [pair for pairs in layout.pairs.values() for pair in pairs]
    checked = pictures.checked([picture for picture, _ in all_pairs], "checking pictures")
    labels = pictures.checked([mask for _, mask in all_pairs], "checking labels", _open_values)
    good: dict[tuple[str, str], tuple[_Picture, _Values]] = {}
    for pair, picture, label in zip(all_pairs, checked, labels, strict=True):
        result.bad += [bad for bad in (picture, label) if isinstance(bad, Bad)]
        if isinstance(picture, _Picture) and isinstance(label, _Values):
            size = picture.height, picture.width
            if {*label.size} == {*size}:
                good[pair] = picture, label
            else:
                sizes = [f"{h} x {w}" for h, w in (label.size, size)]
                why = f"{sizes[0]} pixels, but its picture has {sizes[1]}"
                result.bad.append(Bad(pair[1], why))
    settings = _classes_of(folder, [values for _, values in good.values()], result.advice)
    data = {"path": str(target.resolve()), **settings}
    classes = Classes.from_config(DataConfig(**data))
    errors: list[FormatError] = []
    for pair, (_, values) in list(good.items()):
        try:
            values.labels = classes.labels_of(values.pixels, values.palette, pair[1])
        except FormatError:
            try:
                classes.read(pair[1], str(folder))  # This error states the row and column.
            except FormatError as error:
                errors.append(error)
                result.bad.append(Bad(pair[1], error.what))
                del good[pair]
    if len(errors) > len(good):  # The classes are wrong, not single label pictures.
        raise errors[0]
    lists = {name: [p for p in pairs if p in good] for name, pairs in layout.pairs.items()}
    if list(lists) == ["train"]:
        readable = [picture for picture, _ in good.values()]
        lists = _divided(readable, lists["train"], split, folder, by_class=False)
    relative = {
        name: [(picture, os.path.relpath(mask, target)) for picture, mask in pairs]
        for name, pairs in lists.items()
    }
    _write_lists(target, relative, ("image", "label"))
    return data


def _classes_of(folder: Path, pictures: Sequence[_Values], advice: list[str]) -> dict[str, Any]:
    """Return the settings for the classes: from a file, else from the values in label images."""
    values = {value for picture in pictures for value in picture.values}
    is_gray = all(isinstance(value, int) for value in values)
    has_palette = any(picture.palette is not None for picture in pictures)
    void: dict[str, Any] = {"void": [255]} if 255 in values else {}
    for name in ("classes.txt", "label_colors.txt"):
        for file in matching(folder, name):
            from towerpack.apps.segmentation._classes import read_classes_file

            names, colors = read_classes_file(folder / file)
            settings: dict[str, Any] = {"classes": str((folder / file).resolve())}
            fits = values <= {*range(len(names)), 255} and values != {0, 255}
            levels = sorted(values) if is_gray else []
            if fits or has_palette or any(colors) or len(levels) != len(names):
                return settings | void
            pairs = ", ".join(f"{level}: {name}" for level, name in zip(levels, names, strict=True))
            advice.append(f"Gray levels of label pictures are the classes in order: {pairs}.")
            return settings | {"colors": [[level] * 3 for level in levels]}
    for file in itertools.chain(*(sorted(folder.glob(f"{d}_classes.csv")) for d in ("", "*/"))):
        return _classes_of_roboflow(file) | void
    for file in matching(folder, "labelmap.txt"):
        return _classes_of_cvat(folder / file) | void
    if len(values) > _MOST_CLASSES or len(values) < 2:
        raise ConfigError(
            f"The label pictures in {folder} must have 2 to {_MOST_CLASSES} different values, got "
            f"{len(values)}.",
            expected="a number or a color for each class",
            fix="save label pictures without loss, as PNG, or list the names in data.class_names",
        )
    labels = {value for value in values if isinstance(value, int) and value != 255}
    # Gray levels such as 0 and 50 are not labels of 51 classes.
    are_labels = len(labels) > 1 and max(labels) < _MOST_LABEL and labels | {255} >= values
    if are_labels and (has_palette or 2 * len(labels) >= max(labels)):
        return {"class_names": [f"class {i}" for i in range(max(labels) + 1)], **void}
    colors = sorted([v, v, v] if isinstance(v, int) else list(v) for v in values)
    return {"class_names": [f"class {i}" for i in range(len(colors))], "colors": colors}


def _classes_of_roboflow(file: Path) -> dict[str, Any]:
    """Read the classes from a table with lines `pixel value,class`."""
    rows = read_rows(file)
    try:
        names = {int(row.fields[0]): row.fields[1].strip() for row in rows[1:]}
    except (ValueError, IndexError) as error:
        raise FormatError(f"{file} must have lines 'pixel value,class'.") from error
    levels = sorted(names)
    colors = {} if levels == [*range(len(names))] else {"colors": [[v] * 3 for v in levels]}
    return {"class_names": [names[level] for level in levels], **colors}


def _classes_of_cvat(file: Path) -> dict[str, Any]:
    """Read the classes from lines `name:red,green,blue:parts:actions`. Colors default to VOC's."""
    lines = [line for line in lines_of(read_text(file)) if ":" in line and line[0] != "#"]
    if not lines:
        raise FormatError(f"{file} does not name any classes.", expected="name:red,green,blue::")
    names, texts, *_ = zip(*(line.split(":") for line in lines), strict=False)
    if not any(map(str.strip, texts)):
        return {"class_names": [*names], "colors": [[*voc_color(i)] for i in range(len(names))]}
    colors: list[list[int]] = []
    for name, text in zip(names, texts, strict=True):
        try:
            red, green, blue = map(int, text.split(","))
        except ValueError as error:
            raise FormatError(
                f"{file}: the class {name} must have a color {name}:red,green,blue::.",
                got=repr(text),
            ) from error
        colors.append([red, green, blue])
    return {"class_names": [*names], "colors": colors}


@dataclass
class _Values:
    """Distinct values of a label image: gray levels or indices [1, n], or colors [1, n, 3]."""

    pixels: NDArray[Any]
    palette: NDArray[np.int64] | None
    size: tuple[int, int]  # height and width of the picture
    labels: NDArray[np.uint8] | None = None

    @property
    def values(self) -> list[Any]:
        return [tuple(v) if isinstance(v, list) else v for v in self.pixels[0].tolist()]


def _open_values(mask: str) -> _Values | Bad:
    try:
        pixels, palette = open_labels(mask, "The label picture")
    except FormatError as error:
        return Bad(mask, error.what)
    size = pixels.shape[0], pixels.shape[1]
    if pixels.ndim == 2:
        return _Values(np.unique(pixels).astype(np.int64)[None], palette, size)
    codes = np.unique(pixels.astype(np.int64) @ [1 << 16, 1 << 8, 1])
    return _Values(np.stack([codes >> 16, codes >> 8 & 255, codes & 255], 1)[None], None, size)


def _training(listed: Path, data: dict[str, Any], advice: list[str]) -> dict[str, Any]:
    """Return the sections of a recipe that depend on the number of images. May change `data`."""
    from towerpack.zoo import has_pretrained

    is_listed, is_color = listed.is_file(), data["channels"] == 3  # known data sets have no list
    count = len(listed.read_bytes().splitlines()) - 1 if is_listed else 0
    few = is_listed and count < _FEW
    if not (is_listed and is_color and has_pretrained()):
        if is_listed and is_color:
            advice.append(
                f"A pretrained network is better for {count} training pictures. Install "
                "'towerpack[pretrained]', and import again with --overwrite."
            )
        recipe: dict[str, Any] = {"model": {"network": "resnet20"}}
        if few:
            recipe["optimizer"] = {"name": "adam", "learning_rate": 0.003}
        steps = {"steps_per_epoch": _STEPS} if few else {}
        return recipe | {"train": {"epochs": _EPOCHS, **steps, "best": "val/cost"}}
    data["size"] = [_PRETRAINED_PX] * 2
    trained, rate = "(?!stem|block[0-2]/).*", 0.001
    length = {"epochs": _TUNE_EPOCHS_OF_FEW if few else _TUNE_EPOCHS}
    if count < _VERY_FEW:
        trained, rate = "fc/.*", 0.01
        length = {"epochs": _EPOCHS, "steps_per_epoch": _HEAD_STEPS}
    return {
        "model": {"network": "efficientnet_lite0"},
        "optimizer": {"name": "adam", "learning_rate": rate},
        "train": {**length, "best": "val/cost"},
        "transfer": {"pretrained": "efficientnet-lite0", "skip": "fc/.*", "trainable": trained},
    }


def _data_set(folder: Path) -> dict[str, Any] | None:
    """Return the section `data` of a recipe if a folder contains MNIST or CIFAR, else None."""
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


_Rows = dict[str, list[tuple[str, int]]]  # files and labels by split


def _pictures(
    folder: Path,
    target: Path,
    split: float,
    pictures: _Pictures,
    result: Imported,
    rows_and_classes: tuple[_Rows, list[str]],
) -> tuple[Sequence[str], dict[str, Any]]:
    """Check and list the pictures. Return all classes and the section `data` of a recipe.

    `rows_and_classes` holds the rows of each split and the names of the classes.
    """
    (all_rows, classes), bad = rows_and_classes, result.bad
    checked: dict[str, list[_Picture]] = {}
    lists: dict[str, list[tuple[str, int]]] = {}
    for name, rows in all_rows.items():
        results = pictures.checked([file for file, _ in rows], f"checking {name}")
        bad += [picture for picture in results if isinstance(picture, Bad)]
        checked[name] = [picture for picture in results if isinstance(picture, _Picture)]
        is_good = [isinstance(picture, _Picture) for picture in results]
        lists[name] = list(itertools.compress(rows, is_good))
    if list(lists) == ["train"]:
        lists = _divided(checked["train"], lists["train"], split, folder, by_class=True)
        count, total = len(lists["train"]), len(checked["train"])
        if total and abs(count / total - split) > _LOPSIDED:
            result.advice.append(
                f"{100 * count / total:.0f} % of the {total} pictures are for training, instead of "
                f"{100 * split:g} %, because names of files decide, and each class is in each "
                "split. Add pictures, or divide them into folders train/, val/ and test/."
            )
    present = sorted({label for _, label in lists["train"]})
    if len(present) < 2:
        raise ConfigError(
            f"{folder} must have at least two classes with readable pictures.",
            got=f"{len(bad)} damaged pictures"
            + (f", such as {bad[0].file}: {bad[0].why}" if bad else ""),
            expected=f"{folder}/CLASS/*.jpg",
        )
    named = {name: [(file, classes[k]) for file, k in rows] for name, rows in lists.items()}
    _write_lists(target, named, ("path", "label"))
    every = [picture for pictures in checked.values() for picture in pictures]
    count = len(lists["train"])
    return classes, {
        "inputter": "csv",
        "path": str(target.resolve()),
        "class_names": [classes[k] for k in present],
        "size": _size(every),
        "channels": 1 if all(picture.channels == 1 for picture in every) else 3,
        "batch_size": min(_BATCH, count, max(_LEAST_BATCH, count // 16)),
        "augmenter": "unmirrored",  # The pictures may be letters or arrows.
    }


def _about(pictures: Sequence[_Picture], data: Mapping[str, Any]) -> Iterator[str]:
    """Return advice about pictures that are gray, or that resizing would stretch."""
    if data["channels"] == 3 and all(picture.is_gray for picture in pictures):
        yield (
            "All pictures are gray, but stored in color. To train on one channel, set "
            "data.channels to 1, and choose a network without pretrained weights."
        )
    height, width = data["size"]
    ratio = statistics.median(picture.width / picture.height for picture in pictures)
    if not 1 / _STRETCHED <= ratio * height / width <= _STRETCHED:
        longer = [round(side * max(ratio, 1 / ratio) / 32) * 32 for side in (height, width)]
        size = [height, longer[1]] if ratio > 1 else [longer[0], width]
        yield (
            f"Pictures are about {ratio:.2g} times as wide as high, and are stretched to "
            f"{height} x {width} pixels. To keep their shape, set data.size to {size}."
        )


def _numbered(pairs: Mapping[str, Sequence[tuple[str, str]]]) -> tuple[_Rows, list[str]]:
    """Return files with labels by split, and the sorted names of the classes."""
    names = {name for split in pairs.values() for _, name in split}
    classes = sorted(names, key=int if all(n.isdecimal() for n in names) else None)
    labels = {name: label for label, name in enumerate(classes)}
    rows = {s: [(file, labels[name]) for file, name in split] for s, split in pairs.items()}
    return rows, classes


def _find_pictures(folder: Path) -> tuple[_Rows, list[str]]:
    """Return files with labels by split, or only of 'train', and the names of the classes."""
    from towerpack.apps.classification._config import DataConfig
    from towerpack.apps.classification.augmenters import none
    from towerpack.apps.classification.folder_inputter import FolderInputter

    config = DataConfig(inputter="folder", path=str(folder), validation=0)
    inputter = FolderInputter(config, none)
    parts = {name: inputter.part(name) for name in inputter.splits}
    rows = {
        name: list(zip(map(str, part.pictures), part.labels.tolist(), strict=True))
        for name, part in parts.items()
    }
    return rows, list(inputter.class_names)


class _Pictures:
    """Cache of checked images. Each file is decoded once."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}

    def checked(
        self, files: Sequence[str], doing: str, check: Callable[[str], Any] | None = None
    ) -> list[Any]:
        """Return the results of checking files. Shows a progress bar titled `doing`."""
        names = list(map(os.path.abspath, files))
        new = {n: file for n, file in zip(names, files, strict=True) if n not in self._known}
        bar = Console(stderr=True)
        with ThreadPoolExecutor(os.cpu_count()) as threads:
            watched = track(
                threads.map(check or _check, new.values()),
                doing,
                total=len(new),
                console=bar,
                transient=True,
                disable=not (new and bar.is_terminal),
            )
            self._known |= zip(new, watched, strict=True)
        return [self._known[name] for name in names]

    def good(self) -> list[_Picture]:
        return [picture for picture in self._known.values() if isinstance(picture, _Picture)]

    def hash_of(self, file: str) -> bytes:
        known = self._known.get(os.path.abspath(file))
        return known.digest if isinstance(known, _Picture) else _hash(Path(file).read_bytes())


def _check(file: str) -> _Picture | Bad:
    from towerpack.dataflow.images import decode_image, image_header

    try:
        data = Path(file).read_bytes()
        pixels = decode_image(data, name="it")
        height, width, _ = pixels.shape
        is_gray = bool((pixels == pixels[:, :, :1]).all())
        return _Picture(file, height, width, image_header(data).channels, is_gray, _hash(data))
    except FormatError as error:
        return Bad(file, error.what)
    except OSError as error:
        return Bad(file, str(error.strerror))


def _hash(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()


def _divided(
    pictures: Sequence[_Picture],
    rows: list[tuple[str, Any]],
    split: float,
    folder: Path,
    *,
    by_class: bool,
) -> dict[str, list[tuple[str, Any]]]:
    """Divide rows (image, label) into three splits by a hash of the image names.

    Images with equal content share the name of the first one, so that they stay together.
    """
    first: dict[bytes, str] = {}
    names = {p.file: relative_name(first.setdefault(p.digest, p.file), folder) for p in pictures}
    lists: dict[Any, list[tuple[str, Any]]] = {"train": rows, "val": [], "test": []}
    half = (1 - split) / 2
    shares: dict[Any, float] = {"test": half, "val": half / (1 - half)}
    for name, share in shares.items():
        labels = [label for _, label in lists["train"]] if by_class else None
        chosen = held_out([names[file] for file, _ in lists["train"]], share, name, labels)
        lists["train"], lists[name] = parted(lists["train"], chosen)
    return lists


def _size(pictures: Sequence[_Picture]) -> list[int]:
    sizes = {(picture.height, picture.width) for picture in pictures}
    size = sizes.pop()
    if not sizes and max(size) <= _LARGE_PX:
        return [side * math.ceil(_LEAST_PX / min(size)) for side in size]
    middle = statistics.median(min(picture.height, picture.width) for picture in pictures)
    return [_LARGE_PX if middle >= _LARGE_PX else _SMALL_PX] * 2


def _write_lists(
    folder: Path, lists: Mapping[str, Sequence[tuple[str, str]]], header: tuple[str, str]
) -> None:
    for name in _SPLITS:
        path = folder / f"{name}.csv"
        path.unlink(missing_ok=True)
        if lists.get(name):
            with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as out:
                rows = [(os.path.relpath(file, folder), label) for file, label in lists[name]]
                csv.writer(out, lineterminator="\n").writerows([header, *rows])
