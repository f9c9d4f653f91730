"""Kinds of data that `towerpack data import` recognizes, besides folders of classes."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack._core.tables import lines_of, read_rows, read_text
from towerpack.apps._box_files import labels_of
from towerpack.apps._splits import FOLDERS, places, split_of
from towerpack.apps.text_classification._config import DataConfig
from towerpack.apps.text_classification._files import texts_by_class
from towerpack.dataflow.sources._discovery import (
    IMAGE_EXTENSIONS,
    TEXT_EXTENSIONS,
    LeftOut,
    not_an_image,
)

_LOOKED_AT: Final = 50  # files of one kind
_PICTURE_FOLDERS: Final = ("images", "image", "imgs", "img", "jpegimages", "pictures", "photos")
_MASK_FOLDERS: Final = (
    "masks", "mask", "labels", "label", "annotations", "segmentationclass", "gt",
)  # fmt: skip
_MASK_ENDINGS: Final = re.compile("[-_. ](masks?|labels?|seg|gt|l)$", re.I)
_TEXT_COLUMNS: Final = ("text", "sentence", "review", "message", "comment", "content", "body")
_LABEL_COLUMNS: Final = ("label", "class", "category", "sentiment", "target", "intent")
_VOID: Final = 255


def recognize(
    root: Path, files: Sequence[str], left_out: list[LeftOut]
) -> tuple[str, dict[str, Any]] | None:
    """Return the task and the section `data` of a recipe without `path`, or None.

    Args:
        root: The folder of the data.
        files: All files below it, relative to it.
        left_out: Receives texts that are not used.
    """
    for task, kind in (
        ("detection", _coco),
        ("detection", _yolo),
        ("detection", _voc),
        ("text_classification", _texts),
    ):
        data = kind(root, files)
        if data is not None:
            if data["inputter"] == "folder":
                for folders in places(DataConfig(path=str(root)), FOLDERS).values():
                    for folder in folders:
                        texts_by_class(Path(folder), left_out)
            return task, data
    return None


def label_pictures(files: Sequence[str]) -> dict[str, list[tuple[str, str]]]:
    """Return pairs of a picture and its label picture for each split, by folders and names."""
    pictures: dict[tuple[str, ...], str] = {}
    masks: dict[tuple[str, ...], str] = {}
    for name in _pictures(files):
        *parts, last = Path(name).parts
        for number, part in enumerate(parts):
            rest = *parts[:number], *parts[number + 1 :]
            if part.lower() in _PICTURE_FOLDERS:
                pictures[*rest, Path(last).stem] = name
            elif part.lower() in _MASK_FOLDERS:
                masks[*rest, _MASK_ENDINGS.sub("", Path(last).stem)] = name
    pairs: dict[str, list[tuple[str, str]]] = {}
    for key in pictures.keys() & masks.keys():
        pairs.setdefault(_split_in(key[:-1]) or "train", []).append((pictures[key], masks[key]))
    return {split: sorted(several) for split, several in pairs.items()}


def classes_of_labels(files: Iterable[str | Path]) -> dict[str, Any]:
    """Return the settings for the classes that label pictures contain."""
    from PIL import Image

    values: set[tuple[int, ...]] = set()
    for file in files:
        with Image.open(file) as opened:
            indexed = opened.mode in ("1", "L", "P") or opened.mode.startswith("I")
            pixels = np.asarray(opened if indexed else opened.convert("RGB")).astype(np.int64)
        flat = pixels.reshape(-1, 1 if indexed else 3)
        values |= set(map(tuple, np.unique(flat, axis=0).tolist()))
        if len(values) >= _VOID:
            raise ConfigError(
                f"The label pictures up to {file} have {len(values)} different values.",
                expected="one value or color for each class",
                fix="save label pictures as PNG: JPEG changes their values",
            )
    ordered = sorted(values)
    if all(len(value) == 1 for value in ordered):
        labels = [value for (value,) in ordered if value != _VOID]
        if len(labels) > 1 and labels[-1] < 2 * len(labels) + 8:
            void = {"void": [_VOID]} if (_VOID,) in values else {}
            return {"class_names": [f"class {i}" for i in range(labels[-1] + 1)], **void}
    return {
        "class_names": [f"class {i}" for i in range(len(ordered))],
        "colours": [list(value * 3)[:3] for value in ordered],
    }


def _coco(root: Path, files: Sequence[str]) -> dict[str, Any] | None:
    candidates = [name for name in files if name.lower().endswith(".json")][:_LOOKED_AT]
    contents = {name: found for name in candidates if (found := _instances(root / name))}
    names = [name for name in contents if Path(name).name.startswith("instances")] or [*contents]
    if not names:
        return None
    data = {"inputter": "coco", **_by_split(names)}
    picture = str(contents[names[0]]["images"][0]["file_name"])
    folders = [name[: -len(picture)].rstrip("/") for name in files if f"/{name}".endswith(picture)]
    stem = Path(names[0]).stem.partition("_")[2]
    usual = {"images", "", stem, Path(names[0]).parent.as_posix()}
    if folders and not usual & set(folders):
        data["images"] = folders[0]
    return data


def _instances(file: Path) -> Any:
    try:
        content = json.loads(file.read_bytes())
        lists = [content[key] for key in ("images", "annotations", "categories")]
        return content if all(lists) and content["images"][0]["file_name"] else None
    except (ValueError, KeyError, TypeError, IndexError):
        return None  # Another JSON file.


def _yolo(root: Path, files: Sequence[str]) -> dict[str, Any] | None:
    pictures = _pictures(files)
    some = pictures[:: len(pictures) // _LOOKED_AT + 1]
    labels = [found for name in some if (found := labels_of(root / name))]
    line = re.compile(rb"\s*\d+(\s+[-+.\deE]+){4,}\s*[\r\n]*")
    if not any(line.match(_start(file)) for file in labels):
        return None
    data: dict[str, Any] = {"inputter": "yolo"}
    folders = _folders(pictures)
    usual = [re.sub("(^|/)images(/|$)", r"\1\2", folder.lower()).strip("/") for folder in folders]
    if not all(split_of(name) for name in usual):
        data |= _by_split(folders)
    names = [name for name in files if Path(name).name in ("obj.names", "classes.txt")]
    if names and not {"data.yaml", "data.yml", "classes.txt"} & set(files):
        lines = lines_of(read_text(root / names[0]))
        data["class_names"] = [line.strip() for line in lines if line.strip()]
    return data


def _voc(root: Path, files: Sequence[str]) -> dict[str, Any] | None:
    annotations = [name for name in files if name.lower().endswith(".xml")]
    if not any(b"<annotation" in _start(root / name) for name in annotations[:_LOOKED_AT]):
        return None
    lists = [name for name in files if name.lower().startswith("imagesets/main/")]
    if any(split_of(Path(name).stem) for name in lists):
        return {"inputter": "voc"}
    default = [name for name in lists if Path(name).stem == "default"]
    folders, pictures = _folders(annotations), _folders(_pictures(files))
    data = {"inputter": "voc", **_by_split(default or folders)}
    if "JPEGImages" not in pictures and len(pictures) == 1 and pictures != folders:
        data["images"] = pictures[0]
    return data


def _texts(root: Path, files: Sequence[str]) -> dict[str, Any] | None:
    some = files[:: len(files) // _LOOKED_AT + 1]
    if _pictures(files) or not all(not_an_image(str(root / name)) for name in some):
        return None
    tables = [name for name in files if name.lower().endswith((".csv", ".tsv"))]
    columns = _columns(root / tables[0]) if tables else None
    if columns:
        return {"inputter": "table", **_by_split(tables), **columns}
    texts = [name for name in files if name.lower().endswith(TEXT_EXTENSIONS)]
    if len(texts) <= len(files) // 2:
        return None
    with_labels = [name for name in texts if _start(root / name).startswith(b"__label__")]
    if with_labels:
        return {"inputter": "lines", **_by_split(with_labels)}
    return {"inputter": "folder"} if any("/" in name for name in texts) else None


def _columns(table: Path) -> dict[str, Any] | None:
    """Return the columns of texts and labels: by name, or by number if only one has spaces."""
    rows = read_rows(table)
    header = [field.strip() for field in rows[0].fields] if rows else []
    named = [
        next((field for field in header if field.lower() in known), None)
        for known in (_TEXT_COLUMNS, _LABEL_COLUMNS)
    ]
    if all(named):
        return dict(zip(("text", "label"), named, strict=True))
    spaces = [sum(" " in row.fields[i] for row in rows if len(row.fields) == 2) for i in (0, 1)]
    if len(header) != 2 or max(spaces) <= len(rows) // 2:
        return None
    text = spaces.index(max(spaces))
    return {"text": text, "label": 1 - text}


def _start(file: Path) -> bytes:
    with open(file, "rb") as opened:
        return opened.read(1024)


def _pictures(files: Iterable[str]) -> list[str]:
    return [name for name in files if name.lower().endswith(IMAGE_EXTENSIONS)]


def _folders(files: Iterable[str]) -> list[str]:
    """Return the folders of files, without those inside of another one."""
    folders = sorted({os.path.dirname(name) or "." for name in files})
    return [one for one in folders if not any(one.startswith(f"{other}/") for other in folders)]


def _split_in(parts: Iterable[str]) -> str | None:
    words = re.findall("[a-z]+", " ".join(parts).lower())
    return next((split for word in reversed(words) if (split := split_of(word))), None)


def _by_split(names: Iterable[str]) -> dict[str, list[str]]:
    """Return files or folders by the split in their names; all are training data without such."""
    parts: dict[str, list[str]] = {}
    for name in names:
        parts.setdefault(_split_in([name]) or "", []).append(name)
    others = parts.pop("", [])
    return {**({} if "train" in parts else {"train": others}), **parts}
