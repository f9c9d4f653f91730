"""Boxes of pictures, as COCO, PASCAL VOC and YOLO write them down."""

from __future__ import annotations

import functools
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol
from xml.parsers import expat

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import ValidationError

from towerpack._core.errors import ConfigError, FormatError, TowerpackError
from towerpack._core.logs import get_logger
from towerpack._core.tables import lines_of, read_text
from towerpack._core.yaml_text import parse_yaml
from towerpack.apps._coco import BadAnnotations, Box, CocoPicture, Record, read_instances, text_of
from towerpack.apps._pictures import header_of, pictures_in
from towerpack.apps._splits import (
    SPLIT_NAMES,
    Places,
    path_below,
    places,
    root_of,
    split_of,
    usual_places,
)
from towerpack.dataflow.images import clip_boxes
from towerpack.dataflow.sources.discovery import Discovery

_LOG = get_logger(__name__)
_IMAGES: Final = re.compile(r"(?<![^/\\])images(?=[/\\])", re.IGNORECASE)
_MOST_XML_BYTES: Final = 16 << 20
_MOST_XML_LEVELS: Final = 32  # Parts of objects in annotations lie on level 5.
_LONGEST_PATH: Final = 4096
_YOLO_PLACES: Final = "{}/images", "images/{}"

Size = tuple[float, float]
Corners = tuple[float, float, float, float]
"""x1, y1, x2, y2 as shares of the picture."""


@dataclass(frozen=True)
class Annotated:
    """A picture and the boxes in it.

    Attributes:
        picture: Name of the file.
        boxes: float32 [k, 4]: x1, y1, x2, y2 as shares of the picture.
        class_ids: int32 [k].
        crowd: bool [k]: the box holds several objects (COCO), or is not to be counted (VOC's
            `difficult`); None: none does.
        areas: float32 [k]: of the objects, as shares of the picture; None: of their boxes.
        size: Width and height that the annotations state; zeros where they do not.
        stored: The boxes were measured on the picture as its pixels are stored, before EXIF's
            orientation is applied.
    """

    picture: str
    boxes: NDArray[np.float32]
    class_ids: NDArray[np.int32]
    crowd: NDArray[np.bool_] | None = None
    areas: NDArray[np.float32] | None = None
    size: Size = (0, 0)
    stored: bool = False

    def on(self, height: int, width: int) -> NDArray[np.float32]:
        """Return the boxes as shares of the picture as it was decoded: upright, as EXIF says.

        Raises:
            FormatError: They were measured on a picture of another size.
        """
        orientation = header_of(self.picture).orientation if self.stored else 1
        upright, turned = (width, height), (height, width)
        expected = turned if orientation > 4 else upright
        if all(self.size) and self.size != expected:
            other = self.size == turned and header_of(self.picture).orientation > 4
            raise FormatError(
                f"The annotations of {self.picture} are of another size.",
                got="{:g} x {:g} pixels".format(*self.size),
                expected="{} x {}, as the picture is {}".format(
                    *expected, "stored" if self.stored else "shown, upright"
                ),
                fix=f"set data.boxes_on={'upright' if self.stored else 'stored'}"
                if other
                else "correct width and height in the annotations that data.train names",
            )
        x1, y1, x2, y2 = self.boxes.T
        if orientation > 4:
            x1, y1, x2, y2 = y1, x1, y2, x2
        if orientation in (2, 3, 6, 7):
            x1, x2 = 1 - x2, 1 - x1
        if orientation in (3, 4, 7, 8):
            y1, y2 = 1 - y2, 1 - y1
        return np.stack([x1, y1, x2, y2], 1)


class BoxPlaces(Places, Protocol):
    """The part of a recipe that says where pictures and their boxes lie."""

    @property
    def images(self) -> str | None: ...
    @property
    def class_names(self) -> list[str] | None: ...
    @property
    def bad_boxes(self) -> str: ...
    @property
    def boxes_on(self) -> str: ...


Found = tuple[Sequence[str], Mapping[str, Sequence[Annotated]]]
"""Names of the classes, and the pictures of each split."""


class _Row(NamedTuple):
    """A box: its place for messages, class, corners, whether it is a crowd, area as a share."""

    where: str
    name: int | str
    corners: Corners
    crowd: bool = False
    area: float | None = None


@dataclass
class _Reader:
    """Check boxes, and count those that cannot be used."""

    stored: bool
    bad: BadAnnotations
    turned: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, config: BoxPlaces) -> _Reader:
        return cls(config.boxes_on == "stored", BadAnnotations(config.bad_boxes))

    def size_of(self, picture: Path, stated: Size, corners: Sequence[Corners]) -> Size:
        """Width and height of the picture on which boxes were measured: stated, or its own.

        Args:
            picture: The file.
            stated: In the annotations, or zeros.
            corners: Of the boxes, in pixels.
        """
        if min(stated) >= 1:
            return stated
        header = header_of(picture)
        height, width = header.upright_size
        upright, other = (width, height), (header.width, header.height)
        found, other = (other, upright) if self.stored else (upright, other)
        x, y = (max((box[i] for box in corners), default=0) - 1 for i in (2, 3))
        if found != other and (x > found[0] or y > found[1]) and x <= other[0] and y <= other[1]:
            self.turned.append(str(picture))
        return found

    def annotated(
        self, picture: Path, rows: Sequence[_Row], numbers: Mapping[Any, int], size: Size = (0, 0)
    ) -> Annotated:
        """Return the good boxes of a picture, given the numbers of the classes."""
        corners = np.array([row.corners for row in rows], np.float64).reshape(-1, 4)
        boxes, good = clip_boxes(corners, 1, 1)
        kept: list[int] = []
        for i, row in enumerate(rows):
            if row.name not in numbers:
                known = ", ".join(map(str, numbers))
                self.bad.add(row.where, f"there is no class {row.name!r}, only {known}.")
            elif not good[i]:
                got = ", ".join(f"{100 * value:.4g} %" for value in row.corners)
                self.bad.add(row.where, "a box has no area within its picture.", got)
            else:
                kept.append(i)
        areas = [rows[i].area for i in kept]
        return Annotated(
            str(picture),
            boxes[kept].astype(np.float32),
            np.array([numbers[rows[i].name] for i in kept], np.int32),
            np.array([rows[i].crowd for i in kept], np.bool_),
            None if None in areas else np.array(areas, np.float32),
            size,
            self.stored,
        )

    def tell(self) -> None:
        """Warn once of what was left out, and of boxes that seem to be of a turned picture."""
        self.bad.tell()
        if self.turned:
            fit, other = "as they are stored", "stored"
            if self.stored:
                fit = other = "upright"
            _LOG.warning(
                "%d pictures have an EXIF orientation and boxes that only fit them %s, such as %s: "
                "set data.boxes_on=%s if they were measured so.",
                *(len(self.turned), fit, self.turned[0], other),
            )


def read_coco(config: BoxPlaces) -> Found:
    """Instances of COCO; the classes are the categories in the order of their ids."""
    if config.class_names is not None:
        raise ConfigError("COCO's annotations name their classes.", fix="remove data.class_names")
    reader = _Reader.of(config)
    names, found = read_instances(config, config.images, Box, reader.bad)
    numbers = {key: i for i, key in enumerate(names)}
    parts = {s: [_of_coco(one, numbers, reader) for one in several] for s, several in found.items()}
    reader.tell()
    return list(names.values()), parts


def _of_coco(one: CocoPicture[Box], numbers: Mapping[int | str, int], reader: _Reader) -> Annotated:
    stated = one.entry.width, one.entry.height
    objects = [(where, found, *found.bbox) for where, found in one.annotations]
    pixels = [(x, y, x + w, y + h) for _, _, x, y, w, h in objects]
    with _opened(one.where):
        width, height = reader.size_of(one.path, stated, pixels)
    rows = [
        _Row(
            where,
            found.category_id,
            (x1 / width, y1 / height, x2 / width, y2 / height),
            found.iscrowd,
            ((x2 - x1) * (y2 - y1) if found.area is None else found.area) / (width * height),
        )
        for (where, found, *_), (x1, y1, x2, y2) in zip(objects, pixels, strict=True)
    ]
    return reader.annotated(one.path, rows, numbers, stated)


class _VocObject(Record):
    """An object of PASCAL VOC. Pixels are counted from 1, and the last one belongs to the box."""

    name: str
    xmin: float
    ymin: float
    xmax: float
    ymax: float
    difficult: bool = False


class _VocSize(Record):
    width: float = 0
    height: float = 0


def read_voc(config: BoxPlaces) -> Found:
    """`Annotations/NAME.xml` and `JPEGImages/`, of each name in `ImageSets/Main/train.txt`.

    Instead of a list of names a folder of XML files, too, beside their pictures. A picture has the
    name of its XML file; only where there is none, the name that the file states. The classes are
    `class_names`, or else the names in the training data by alphabet.
    """
    root = root_of(config)
    usual = root / "JPEGImages" if config.images is None else root / config.images
    reader = _Reader.of(config)
    annotations_in = functools.cache(_annotations_in)  # Several lists are of the same folders.
    pictures_in_folder = functools.cache(_pictures_by_name)
    objects: dict[str, list[tuple[Path, Size, list[_Row]]]] = {}
    for split, lists in places(config, "ImageSets/Main/{}.txt").items():
        objects[split] = []
        for one in map(Path, lists):
            if one.is_dir():
                files = annotations_in(one)
            else:
                lines = [line.split() for line in lines_of(read_text(one)) if line.strip()]
                usual_files = root / "Annotations"
                known = annotations_in(usual_files)
                files = {
                    n: known.get(n) or path_below(usual_files, f"{n}.xml", root, str(one))
                    for n, *_ in lines
                }
            for name, file in files.items():
                folder = usual if usual.is_dir() else file.parent
                by_name = pictures_in_folder(folder)
                picture = by_name.get(name, by_name.get(file.stem))
                objects[split].append(_of_voc(file, picture, folder, root, reader))
    found = {row.name for *_, rows in objects.get("train", []) for row in rows}
    names = config.class_names or sorted(map(str, found))
    numbers = {name: i for i, name in enumerate(names)}
    parts = {
        split: [reader.annotated(picture, rows, numbers, size) for picture, size, rows in several]
        for split, several in objects.items()
    }
    reader.tell()
    return names, parts


def _annotations_in(folder: Path) -> dict[str, Path]:
    """Return the XML files in a folder and below it, by their names in lists."""
    discovery = Discovery(lambda file: file.lower().endswith(".xml"), "not an annotation")
    files = sorted(map(Path, discovery.files(folder)))
    discovery.report(folder)
    return {_name_in(folder, file): file for file in files}


def _pictures_by_name(folder: Path) -> dict[str, Path]:
    """Return the pictures in a folder and below it, by their names in lists."""
    return {_name_in(folder, path): path for path in map(Path, Discovery().files(folder))}


def _name_in(folder: Path, file: Path) -> str:
    return file.relative_to(folder).with_suffix("").as_posix()


def _of_voc(
    file: Path, picture: Path | None, folder: Path, root: Path, reader: _Reader
) -> tuple[Path, Size, list[_Row]]:
    """A picture, its stated size, and its boxes."""
    path: list[str] = []
    top: dict[str, Any] = {}
    objects: list[dict[str, Any]] = []

    def start(name: str, _: object) -> None:
        path.append(name)
        if len(path) > _MOST_XML_LEVELS:
            raise FormatError(f"{file} has more levels of elements than annotations of VOC have.")
        if path[1:] == ["object"]:
            objects.append({"line": parser.CurrentLineNumber})

    def text(value: str) -> None:
        holder = objects[-1] if path[1:2] == ["object"] else top
        key = path[-1] if len(path) < 4 or path[2] == "bndbox" else ""
        holder.setdefault(key, []).append(value)

    def refused(*_: object) -> None:
        raise FormatError(f"{file} declares a document type, which annotations do not need.")

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.CharacterDataHandler = start, text
    parser.EndElementHandler = lambda _: path.pop()
    parser.StartDoctypeDeclHandler = refused
    found: list[tuple[str, _VocObject]] = []
    with _opened(file):
        if file.stat().st_size > _MOST_XML_BYTES:
            raise FormatError(f"{file} is larger than {_MOST_XML_BYTES >> 20} MiB.")
        parser.Parse(file.read_bytes(), True)
        top, *objects = map(_without_blanks, (top, *objects))
        if picture is None:
            name = str(top.get("filename") or f"{file.stem}.jpg").replace("\\", "/")
            if Path(name).stem != file.stem and file.with_name(f"{Path(name).stem}.xml").is_file():
                raise FormatError(f"There is no picture for {file}, and {name} is of another file.")
            picture = path_below(folder, name, root, str(file))
        stated = _VocSize.model_validate({k: top.get(k) or 0 for k in ("width", "height")})
        for one in objects:
            where = f"{file}, line {one['line']}"
            try:
                found.append((where, _VocObject.model_validate(one)))
            except ValidationError as error:
                reader.bad.add(where, text_of(error))
        pixels = [(o.xmin - 1, o.ymin - 1, o.xmax, o.ymax) for _, o in found]
        size = stated.width, stated.height
        width, height = reader.size_of(picture, size, pixels)
    rows = [
        _Row(where, o.name, (x1 / width, y1 / height, x2 / width, y2 / height), o.difficult)
        for (where, o), (x1, y1, x2, y2) in zip(found, pixels, strict=True)
    ]
    return picture, size, rows


def _without_blanks(values: dict[str, Any]) -> dict[str, Any]:
    """Return values with their parts joined and stripped; empty texts are left out."""
    stripped = {k: "".join(v).strip() if isinstance(v, list) else v for k, v in values.items()}
    return {key: value for key, value in stripped.items() if value != ""}


def read_yolo(config: BoxPlaces) -> Found:
    """`images/train/` and `labels/train/` (or `train/images/` …) with lines `class x y w h`.

    Centre and size are shares of the picture; a line of more numbers, `class x1 y1 x2 y2 x3 y3 …`,
    is a polygon, whose box is taken. A picture without a file of labels has no boxes. The classes
    are `class_names`, or those of `data.yaml` or `classes.txt` in `path`. Without `data.train`,
    `train`, `val` and `test` of `data.yaml` say where the splits lie. Pictures may be listed, too:
    paths in a `.txt` file.
    """
    root = root_of(config)
    settings = _yaml_of_yolo(root)
    stated = _places_of_yolo(root, *settings) if config.train is None else {}
    folders = places(config, *_YOLO_PLACES, stated=stated)
    names = config.class_names or _names_of_yolo(root, *settings)
    reader, numbers = _Reader.of(config), {i: i for i in range(len(names))}
    pictures = {
        place: pictures_of_yolo(Path(place), root) for place in itertools.chain(*folders.values())
    }
    parts = {
        split: [
            reader.annotated(Path(picture), _of_yolo(Path(picture), reader.bad), numbers)
            for folder in several
            for picture in pictures[folder]
        ]
        for split, several in folders.items()
    }
    for folder, files in pictures.items():
        _check_pictures(Path(folder), files, reader.bad)
    reader.tell()
    return names, parts


def places_of_yolo(root: Path) -> dict[str, list[str]]:
    """Return folders and lists of each split, below `root`: as `data.yaml` says, or usual ones.

    Raises:
        FormatError: The file names training or validation data that do not exist.
    """
    return _places_of_yolo(root, *_yaml_of_yolo(root))


def _places_of_yolo(root: Path, file: Path, content: dict[str, Any]) -> dict[str, list[str]]:
    by_split: dict[str, list[str]] = {}
    for split in SPLIT_NAMES:
        paths = usual_places(root, split, *_YOLO_PLACES)
        values = content.get(split) or ()
        for number, value in enumerate([values] if isinstance(values, str) else values):
            path = _below_root(root, f"{content.get('path') or ''}/{value}")
            if path is not None:
                paths = [*paths, path] if number else [path]
            elif not paths and split == "test":  # Roboflow names test data even if it has none.
                _LOG.warning("%s names data 'test' that do not exist: %s.", file, value)
            elif not paths:
                raise FormatError(
                    f"{file} names data '{split}' that do not exist: {value}.",
                    expected=f"a folder or a list below {root}",
                    fix=f"correct or remove {split} in the file, or set data.{split}",
                )
        if paths:
            by_split[split] = paths
    return by_split


def _below_root(root: Path, name: str) -> str | None:
    """Return the longest end of a path that exists below a folder.

    Paths are relative to the folder, to another program's, or absolute on another machine.
    """
    parts = [
        part
        for part in name[-_LONGEST_PATH:].replace("\\", "/").split("/")
        if part not in ("", ".", "..")
    ]
    # The name of a split is never dropped: `train/images` is not all of `images`.
    first = next((i for i, part in enumerate(parts) if split_of(part)), len(parts) - 1)
    ends = ("/".join(parts[i:]) for i in range(first + 1))
    return next((end for end in ends if os.path.exists(root / end)), None) if parts else "."


def pictures_of_yolo(place: Path, root: Path) -> list[str]:
    """Return the pictures in a folder, or those that a list names.

    Raises:
        FormatError: A picture in the list does not exist.
    """
    if place.suffix.lower() != ".txt" or not place.is_file():
        return pictures_in(place)
    pictures: list[str] = []
    for number, line in enumerate(lines_of(read_text(place)), 1):
        if line.strip():
            name = _below_root(root, line.strip())
            if name is None:
                raise FormatError(f"{place}, line {number}: there is no picture {line.strip()}.")
            pictures.append(str(root / name))
    return pictures


def _check_pictures(folder: Path, pictures: Sequence[str], bad: BadAnnotations) -> None:
    """Refuse or count files of labels without one of the pictures of a folder."""
    labels = next(filter(Path.is_dir, map(Path, _in_labels(f"{folder}/"))), None)
    if labels is None:
        return
    names = {Path(file).relative_to(folder).with_suffix("") for file in pictures}
    for file in sorted(labels.rglob("*.txt")):
        is_known = file.relative_to(labels).with_suffix("") in names
        if not is_known and not file.name.startswith((".", "classes.")):
            bad.add(str(file), "there is no picture for these labels.")


class _AsWritten(yaml.BaseLoader):
    """Refuse keys that occur twice, of which YAML would take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if len({*keys}) < len(keys):
            raise yaml.YAMLError(f"a key occurs twice among {', '.join(keys)}")
        return super().construct_mapping(node, deep)


def _yaml_of_yolo(root: Path) -> tuple[Path, dict[str, Any]]:
    """Return `data.yaml` and what it holds; nothing if there is none."""
    file = next(filter(Path.is_file, (root / "data.yaml", root / "data.yml")), root / "data.yaml")
    if not file.is_file():
        return file, {}
    try:  # All values are texts: `yes` is a class, and no boolean.
        content: Any = parse_yaml(read_text(file), _AsWritten)
        if not isinstance(content, dict):
            raise TypeError(f"a {type(content).__name__}")
    except (TypeError, ValueError) as error:
        raise FormatError(
            f"{file} does not name the classes: {error!r}.",
            expected="names: [cat, dog], or names: {0: cat, 1: dog}",
        ) from error
    return file, content


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
                raise TypeError("names are no list of texts")
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(
                f"{file} does not name the classes: {error!r}.",
                expected="names: [cat, dog], or names: {0: cat, 1: dog}",
            ) from error
        return names
    if (root / "classes.txt").is_file():
        lines = lines_of(read_text(root / "classes.txt"))
        return [line.strip() for line in lines if line.strip()]
    raise ConfigError(
        f"{root} holds neither data.yaml nor classes.txt.",
        fix="list the names of the classes in data.class_names",
    )


def label_file(picture: str | Path) -> Path | None:
    """Return the file of a picture's boxes: in `labels` instead of `images`, or beside it."""
    stem = os.path.splitext(picture)[0]
    stems = [*_in_labels(stem), stem]
    files = (f"{one}{suffix}" for one in stems for suffix in (".txt", ".TXT"))
    return next((Path(file) for file in files if os.path.isfile(file)), None)


def _in_labels(path: str) -> list[str]:
    """Paths with `labels` in the place of the last folder `images`; none without such a folder."""
    found = [match.span() for match in _IMAGES.finditer(path)][-1:]
    return [path[:i] + word + path[j:] for i, j in found for word in ("labels", "Labels")]


def _of_yolo(picture: Path, bad: BadAnnotations) -> list[_Row]:
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
                raise ValueError(f"{len(values)} numbers after the class")
            if not np.isfinite([class_id, *corners]).all() or class_id % 1:
                raise ValueError("no class, or a number that is not finite")
            # Programs round, or let polygons end a little outside of the picture.
            if not -0.01 <= min(values) <= max(values) <= 1.01:
                raise ValueError("numbers after the class are shares from 0 to 1")
        except ValueError as error:
            bad.add(where, f"it is no box: {error}.", repr(line[:80]))
            continue
        rows.append(_Row(where, int(class_id), corners))
    return rows


class _opened:  # noqa: N801 - a context manager
    """Say in which file, and where in it, something was wrong."""

    def __init__(self, where: str | Path) -> None:
        self._where = where

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError):
            raise ConfigError(f"{self._where} cannot be read: {error}.") from error
        if isinstance(error, ValueError | LookupError | expat.ExpatError) and not isinstance(
            error, TowerpackError
        ):
            raise FormatError(f"{self._where} is damaged: {error}.") from error
