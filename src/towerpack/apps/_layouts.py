"""Recognition of data for detection, segmentation and text classification in a folder."""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.tables import lines_of, read_rows, read_text
from towerpack.apps._box_files import folders_of_yolo, label_file, pictures_of_yolo
from towerpack.apps._splits import (
    SPLIT_NAMES,
    are_classes,
    has_splits,
    matching,
    split_of,
    usual_places,
)
from towerpack.dataflow.sources.discovery import NO_TEXT, Discovery, is_text

_NAMES: Final = "|".join(name for names in SPLIT_NAMES.values() for name in names)
_SPLIT: Final = re.compile(rf"(?<![a-z])({_NAMES})(?![a-z])")
_IMAGES: Final = {
    "images", "image", "imgs", "img", "jpegimages", "pictures", "photos", "leftimg8bit"
}  # fmt: skip
_MASKS: Final = {
    "masks", "mask", "labels", "label", "labelimages", "annotations", "annot", "gt", "gtfine",
    "groundtruth", "ground_truth", "segmentation", "segmentationclass",
}  # fmt: skip
_OBJECTS: Final = {"segmentationobject"}  # label images of instances, not of classes
# For example `trainannot` beside `train` (CamVid), or `train_images` beside `train_masks`.
_SPLIT_KIND: Final = re.compile(rf"({_NAMES})[_-]?(annot|labels?|masks?|images?|imgs?)")
_MASK_SUFFIX: Final = re.compile(
    r"[_-](masks?|labels?|seg|segmentation|gt|l|gtfine_label(?:train)?ids)$"
)
_IMAGE_SUFFIX: Final = re.compile(r"[_-](images?|img|sat|leftimg8bit)$")
_NO_CLASSES: Final = re.compile(r"_gtfine_(color|instanceids)$")
_TEXT_COLUMNS: Final = {"text", "sentence", "review", "message", "content", "description", "body"}
_LABEL_COLUMNS: Final = {"label", "class", "category", "target", "sentiment", "tag"}
_START_BYTES: Final = 4096


@dataclass
class Layout:
    """Task, section `data` of a recipe, and pairs of picture and label (picture) by split."""

    task: str
    data: dict[str, Any]
    pairs: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    has_masks: bool = False  # whether each object has a mask


def recognized(folder: Path) -> Layout | None:
    """Return the layout of the data in a folder; None if folders may be classes."""
    layouts: list[Callable[[Path], Layout | None]] = [
        _coco, _yolo, _voc, _label_pictures, _listed_pictures, _texts
    ]  # fmt: skip
    return next(filter(None, (find(folder) for find in layouts)), None)


def _by_split(names: Iterable[str], *, of_pictures: bool = False) -> dict[str, list[str]]:
    """Group file names by split. If no name contains a split, all belong to 'train'.

    The whole name of a folder may be a split. Words in file names count only if every other file
    name contains a split too.
    """
    by_folder = {n: next(filter(None, map(split_of, Path(n).parts[:-1])), None) for n in names}
    rest = [name for name, split in by_folder.items() if split is None]
    words = {name: _SPLIT.search(Path(name).stem.lower()) for name in rest}
    by_stem: dict[str, str] = {
        name: split
        for name, match in words.items()
        if match is not None and (split := split_of(match[0]))
    }
    if len(by_stem) < len(rest) or (of_pictures and rest and "train" not in by_stem.values()):
        in_folders = len(rest) < len(by_folder)
        splits = set(by_folder.values()) | set(() if of_pictures else by_stem.values())
        if splits & {"val", "test"} and (in_folders or "train" in splits):
            other = next(name for name in rest if of_pictures or name not in by_stem)
            raise ConfigError(
                f"All files must belong to a split if some do, but {other} does not.",
                got=", ".join([*by_folder][:5]),
                fix=f"move {other} to a folder 'train', or set data.train to the training files",
            )
        by_stem = dict.fromkeys(rest, "train")
    by_split: dict[str, list[str]] = {split: [] for split in SPLIT_NAMES}
    for name, split in by_folder.items():
        by_split[split or by_stem[name]].append(name)
    return {split: files for split, files in by_split.items() if files}


def _below(folder: Path, *patterns: str) -> list[str]:
    files = (file for pattern in patterns for file in Discovery().matching(folder, pattern))
    return [Path(file).relative_to(folder).as_posix() for file in files]


def _coco(folder: Path) -> Layout | None:
    masks = {n: _masks_in_coco(folder / n) for n in _below(folder, "*.json", "*/*.json")}
    names = [name for name, has_masks in masks.items() if has_masks is not None]
    # MS COCO also has files with captions and keypoints of the same pictures.
    names = [name for name in names if "instances" in name.lower()] or names
    if not names:
        return None
    has_masks = all(masks[name] for name in names)
    data = {"inputter": "coco", **_by_split(names)}
    return Layout("detection", data, has_masks=has_masks)


def _masks_in_coco(file: Path) -> bool | None:
    """Return whether each annotation in a file of COCO has a mask; None for other files."""
    try:
        content: Any = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return None  # not a file of COCO, whose reader would raise an error
    if not isinstance(content, dict) or not {"images", "annotations", "categories"} <= {*content}:
        return None
    rows = content["annotations"]
    return isinstance(rows, list) and all(
        isinstance(r, dict) and r.get("segmentation") for r in rows
    )


def _yolo(folder: Path) -> Layout | None:
    data: dict[str, Any] = {"inputter": "yolo"}
    if (folder / "obj.names").is_file():
        lines = lines_of(read_text(folder / "obj.names"))
        data["class_names"] = [line.strip() for line in lines if line.strip()]
    elif not any((folder / n).is_file() for n in ("data.yaml", "data.yml", "classes.txt")):
        return None
    places = folders_of_yolo(folder)
    if "train" not in places:
        # CVAT's `obj_train_data`, images without splits, or labels next to images
        darknet = _by_split(path.name for path in sorted(folder.glob("obj_*_data")))
        places |= darknet or {"train": matching(folder, "images") or ["."]}
    below = (folder / name for names in places.values() for name in names)
    pictures = (
        Path(p)
        for path in below
        for p in (_pictures(path) if path.is_dir() else pictures_of_yolo(path, folder))
    )
    return Layout("detection", data | places) if any(map(label_file, pictures)) else None


def _pictures(folder: Path) -> list[str]:
    return list(Discovery().files(folder))


def _voc(folder: Path) -> Layout | None:
    data: dict[str, Any] = {"inputter": "voc"}
    annotations = matching(folder, "Annotations")
    if annotations:
        lists = {s: usual_places(folder, s, "ImageSets/Main/{}.txt") for s in SPLIT_NAMES}
        data |= {s: p for s, p in lists.items() if p} if lists["train"] else {"train": annotations}
        pattern = f"{glob.escape(annotations[0])}/**/*.xml"
        others = [name for name in sorted(os.listdir(folder)) if name.lower() in _IMAGES]
        if others and "JPEGImages" not in others:
            data["images"] = others[0]
    else:
        parts = {split: matching(folder, "{}", split) for split in SPLIT_NAMES}
        is_divided = has_splits(folder)
        data |= {s: p for s, p in parts.items() if p} if is_divided else {"train": ["."]}
        pattern = "**/*.xml"
    first = next(iter(_below(folder, pattern)), None)
    if first is None:
        return None
    with open(folder / first, "rb") as file:
        is_voc = re.search(rb"<annotation[\s>]", file.read(_START_BYTES))
    return Layout("detection", data) if is_voc else None


_Key = tuple[str, ...]  # folders and stem of an image, without words that mark label images


def _label_pictures(folder: Path) -> Layout | None:
    files = _pictures(folder)
    images: dict[_Key, str] = {}
    masks: dict[_Key, str] = {}
    beside: dict[_Key, str] = {}
    in_kinds = False  # whether folder names distinguish images from label images
    for file in files:
        *parts, name = Path(file).relative_to(folder).parts
        parts, stem = [part.lower() for part in parts], Path(name).stem.lower()
        if _NO_CLASSES.search(stem) or not _OBJECTS.isdisjoint(parts):
            continue
        kinds = {match[2] for match in map(_SPLIT_KIND.fullmatch, parts) if match}
        in_kinds |= not _IMAGES.isdisjoint({*parts, *kinds})
        is_mask = not _MASKS.isdisjoint({*parts, *kinds})
        folders = [_SPLIT_KIND.sub(r"\1", p) for p in parts if p not in _IMAGES | _MASKS]
        key = (*folders, stem)
        if is_mask and stem.endswith("_gtfine_labelids"):
            beside.setdefault(key, file)  # Cityscapes: prefer `labelTrainIds`.
        else:
            (masks if is_mask else images)[key] = file
    pairs = _paired(images, masks)
    if not pairs and not masks:  # label images next to their images, with a suffix
        pairs = _paired(images, {k: f for k, f in images.items() if _MASK_SUFFIX.search(k[-1])})
        masks = dict.fromkeys(pairs, "")
    known = {image for image, _ in pairs.values()}
    pairs |= {k: pair for k, pair in _paired(images, beside).items() if pair[0] not in known}
    if not pairs or 2 * len(pairs) < max(1, len(masks)):
        usual = any(matching(folder, name) for name in ("SegmentationClass", "gtFine"))
        if usual or (masks and in_kinds):
            raise ConfigError(
                f"Label pictures in {folder} must have the same names as their pictures.",
                got=f"{len(masks)} label pictures, {len(pairs)} of which have a picture",
                expected="one label picture for each picture, such as images/1.jpg, masks/1.png",
            )
        return None
    by_split = _listed_by_split(folder, pairs)
    if by_split is None:
        names = {"/".join(key): key for key in sorted(pairs)}
        divided = _by_split(names, of_pictures=True)
        by_split = {split: [names[n] for n in several] for split, several in divided.items()}
    by_pairs = {split: [pairs[key] for key in keys] for split, keys in by_split.items()}
    return Layout("segmentation", {"inputter": "csv"}, by_pairs)


def _listed_by_split(folder: Path, keys: Iterable[_Key]) -> dict[str, list[_Key]] | None:
    """Return the keys in VOC's lists `ImageSets/Segmentation` by split; None without lists."""
    by_split: dict[str, list[_Key]] = {}
    for split in SPLIT_NAMES:
        lists = usual_places(folder, split, "ImageSets/Segmentation/{}.txt")
        if not lists and split == "train":
            return None
        lines = (line for path in lists for line in lines_of(read_text(folder / path)))
        stems = {line.strip().lower() for line in lines}
        if listed := [key for key in sorted(keys) if key[-1] in stems]:
            by_split[split] = listed
    return by_split


def _paired(images: Mapping[_Key, str], masks: Mapping[_Key, str]) -> dict[_Key, tuple[str, str]]:
    """Pair images with label images whose names are equal or differ only in a suffix."""
    pairs: dict[_Key, tuple[str, str]] = {}
    short = {(*key[:-1], _IMAGE_SUFFIX.sub("", key[-1])): key for key in images}
    equal = {key for key, mask in masks.items() if images.get(key, mask) != mask}
    for key, mask in masks.items():
        stem = (*key[:-1], _MASK_SUFFIX.sub("", key[-1]))
        image = key if key in equal else stem if stem in images else short.get(stem)
        if image is None or images[image] == mask or (image in equal and key not in equal):
            continue
        if image in pairs:
            raise ConfigError(
                f"{images[image]} must have only one label picture.",
                got=f"{pairs[image][1]} and {mask}",
                fix="remove one of them from the folder, or list the pairs in files for data.train",
            )
        pairs[image] = images[image], mask
    return pairs


def _listed_pictures(folder: Path) -> Layout | None:
    """Recognize tables with a column of picture names and a column of classes."""
    # The lists of an earlier import, and the examples of a competition's answers, are no labels.
    written = {f"{split}.csv" for split in SPLIT_NAMES} if (folder / "recipe.yaml").exists() else ()
    tables = (n for n in _below(folder, "*.csv", "*.tsv") if n not in written)
    tables = [name for name in tables if "submission" not in name.lower()]
    # A table may name pictures of its own split by their names in a folder.
    below = _names_below(folder, list(map(Path, _pictures(folder) if tables else ())))
    inner = sorted(below.keys() - {folder}, key=lambda path: split_of(path.name) == "test")
    pairs_of: dict[str, list[tuple[str, str]]] = {}
    for name in tables:
        header, *rows = _fields_in(folder / name) or [[]]
        listed = (_pairs_in(header, rows, below[root]) for root in (folder, *inner))
        pairs = next(filter(None, listed), [])
        if pairs and None not in pairs[0]:
            pairs_of[name] = [(file, str(label)) for file, label in pairs]
        elif pairs and len(inner) < 2:  # Otherwise folders may be classes.
            raise ConfigError(
                f"{folder / name} lists the images, but its column of classes is unclear.",
                got=", ".join(header),
                fix="name the column of classes 'label', and run `towerpack data import` again",
            )
    splits = _by_split(pairs_of)
    by_split = {s: [p for name in names for p in pairs_of[name]] for s, names in splits.items()}
    return Layout("classification", {}, by_split) if pairs_of else None


def _names_below(folder: Path, pictures: Sequence[Path]) -> dict[Path, dict[str, Path]]:
    """Return the images below a folder and below each folder with images, by their names there.

    Names are relative paths, with and without extension.
    """
    below: dict[Path, dict[str, Path]] = {
        root: {} for root in (folder, *(p.parent for p in pictures))
    }
    for picture in pictures:
        for root in filter(below.__contains__, picture.parents):
            name = picture.relative_to(root)
            below[root] |= {name.as_posix(): picture, name.with_suffix("").as_posix(): picture}
    return below


def _fields_in(table: Path) -> list[list[str]]:
    """Return the fields of each row of a table, or [] if it cannot be read."""
    try:
        return [[field.strip() for field in row.fields] for row in read_rows(table)]
    except FormatError:
        return []


def _pairs_in(
    header: Sequence[str], rows: Sequence[Sequence[str]], files: Mapping[str, Path]
) -> list[tuple[str, str | None]]:
    """Return pairs of an image and a class from a table that lists most images of a folder.

    `files` are the images by name. Return [] for other tables. A class is None if it is unclear
    which column contains the classes.
    """
    labels = [i for i, name in enumerate(header) if name.lower() in _LABEL_COLUMNS]
    for column in range(len(header)):
        label = next((i for i in labels if i != column), 1 - column if len(header) == 2 else None)
        if not rows or not all(len(row) == len(header) and row[column] in files for row in rows):
            continue
        listed = {files[row[column]] for row in rows}
        folders = {path.parent for path in listed}
        if 2 * len(listed) >= sum(path.parent in folders for path in {*files.values()}):
            classes = [None if label is None else row[label] for row in rows]
            names = [str(files[row[column]]) for row in rows]
            return list(zip(names, classes, strict=True))
    return []


def _texts(folder: Path) -> Layout | None:
    if next(Discovery().files(folder), None) is not None:
        return None
    tables = {name: _columns(folder / name) for name in _below(folder, "*.csv", "*.tsv")}
    columns = next(filter(None, tables.values()), None)
    if columns is not None:
        text, label = columns
        same = _by_split(name for name, others in tables.items() if others == columns)
        data = {"inputter": "table", "text": text, "label": label, **same}
        return Layout("text_classification", data)
    names = [n for n in _below(folder, "*.txt") if _starts_with(folder / n, b"__label__")]
    if names:
        return Layout("text_classification", {"inputter": "lines", **_by_split(names)})
    has_classes = are_classes(folder)
    roots = [folder] if has_classes else [p for p in sorted(folder.iterdir()) if p.is_dir()]
    discovery = Discovery(is_text, NO_TEXT)
    texts = [f for r in roots for f in discovery.by_class(r, discovery.folders(r))]
    if not texts:
        return None
    splits = {"train": ["."]} if has_classes else {}
    return Layout("text_classification", {"inputter": "folder", **splits})


def _starts_with(file: Path, start: bytes) -> bool:
    with open(file, "rb") as opened:
        return opened.read(_START_BYTES).removeprefix(b"\xef\xbb\xbf").startswith(start)


def _columns(file: Path) -> tuple[str, str] | None:
    """Return the names of the text and label columns of a table, or None if they are not usual."""
    try:
        header = [field.strip() for field in read_rows(file)[0].fields]
    except (FormatError, IndexError):
        return None  # not a table of texts; a recipe that names the file reports the reason
    text = next((name for name in header if name.lower() in _TEXT_COLUMNS), None)
    label = next((name for name in header if name.lower() in _LABEL_COLUMNS), None)
    return None if text is None or label is None else (text, label)
