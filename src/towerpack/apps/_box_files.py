"""Boxes of pictures, as COCO, PASCAL VOC and YOLO write them down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol
from xml.parsers import expat

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.logs import get_logger
from towerpack.apps._coco import CocoPicture, read_instances
from towerpack.apps._pictures import pictures_in
from towerpack.apps._splits import Places, places, root_of
from towerpack.config import read_yaml
from towerpack.dataflow.images import clip_boxes, image_header
from towerpack.dataflow.sources._discovery import Discovery

_LOG = get_logger(__name__)
_HEADER_BYTES: Final = 1 << 18


Size = tuple[float, float]


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
    """

    picture: str
    boxes: NDArray[np.float32]
    class_ids: NDArray[np.int32]
    crowd: NDArray[np.bool_] | None = None
    areas: NDArray[np.float32] | None = None
    size: Size = (0, 0)

    def check_size(self, height: int, width: int) -> None:
        """Compare with the picture as it was decoded: upright, as EXIF says.

        Raises:
            FormatError: Boxes were measured on another one.
        """
        if all(self.size) and self.size != (width, height):
            raise FormatError(
                f"The annotations of {self.picture} are of another size.",
                got="{:g} x {:g} pixels".format(*self.size),
                expected=f"{width} x {height}, as the picture is shown, upright",
                fix="measure boxes on the picture as it is, or leave its width and height out",
            )


class BoxPlaces(Places, Protocol):
    """The part of a recipe that says where pictures and their boxes lie."""

    @property
    def images(self) -> str | None: ...
    @property
    def class_names(self) -> list[str] | None: ...
    @property
    def bad_boxes(self) -> str: ...


Found = tuple[Sequence[str], Mapping[str, Sequence[Annotated]]]
"""Names of the classes, and the pictures of each split."""


@dataclass
class _Reader:
    """Check boxes, and count those that have no area within their picture."""

    bad_boxes: str
    skipped: list[str] = field(default_factory=list)

    def annotated(
        self, picture: Path, rows: Sequence[tuple[Any, ...]], size: Size = (0, 0)
    ) -> Annotated:
        """From rows (where, class, corners as shares, crowd, area as a share or None)."""
        corners = np.array([row[2] for row in rows], np.float64).reshape(-1, 4)
        boxes, good = clip_boxes(corners, 1, 1)
        for bad in np.flatnonzero(~good).tolist():
            if self.bad_boxes == "error":
                raise FormatError(
                    f"{rows[bad][0]}: a box has no area within its picture.",
                    got=", ".join(f"{100 * value:.4g} %" for value in corners[bad]),
                    expected="x1 < x2 and y1 < y2",
                    fix="data.bad_boxes=skip leaves such boxes out",
                )
            self.skipped.append(rows[bad][0])
        kept = [row for row, is_good in zip(rows, good, strict=True) if is_good]
        ids, crowd, areas = ([row[i] for row in kept] for i in (1, 3, 4))
        return Annotated(
            str(picture),
            boxes[good].astype(np.float32),
            np.array(ids, np.int32),
            np.array(crowd, np.bool_),
            None if None in areas else np.array(areas, np.float32),
            size,
        )

    def tell(self) -> None:
        """Warn once of what was left out."""
        if self.skipped:
            count, first = len(self.skipped), self.skipped[0]
            _LOG.warning("%d boxes without area were left out; the first: %s.", count, first)


def read_coco(config: BoxPlaces) -> Found:
    """Instances of COCO; the classes are the categories in the order of their ids."""
    if config.class_names is not None:
        raise ConfigError("COCO's annotations name their classes.", fix="no data.class_names")
    names, found = read_instances(config, config.images)
    reader, numbers = _Reader(config.bad_boxes), {key: i for i, key in enumerate(names)}
    parts = {s: [_of_coco(one, numbers, reader) for one in several] for s, several in found.items()}
    reader.tell()
    return list(names.values()), parts


def _of_coco(one: CocoPicture, numbers: Mapping[int, int], reader: _Reader) -> Annotated:
    with _opened(one.where):
        size = width, height = _stated_size(one.entry)
        if not (width and height):
            height, width = _size_of(one.path)
        rows = []
        for marked in one.annotations:
            where = f"{one.where}, annotation {marked['id']}"
            x, y, w, h = marked["bbox"]
            corners = [x / width, y / height, (x + w) / width, (y + h) / height]
            area = marked.get("area", w * h) / (width * height)
            if marked["category_id"] not in numbers:
                raise FormatError(f"{where}: there is no category {marked['category_id']!r}.")
            number = numbers[marked["category_id"]]
            rows.append((where, number, corners, bool(marked.get("iscrowd")), area))
        return reader.annotated(one.path, rows, size)


def read_voc(config: BoxPlaces) -> Found:
    """`Annotations/NAME.xml` and `JPEGImages/`, of each name in `ImageSets/Main/train.txt`.

    Instead of a list of names a folder of XML files, too, beside their pictures. The classes are
    `class_names`, or else the names in the training data by alphabet.
    """
    root = root_of(config)
    usual = root / "JPEGImages" if config.images is None else root / config.images
    objects: dict[str, list[tuple[Path, Size, list[tuple[Any, ...]]]]] = {}
    for split, lists in places(config, "ImageSets/Main/{}.txt").items():
        objects[split] = []
        for one in map(Path, lists):
            if one.is_dir():
                files = [*_annotations_in(one).values()]
            else:
                with _opened(one):
                    lines = [line.split() for line in one.read_text().splitlines() if line.strip()]
                known = _annotations_in(root / "Annotations")
                missing = root / "Annotations"
                files = [known.get(n, missing / f"{n}.xml") for n, *_ in lines]
            objects[split] += [_of_voc(f, usual if usual.is_dir() else f.parent) for f in files]
    found = {row[1] for *_, rows in objects.get("train", []) for row in rows}
    names = config.class_names or sorted(found)
    reader, numbers = _Reader(config.bad_boxes), {name: i for i, name in enumerate(names)}
    parts = {
        split: [
            reader.annotated(
                picture, [(w, _class_of(name, numbers, w), *rest) for w, name, *rest in rows], size
            )
            for picture, size, rows in several
        ]
        for split, several in objects.items()
    }
    reader.tell()
    return names, parts


def _annotations_in(folder: Path) -> dict[str, Path]:
    """Return the XML files in a folder and below it, by their names in lists."""
    discovery = Discovery(lambda file: file.lower().endswith(".xml"), "not an annotation")
    files = sorted(map(Path, discovery.files(folder)))
    discovery.report(folder)
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in files}


def _of_voc(file: Path, folder: Path) -> tuple[Path, Size, list[tuple[Any, ...]]]:
    """A picture, its stated size, and rows (where, name, corners, difficult, None)."""
    path: list[str] = []
    top: dict[str, str] = {}
    objects: list[dict[str, Any]] = []

    def start(name: str, _: object) -> None:
        path.append(name)
        if path[1:] == ["object"]:
            objects.append({"line": parser.CurrentLineNumber})

    def text(value: str) -> None:
        holder = objects[-1] if path[1:2] == ["object"] else top
        key = path[-1] if len(path) < 4 or path[2] == "bndbox" else ""
        holder[key] = holder.get(key, "") + value.strip()

    def refused(*_: object) -> None:
        raise FormatError(f"{file} declares a document type, which annotations do not need.")

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.CharacterDataHandler = start, text
    parser.EndElementHandler = lambda _: path.pop()
    parser.StartDoctypeDeclHandler = refused
    with _opened(file):
        parser.Parse(file.read_bytes(), True)
        picture = folder / (top.get("filename") or f"{file.stem}.jpg")
        size = width, height = _stated_size(top)
        if not (width and height):
            height, width = _size_of(picture)
    rows = []
    for one in objects:
        where = f"{file}, line {one['line']}"
        with _opened(where):
            x1, y1, x2, y2 = (float(one[k]) for k in ("xmin", "ymin", "xmax", "ymax"))
            # Pixels are counted from 1, and the last one belongs to the box.
            corners = [(x1 - 1) / width, (y1 - 1) / height, x2 / width, y2 / height]
            rows.append((where, one["name"], corners, one.get("difficult") == "1", None))
    return picture, size, rows


def read_yolo(config: BoxPlaces) -> Found:
    """`images/train/` and `labels/train/` (or `train/images/` …) with lines `class x y w h`.

    Centre and size are shares of the picture; one without a file of labels has no boxes. The
    classes are `class_names`, or those of `data.yaml` or `classes.txt` in `path`.
    """
    root = root_of(config)
    folders = places(config, "{}/images", "images/{}")
    names = config.class_names or _names_of_yolo(root)
    reader = _Reader(config.bad_boxes)
    parts = {
        split: [
            reader.annotated(Path(picture), _of_yolo(Path(picture), len(names)))
            for folder in several
            for picture in pictures_in(folder)
        ]
        for split, several in folders.items()
    }
    reader.tell()
    return names, parts


def _names_of_yolo(root: Path) -> list[str]:
    if (root / "data.yaml").is_file():
        names: Any = read_yaml(root / "data.yaml").get("names", [])
        return [str(n) for n in (names.values() if isinstance(names, Mapping) else names)]
    if (root / "classes.txt").is_file():
        lines = (root / "classes.txt").read_text().splitlines()
        return [line.strip() for line in lines if line.strip()]
    raise ConfigError(
        f"{root} holds neither data.yaml nor classes.txt.", fix="data.class_names=[NAME,…]"
    )


def _of_yolo(picture: Path, num_classes: int) -> list[tuple[Any, ...]]:
    parts = list(picture.with_suffix(".txt").parts)
    if "images" in parts:
        parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"
    file = Path(*parts)
    rows = []
    for number, line in enumerate(file.read_text().splitlines() if file.is_file() else [], 1):
        where = f"{file}, line {number}"
        if not line.strip():
            continue
        with _opened(where):
            class_id, x, y, w, h = (float(value) for value in line.split())
            if class_id not in range(num_classes):
                raise ValueError(f"class {class_id:g} of {num_classes}")
            corners = [x - w / 2, y - h / 2, x + w / 2, y + h / 2]
            rows.append((where, int(class_id), corners, False, None))
    return rows


def _class_of(name: str, numbers: Mapping[str, int], where: str) -> int:
    if name not in numbers:
        raise FormatError(
            f"{where}: {name!r} is no class.", expected=", ".join(numbers), fix="data.class_names"
        )
    return numbers[name]


def _stated_size(of: Mapping[str, Any]) -> Size:
    return float(of.get("width") or 0), float(of.get("height") or 0)


def _size_of(picture: Path) -> tuple[float, float]:
    with open(picture, "rb") as file:
        return image_header(file.read(_HEADER_BYTES)).upright_size


class _opened:  # noqa: N801 - a context manager
    """Say in which file, and where in it, something was wrong."""

    def __init__(self, where: str | Path) -> None:
        self._where = where

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError):
            raise ConfigError(f"{self._where} cannot be read: {error}.") from error
        if isinstance(
            error, KeyError | ValueError | TypeError | expat.ExpatError
        ) and not isinstance(error, FormatError):
            raise FormatError(f"{self._where} is damaged: {error!r}.") from error
