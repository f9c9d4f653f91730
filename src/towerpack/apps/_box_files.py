"""Readers of box annotations in the formats of COCO, Pascal VOC and YOLO."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple
from xml.parsers import expat

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import ValidationError

from towerpack._core.errors import ConfigError, FormatError, TowerpackError
from towerpack._core.logs import get_logger
from towerpack._core.tables import lines_of, read_text
from towerpack._core.yaml_text import parse_yaml
from towerpack.apps._coco import (
    BadAnnotations,
    Box,
    CocoPicture,
    Instance,
    Record,
    has_mask,
    read_instances,
    text_of,
)
from towerpack.apps._config import AnnotatedData
from towerpack.apps._label_pictures import open_labels
from towerpack.apps._pictures import header_of, pictures_in, size_error
from towerpack.apps._splits import SPLIT_NAMES, path_below, places, root_of, split_of, usual_places
from towerpack.dataflow.images import clip_boxes
from towerpack.dataflow.sources.discovery import Discovery

_LOG = get_logger(__name__)
_IMAGES: Final = re.compile(r"(?<![^/\\])images(?=[/\\])", re.IGNORECASE)
_MOST_XML_BYTES: Final = 16 << 20
_MOST_XML_LEVELS: Final = 32  # The deepest elements of VOC are on level 5.
_LONGEST_PATH: Final = 4096
_YOLO_FOLDERS: Final = "{}/images", "images/{}"

Size = tuple[float, float]
Corners = tuple[float, float, float, float]  # x1, y1, x2, y2 as fractions of the image size


@dataclass(frozen=True)
class Annotated:
    """Image file and the boxes in the image.

    Attributes:
        picture: Path of the file.
        boxes: float32 [k, 4]: x1, y1, x2, y2 as fractions of the image size.
        class_ids: int32 [k].
        crowd: bool [k], true for groups of objects (COCO) and `difficult` boxes (VOC), or None.
        areas: float32 [k]: areas of the objects as fractions of the image; None for areas of boxes.
        size: Width and height that the annotations state, or zeros.
        stored: Whether boxes refer to the stored pixels, before the EXIF orientation is applied.
        masks: k masks for `decode_mask`, or None.
    """

    picture: str
    boxes: NDArray[np.float32]
    class_ids: NDArray[np.int32]
    crowd: NDArray[np.bool_] | None = None
    areas: NDArray[np.float32] | None = None
    size: Size = (0, 0)
    stored: bool = False
    masks: Sequence[Any] | None = None

    def on(self, height: int, width: int) -> NDArray[np.float32]:
        """Return the boxes relative to the decoded image, in its EXIF orientation.

        Args:
            height: Height of the decoded image.
            width: Width of the decoded image.

        Raises:
            FormatError: The annotations state a different image size.
        """
        orientation = header_of(self.picture).orientation if self.stored else 1
        upright, turned = (width, height), (height, width)
        expected = turned if orientation > 4 else upright
        if all(self.size) and self.size != expected:
            fits_other = self.size == turned and header_of(self.picture).orientation > 4
            other = "upright" if self.stored else "stored"
            what = f"The annotations of {self.picture}"
            raise size_error(what, self.size, expected, other if fits_other else None)
        x1, y1, x2, y2 = self.boxes.T
        if orientation > 4:
            x1, y1, x2, y2 = y1, x1, y2, x2
        if orientation in (2, 3, 6, 7):
            x1, x2 = 1 - x2, 1 - x1
        if orientation in (3, 4, 7, 8):
            y1, y2 = 1 - y2, 1 - y1
        return np.stack([x1, y1, x2, y2], 1)


Found = tuple[Sequence[str], Mapping[str, Sequence[Annotated]]]  # classes, pictures by split


class _Row(NamedTuple):
    """Box of an annotation file. `where` is its location for errors, `area` a fraction or None."""

    where: str
    name: int | str
    corners: Corners
    crowd: bool = False
    area: float | None = None
    mask: Any = None


@dataclass
class _Reader:
    stored: bool
    bad: BadAnnotations
    masks: bool = False
    turned: list[str] = field(default_factory=list)

    @classmethod
    def from_config(cls, config: AnnotatedData, *, masks: bool = False) -> _Reader:
        return cls(config.boxes_on == "stored", BadAnnotations(config.bad_boxes), masks)

    def size_of(self, picture: Path, stated: Size, corners: Sequence[Corners]) -> Size:
        """Return the width and height of an image: the stated size, else the size in the file."""
        if min(stated) >= 1:
            return stated
        header = header_of(picture)
        height, width = header.upright_size
        upright, other = (width, height), (header.width, header.height)
        size, other = (other, upright) if self.stored else (upright, other)
        x, y = (max((box[i] for box in corners), default=0) - 1 for i in (2, 3))
        if size != other and (x > size[0] or y > size[1]) and x <= other[0] and y <= other[1]:
            self.turned.append(str(picture))
        return size

    def annotated(
        self, picture: Path, rows: Sequence[_Row], numbers: Mapping[Any, int], size: Size = (0, 0)
    ) -> Annotated:
        """Return an image with its valid boxes. `numbers` maps each class to its index."""
        corners = np.array([row.corners for row in rows], np.float64).reshape(-1, 4)
        boxes, good = clip_boxes(corners, 1, 1)
        valid: list[int] = []
        for i, row in enumerate(rows):
            if row.name not in numbers:
                known = ", ".join(map(str, numbers))
                self.bad.add(row.where, f"the class must be one of {known}, got {row.name!r}.")
            elif not good[i]:
                got = ", ".join(f"{100 * value:.4g} %" for value in row.corners)
                self.bad.add(row.where, "the box must have an area inside its picture.", got)
            else:
                valid.append(i)
        areas = [rows[i].area for i in valid]
        return Annotated(
            str(picture),
            boxes[valid].astype(np.float32),
            np.array([numbers[rows[i].name] for i in valid], np.int32),
            np.array([rows[i].crowd for i in valid], np.bool_),
            None if None in areas else np.array(areas, np.float32),
            size,
            self.stored,
            [rows[i].mask for i in valid] if self.masks else None,
        )

    def warn(self) -> None:
        """Log how many boxes were skipped, and images whose boxes fit only another orientation."""
        self.bad.warn()
        if self.turned:
            other = "upright" if self.stored else "stored"
            _LOG.warning(
                "%d pictures with an EXIF orientation have boxes that fit only their %s pixels, "
                "for example %s. If the boxes were measured on these, set data.boxes_on=%s.",
                *(len(self.turned), other, self.turned[0], other),
            )


def read_coco(config: AnnotatedData, *, masks: bool = False) -> Found:
    """Read COCO instances. The classes are the categories, sorted by id."""
    if config.class_names is not None:
        raise ConfigError(
            "data.class_names must not be set for COCO, whose files name the classes.",
            fix="remove data.class_names",
        )
    reader = _Reader.from_config(config, masks=masks)
    kind = Instance if masks else Box
    names, pictures = read_instances(config, config.images, kind, reader.bad)
    numbers = {key: i for i, key in enumerate(names)}
    parts = {s: [_coco_picture(p, numbers, reader) for p in some] for s, some in pictures.items()}
    reader.warn()
    return list(names.values()), parts


def _coco_picture(
    picture: CocoPicture[Any], numbers: Mapping[int | str, int], reader: _Reader
) -> Annotated:
    stated = picture.entry.width, picture.entry.height
    boxes = [box.bbox for _, box in picture.annotations]
    pixels = [(x, y, x + w, y + h) for x, y, w, h in boxes]
    with _errors_in(picture.where):
        width, height = reader.size_of(picture.path, stated, pixels)
    rows: list[_Row] = []
    for (where, box), (x1, y1, x2, y2) in zip(picture.annotations, pixels, strict=True):
        corners = x1 / width, y1 / height, x2 / width, y2 / height
        area = (x2 - x1) * (y2 - y1) if box.area is None else box.area
        row = _Row(where, box.category_id, corners, box.iscrowd, area / (width * height))
        if isinstance(box, Box):
            rows.append(row)
        elif has_mask(where, box, (width, height), reader.bad):
            shape = box.model_dump()["segmentation"]
            is_polygon = isinstance(shape, list)  # Arrays need less memory than lists.
            mask = [np.array(p, np.float32) for p in shape] if is_polygon else shape
            rows.append(row._replace(mask=mask))
    return reader.annotated(picture.path, rows, numbers, stated)


class _VocObject(Record):
    """Object in a Pascal VOC file. Pixels count from 1, and the box includes the last pixel."""

    name: str
    xmin: float
    ymin: float
    xmax: float
    ymax: float
    difficult: bool = False


class _VocSize(Record):
    width: float = 0
    height: float = 0


def read_voc(config: AnnotatedData, *, masks: bool = False) -> Found:
    """Read Pascal VOC: names in `ImageSets/Main/train.txt`, `Annotations/*.xml` and `JPEGImages/`.

    A split may also be a folder of XML files next to their images. An image is found by the name of
    its XML file, else by the name in the file. The classes are `class_names`, else all classes in
    the training data. With `masks`, the names are in `ImageSets/Segmentation/train.txt`, and object
    k of a file is the label k in the image of the same name in `SegmentationObject`.
    """
    root = root_of(config)
    usual = root / "JPEGImages" if config.images is None else root / config.images
    reader = _Reader.from_config(config, masks=masks)
    usual_list = f"ImageSets/{'Segmentation' if masks else 'Main'}/{{}}.txt"
    annotations_in = functools.cache(_annotations_in)  # several lists may use the same folder
    pictures_in_folder = functools.cache(_pictures_by_name)
    objects: dict[str, list[tuple[Path, Size, list[_Row]]]] = {}
    for split, lists in places(config, usual_list).items():
        objects[split] = []
        for path in map(Path, lists):
            if path.is_dir():
                files = annotations_in(path)
            else:
                listed = [line.split()[0] for line in lines_of(read_text(path)) if line.strip()]
                xml_folder = root / "Annotations"
                known = annotations_in(xml_folder)
                files = {
                    n: known.get(n) or path_below(xml_folder, f"{n}.xml", root, str(path))
                    for n in listed
                }
            for name, file in files.items():
                folder = usual if usual.is_dir() else file.parent
                by_name = pictures_in_folder(folder)
                picture = by_name.get(name, by_name.get(file.stem))
                picture, size, rows = _voc_picture(file, picture, folder, root, reader)
                rows = _with_voc_masks(rows, root, file, picture, reader) if masks else rows
                objects[split].append((picture, size, rows))
    present = {str(row.name) for *_, rows in objects.get("train", []) for row in rows}
    names = config.class_names or sorted(present)
    numbers = {name: i for i, name in enumerate(names)}
    parts = {
        split: [reader.annotated(picture, rows, numbers, size) for picture, size, rows in pictures]
        for split, pictures in objects.items()
    }
    reader.warn()
    return names, parts


def _annotations_in(folder: Path) -> dict[str, Path]:
    """Return the XML files below a folder, by relative path without extension."""
    discovery = Discovery(lambda file: file.lower().endswith(".xml"), "not an annotation")
    files = sorted(map(Path, discovery.files(folder)))
    discovery.report(folder)
    return {_name_in(folder, file): file for file in files}


def _pictures_by_name(folder: Path) -> dict[str, Path]:
    return {_name_in(folder, path): path for path in map(Path, Discovery().files(folder))}


def _name_in(folder: Path, file: Path) -> str:
    return file.relative_to(folder).with_suffix("").as_posix()


def _voc_picture(
    file: Path, picture: Path | None, folder: Path, root: Path, reader: _Reader
) -> tuple[Path, Size, list[_Row]]:
    path: list[str] = []
    top: dict[str, Any] = {}
    objects: list[dict[str, Any]] = []

    def start(name: str, _: object) -> None:
        path.append(name)
        if len(path) > _MOST_XML_LEVELS:
            raise FormatError(f"{file} must have at most {_MOST_XML_LEVELS} nested elements.")
        if path[1:] == ["object"]:
            objects.append({"line": parser.CurrentLineNumber})

    def text(value: str) -> None:
        holder = objects[-1] if path[1:2] == ["object"] else top
        key = path[-1] if len(path) < 4 or path[2] == "bndbox" else ""
        holder.setdefault(key, []).append(value)

    def refused(*_: object) -> None:
        raise FormatError(f"{file} must not declare a document type (<!DOCTYPE>).")

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.CharacterDataHandler = start, text
    parser.EndElementHandler = lambda _: path.pop()
    parser.StartDoctypeDeclHandler = refused
    boxes: list[tuple[str, int, _VocObject]] = []
    with _errors_in(file):
        if file.stat().st_size > _MOST_XML_BYTES:
            raise FormatError(f"{file} must have at most {_MOST_XML_BYTES >> 20} MiB.")
        parser.Parse(file.read_bytes(), True)
        top, *objects = map(_without_blanks, (top, *objects))
        if picture is None:
            name = str(top.get("filename") or f"{file.stem}.jpg").replace("\\", "/")
            if Path(name).stem != file.stem and file.with_name(f"{Path(name).stem}.xml").is_file():
                raise FormatError(f"The picture {name} of {file} belongs to another XML file.")
            picture = path_below(folder, name, root, str(file))
        stated = _VocSize.model_validate({k: top.get(k) or 0 for k in ("width", "height")})
        for number, values in enumerate(objects, 1):
            where = f"{file}, line {values['line']}"
            try:
                boxes.append((where, number, _VocObject.model_validate(values)))
            except ValidationError as error:
                reader.bad.add(where, text_of(error))
        pixels = [(o.xmin - 1, o.ymin - 1, o.xmax, o.ymax) for *_, o in boxes]
        size = stated.width, stated.height
        width, height = reader.size_of(picture, size, pixels)
    rows = [
        _Row(
            where,
            o.name,
            (x1 / width, y1 / height, x2 / width, y2 / height),
            o.difficult,
            mask=number,
        )
        for (where, number, o), (x1, y1, x2, y2) in zip(boxes, pixels, strict=True)
    ]
    return picture, size, rows


def _with_voc_masks(
    rows: Sequence[_Row], root: Path, file: Path, picture: Path, reader: _Reader
) -> list[_Row]:
    """Add masks to the rows of an image. Rows without a mask are reported and dropped."""
    labels = str(root / "SegmentationObject" / f"{file.stem}.png")
    pixels = open_labels(labels, f"{file}: the label picture {labels}")[0]
    header = header_of(picture)
    size = (header.height, header.width) if reader.stored else header.upright_size
    if pixels.shape != size:
        got = " x ".join(map(str, pixels.shape))
        what = f"{labels} must have the size of the picture, {size[0]} x {size[1]} pixels."
        reader.bad.add(str(file), what, f"{got} pixels")
        return []
    known = {*np.unique(pixels).tolist()}
    for row in rows:
        if row.mask not in known:
            reader.bad.add(row.where, f"{labels} has no pixels with the object's label {row.mask}.")
    return [row._replace(mask=(labels, row.mask)) for row in rows if row.mask in known]


def _without_blanks(values: dict[str, Any]) -> dict[str, Any]:
    stripped = {k: "".join(v).strip() if isinstance(v, list) else v for k, v in values.items()}
    return {key: value for key, value in stripped.items() if value != ""}


def read_yolo(config: AnnotatedData) -> Found:
    """Read YOLO: `images/train/` and `labels/train/` (or `train/images/` …), lines `class x y w h`.

    Center and size are fractions of the image size. A polygon, `class x1 y1 x2 y2 x3 y3 …`, becomes
    its bounding box. An image without a label file has no boxes. A `.txt` list may replace a folder
    of images. The classes are `class_names`, else those of `data.yaml` or `classes.txt`.
    """
    root = root_of(config)
    settings = _yaml_of_yolo(root)
    stated = _folders_of_yolo(root, *settings) if config.train is None else {}
    folders = places(config, *_YOLO_FOLDERS, stated=stated)
    names = config.class_names or _names_of_yolo(root, *settings)
    reader, numbers = _Reader.from_config(config), {i: i for i in range(len(names))}
    pictures = {p: pictures_of_yolo(Path(p), root) for p in itertools.chain(*folders.values())}
    parts: dict[str, list[Annotated]] = {}
    for split, several in folders.items():
        files = [Path(file) for folder in several for file in pictures[folder]]
        parts[split] = [reader.annotated(f, _yolo_rows(f, reader.bad), numbers) for f in files]
    for folder, files in pictures.items():
        _check_pictures(Path(folder), files, reader.bad)
    reader.warn()
    return names, parts


def folders_of_yolo(root: Path) -> dict[str, list[str]]:
    """Return the folders and lists of each split, from `data.yaml` or with the usual names."""
    return _folders_of_yolo(root, *_yaml_of_yolo(root))


def _folders_of_yolo(root: Path, file: Path, content: dict[str, Any]) -> dict[str, list[str]]:
    by_split: dict[str, list[str]] = {}
    for split in SPLIT_NAMES:
        paths = usual_places(root, split, *_YOLO_FOLDERS)
        values = content.get(split) or ()
        for number, value in enumerate([values] if isinstance(values, str) else values):
            path = _below_root(root, f"{content.get('path') or ''}/{value}")
            if path is not None:
                paths = [*paths, path] if number else [path]
            elif not paths and split == "test":  # Roboflow names test data even without any.
                _LOG.warning("%s names test data that do not exist: %s.", file, value)
            elif not paths:
                raise FormatError(
                    f"The '{split}' data that {file} names do not exist: {value}.",
                    expected=f"a folder or a list below {root}",
                    fix=f"correct or remove {split} in the file, or set data.{split}",
                )
        if paths:
            by_split[split] = paths
    return by_split


def _below_root(root: Path, name: str) -> str | None:
    """Return the longest end of a path that exists below `root`, or None.

    Paths in files of other machines may begin with folders that do not exist here.
    """
    parts = [
        part
        for part in name[-_LONGEST_PATH:].replace("\\", "/").split("/")
        if part not in ("", ".", "..")
    ]
    # Keep the name of a split: `train/images` must not match all of `images`.
    first = next((i for i, part in enumerate(parts) if split_of(part)), len(parts) - 1)
    ends = ("/".join(parts[i:]) for i in range(first + 1))
    return next((end for end in ends if os.path.exists(root / end)), None) if parts else "."


def pictures_of_yolo(path: Path, root: Path) -> list[str]:
    if path.suffix.lower() != ".txt" or not path.is_file():
        return pictures_in(path)
    pictures: list[str] = []
    for number, line in enumerate(lines_of(read_text(path)), 1):
        if line.strip():
            name = _below_root(root, line.strip())
            if name is None:
                raise FormatError(f"{path}, line {number} names no existing file: {line.strip()}.")
            pictures.append(str(root / name))
    return pictures


def _check_pictures(folder: Path, pictures: Sequence[str], bad: BadAnnotations) -> None:
    """Report the label files of a folder that belong to none of its images."""
    labels = next(filter(Path.is_dir, map(Path, _in_labels(f"{folder}/"))), None)
    if labels is None:
        return
    names = {Path(file).relative_to(folder).with_suffix("") for file in pictures}
    for file in sorted(labels.rglob("*.txt")):
        is_known = file.relative_to(labels).with_suffix("") in names
        if not is_known and not file.name.startswith((".", "classes.")):
            bad.add(str(file), "a picture with the name of this label file must exist.")


class _TextLoader(yaml.BaseLoader):
    """YAML loader that reads all values as strings and rejects duplicate keys."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len({*keys}) < len(keys):
            raise yaml.YAMLError(f"there are duplicate keys in {', '.join(keys)}")
        return super().construct_mapping(node, deep)


def _yaml_of_yolo(root: Path) -> tuple[Path, dict[str, Any]]:
    """Return the path and the content of `data.yaml`. The content is empty without this file."""
    file = next(filter(Path.is_file, (root / "data.yaml", root / "data.yml")), root / "data.yaml")
    if not file.is_file():
        return file, {}
    try:  # All values are strings, so that a class `yes` does not become a boolean.
        content: Any = parse_yaml(read_text(file), _TextLoader)
        if not isinstance(content, dict):
            raise TypeError(f"a {type(content).__name__}")
    except (TypeError, ValueError) as error:
        raise _unnamed(file, error) from error
    return file, content


def _unnamed(file: Path, error: Exception) -> FormatError:
    return FormatError(
        f"{file} must name the classes: {error!r}.",
        expected="names: [cat, dog], or names: {0: cat, 1: dog}",
    )


def _names_of_yolo(root: Path, file: Path, content: dict[str, Any]) -> list[str]:
    if file.is_file():
        try:
            names = content["names"]
            if isinstance(names, Mapping):
                by_number = {int(key): str(name) for key, name in names.items()}
                names = [by_number[i] for i in range(len(by_number))]
            if int(content.get("nc", len(names))) != len(names):
                raise ValueError(f"nc is {content['nc']}, but there are {len(names)} names")
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise TypeError("names must be a list of texts")
        except (KeyError, TypeError, ValueError) as error:
            raise _unnamed(file, error) from error
        return names
    if (root / "classes.txt").is_file():
        lines = lines_of(read_text(root / "classes.txt"))
        return [line.strip() for line in lines if line.strip()]
    raise ConfigError(
        f"{root} must contain data.yaml or classes.txt with the names of the classes.",
        fix="list the names of the classes in data.class_names",
    )


def label_file(picture: str | Path) -> Path | None:
    """Return the label file of an image, in a folder `labels` or next to the image, or None."""
    stem = os.path.splitext(picture)[0]
    stems = [*_in_labels(stem), stem]
    files = (f"{name}{suffix}" for name in stems for suffix in (".txt", ".TXT"))
    return next((Path(file) for file in files if os.path.isfile(file)), None)


def _in_labels(path: str) -> list[str]:
    """Return a path with its last folder `images` replaced by `labels` and by `Labels`."""
    spans = [match.span() for match in _IMAGES.finditer(path)][-1:]
    return [path[:i] + word + path[j:] for i, j in spans for word in ("labels", "Labels")]


def _yolo_rows(picture: Path, bad: BadAnnotations) -> list[_Row]:
    file = label_file(picture)
    rows: list[_Row] = []
    for number, line in enumerate(lines_of(read_text(file)) if file else [], 1):
        where = f"{file}, line {number}"
        if not line.strip():
            continue
        try:
            class_id, *values = (float(value) for value in line.split())
            if len(values) == 4:
                x, y, w, h = values
                corners = x - w / 2, y - h / 2, x + w / 2, y + h / 2
            elif len(values) >= 6 and len(values) % 2 == 0:
                xs, ys = values[::2], values[1::2]
                corners = min(xs), min(ys), max(xs), max(ys)
            else:
                raise ValueError(f"there are {len(values)} numbers after the class")
            if not np.isfinite([class_id, *corners]).all() or class_id % 1:
                raise ValueError("the class must be an integer, and all numbers must be finite")
            # Some programs round coordinates, or write polygons slightly outside of the image.
            if not -0.01 <= min(values) <= max(values) <= 1.01:
                raise ValueError("numbers after the class must be fractions from 0 to 1")
        except ValueError as error:
            bad.add(where, f"the line is not a box: {error}.", repr(line[:80]))
            continue
        rows.append(_Row(where, int(class_id), corners))
    return rows


@contextlib.contextmanager
def _errors_in(where: str | Path) -> Iterator[None]:
    """Convert errors of reading and parsing to errors that name the file."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"{where} cannot be read: {error}.") from error
    except TowerpackError:
        raise
    except (ValueError, LookupError, expat.ExpatError) as error:
        raise FormatError(f"{where} is damaged: {error}.") from error
