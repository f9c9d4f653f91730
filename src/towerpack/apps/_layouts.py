"""Recognize data of detection, segmentation and texts by the names and contents of files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from towerpack._core.errors import FormatError
from towerpack._core.tables import lines_of, read_rows, read_text
from towerpack.apps._box_files import label_file
from towerpack.apps._splits import SPLIT_NAMES, has_splits, matching
from towerpack.dataflow.sources._discovery import NO_TEXT, Discovery, is_text

_SPLIT: Final = re.compile(r"(?<![a-z])(train|val|valid|validation|test)(?![a-z])")
_IMAGES: Final = {"images", "image", "imgs", "img", "jpegimages", "pictures", "photos"}
_MASKS: Final = {"masks", "mask", "labels", "label", "annotations", "annot", "gt"} | {
    "segmentationclass", "segmentation", "groundtruth", "ground_truth", "labelimages"
}  # fmt: skip
# CamVid's `trainannot` beside `train`, and others alike.
_SPLIT_MASKS: Final = re.compile(r"(train|val|valid|validation|test)[_-]?(annot|labels?|masks?)")
_OF_MASK: Final = re.compile(r"[_-](masks?|labels?|seg|gt|l)$")
_TEXT_COLUMNS: Final = {"text", "sentence", "review", "message", "content", "description", "body"}
_LABEL_COLUMNS: Final = {"label", "class", "category", "target", "sentiment", "tag"}
_START_BYTES: Final = 4096


@dataclass
class Layout:
    """Layout of a folder's data, as a recipe states it.

    Attributes:
        task: Name of the application.
        data: Section `data` of the recipe, without `path`.
        pairs: Pictures with their label pictures, of each split.
    """

    task: str
    data: dict[str, Any]
    pairs: dict[str, list[tuple[str, str]]] = field(default_factory=dict)


def recognized(folder: Path) -> Layout | None:
    """Return how the data of a folder are laid out; None if they may be folders of classes."""
    layouts: list[Callable[[Path], Layout | None]] = [_coco, _yolo, _voc, _label_pictures, _texts]
    return next(filter(None, (find(folder) for find in layouts)), None)


def _by_split(names: Iterable[str]) -> dict[str, list[str]]:
    """Return the names of files by the split that they name; all in 'train' if none does."""
    several = [(name, _SPLIT.search(name.lower())) for name in names]
    found = {
        split: [name for name, match in several if match and match[0] in usual]
        for split, usual in SPLIT_NAMES.items()
    }
    return {split: some for split, some in found.items() if some} or {
        "train": [name for name, _ in several]
    }


def _below(folder: Path, *patterns: str) -> list[str]:
    files = (file for one in patterns for file in Discovery().matching(folder, one))
    return [Path(file).relative_to(folder).as_posix() for file in files]


def _coco(folder: Path) -> Layout | None:
    names = [n for n in _below(folder, "*.json", "*/*.json") if _is_coco(folder / n)]
    # MS COCO has captions and key points of the same pictures beside them.
    names = [name for name in names if "instances" in name.lower()] or names
    return Layout("detection", {"inputter": "coco", **_by_split(names)}) if names else None


def _is_coco(file: Path) -> bool:
    try:
        content: Any = json.loads(file.read_bytes())
    except (ValueError, RecursionError):
        return False  # Another program's file; COCO's reader would refuse it.
    return isinstance(content, dict) and {"images", "annotations", "categories"} <= content.keys()


def _yolo(folder: Path) -> Layout | None:
    by_split = {
        split: [p for n in names for form in ("{}/images", "images/{}") for p in
                matching(folder, form.format(n))]
        for split, names in SPLIT_NAMES.items()
    }  # fmt: skip
    usual = {split: several for split, several in by_split.items() if several}
    # CVAT's `obj_train_data`; pictures that are not divided; labels beside pictures.
    darknet = _by_split(path.name for path in sorted(folder.glob("obj_*_data")))
    others = {"train": matching(folder, "images") or ["."]}
    folders = usual or (darknet if any(darknet.values()) else others)
    names = [n for n in ("data.yaml", "data.yml", "classes.txt") if (folder / n).is_file()]
    data: dict[str, Any] = {"inputter": "yolo", **folders}
    if (folder / "obj.names").is_file():
        lines = lines_of(read_text(folder / "obj.names"))
        data["class_names"] = [line.strip() for line in lines if line.strip()]
    elif not names:
        return None
    pictures = (Path(p) for ones in folders.values() for n in ones for p in _pictures(folder / n))
    return Layout("detection", data) if any(map(label_file, pictures)) else None


def _pictures(folder: Path) -> list[str]:
    return list(Discovery().files(folder))


def _voc(folder: Path) -> Layout | None:
    data: dict[str, Any] = {"inputter": "voc"}
    annotations = matching(folder, "Annotations")
    if annotations:
        lists = {
            split: [p for n in names for p in matching(folder, f"ImageSets/Main/{n}.txt")]
            for split, names in SPLIT_NAMES.items()
        }
        data |= {s: p for s, p in lists.items() if p} if lists["train"] else {"train": annotations}
        pattern = f"{annotations[0]}/**/*.xml"
        others = [name for name in sorted(os.listdir(folder)) if name.lower() in _IMAGES]
        if others and "JPEGImages" not in others:
            data["images"] = others[0]
    else:
        data |= _by_split(sorted(p.name for p in folder.iterdir())) if has_splits(folder) else {
            "train": ["."]
        }  # fmt: skip
        pattern = "**/*.xml"
    first = next(iter(_below(folder, pattern)), None)
    if first is None:
        return None
    with open(folder / first, "rb") as file:
        is_voc = re.search(rb"<annotation[\s>]", file.read(_START_BYTES))
    return Layout("detection", data) if is_voc else None


def _label_pictures(folder: Path) -> Layout | None:
    images: dict[tuple[str, ...], str] = {}
    masks: dict[tuple[str, ...], str] = {}
    for file in _pictures(folder):
        *parts, name = Path(file).relative_to(folder).parts
        parts = [part.lower() for part in parts]
        split_mask = any(map(_SPLIT_MASKS.fullmatch, parts))
        is_mask = split_mask or not _MASKS.isdisjoint(parts)
        kept = [_SPLIT_MASKS.sub(r"\1", p) for p in parts if p not in _IMAGES | _MASKS]
        stem = Path(name).stem
        stem = _OF_MASK.sub("", stem.lower()) if is_mask else stem.lower()
        (masks if is_mask else images)[(*kept, stem)] = file
    keys = sorted(images.keys() & masks.keys())
    if 2 * len(keys) < max(1, len(masks)):
        return None
    by_split = _by_split("/".join(key) for key in keys)
    pairs = {
        split: [(images[key], masks[key]) for key in (tuple(name.split("/")) for name in names)]
        for split, names in by_split.items()
    }
    return Layout("segmentation", {"inputter": "csv"}, pairs)


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
    roots = [p for p in sorted(folder.iterdir()) if p.is_dir()] if has_splits(folder) else [folder]
    discovery = Discovery(is_text, NO_TEXT)
    texts = [f for r in roots for f in discovery.by_class(r, discovery.folders(r))]
    if not texts:
        return None
    splits = {} if has_splits(folder) else {"train": ["."]}
    return Layout("text_classification", {"inputter": "folder", **splits})


def _starts_with(file: Path, start: bytes) -> bool:
    with open(file, "rb") as opened:
        return opened.read(_START_BYTES).removeprefix(b"\xef\xbb\xbf").startswith(start)


def _columns(file: Path) -> tuple[str, str] | None:
    """Return the names of a table's columns of texts and labels, if its header has such names."""
    try:
        header = [field.strip() for field in read_rows(file)[0].fields]
    except (FormatError, IndexError):
        return None  # Not a table of texts; a recipe that names it tells why.
    text = next((name for name in header if name.lower() in _TEXT_COLUMNS), None)
    label = next((name for name in header if name.lower() in _LABEL_COLUMNS), None)
    return None if text is None or label is None else (text, label)
