"""Boxes of pictures, as COCO, PASCAL VOC and YOLO write them down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from typing import Annotated as Typed
from xml.parsers import expat

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.tables import lines_of, read_text
from towerpack.apps._annotations import Checks, Record, Size, reason
from towerpack.apps._coco import BoxInstance, read_instances
from towerpack.apps._pictures import pictures_in
from towerpack.apps._splits import places, root_of
from towerpack.dataflow.images import ImageHeader
from towerpack.dataflow.sources._labelled import IMAGE_EXTENSIONS

if TYPE_CHECKING:
    from towerpack.apps.detection._config import DataConfig


@dataclass(frozen=True)
class Annotated:
    """A picture and the boxes in it.

    Attributes:
        picture: Name of the file.
        boxes: float32 [k, 4]: x1, y1, x2, y2 as shares of the upright picture.
        class_ids: int32 [k].
        crowd: bool [k]: the box holds several objects (COCO), or is not to be counted (VOC's
            `difficult`); None: none does.
        areas: float32 [k]: of the objects, as shares of the picture; None: of their boxes.
    """

    picture: str
    boxes: NDArray[np.float32]
    class_ids: NDArray[np.int32]
    crowd: NDArray[np.bool_] | None = None
    areas: NDArray[np.float32] | None = None


Found = tuple[Sequence[str], Mapping[str, Sequence[Annotated]]]
"""Names of the classes, and the pictures of each split."""


def read_coco(config: DataConfig) -> Found:
    """Instances of COCO; the classes are the categories in the order of their ids."""
    if config.class_names is not None:
        raise ConfigError("COCO's annotations name their classes.", fix="remove data.class_names")
    names, found = read_instances(config, BoxInstance)
    classes = list(dict.fromkeys(names.values()))
    parts: dict[str, list[Annotated]] = {}
    for split, pictures in found.items():
        parts[split] = []
        for path, header, instances, boxes in pictures:
            ids = [classes.index(names[one.category_id]) for one in instances]
            areas = [
                one.bbox[2] * one.bbox[3] if one.area is None else one.area for one in instances
            ]
            parts[split].append(
                Annotated(
                    str(path),
                    boxes.astype(np.float32),
                    np.array(ids, np.int32),
                    np.array([one.iscrowd for one in instances], np.bool_),
                    np.array(areas, np.float32) / np.float32(header.width * header.height),
                )
            )
    return classes, parts


class _Box(NamedTuple):
    where: str
    class_id: int
    corners: tuple[float, float, float, float]
    is_difficult: bool = False


def _annotated(
    checks: Checks, picture: Path, header: ImageHeader, boxes: Sequence[_Box]
) -> Annotated:
    """Return a picture with those of its boxes that are good."""
    corners = [box.corners for box in boxes]
    shares, good = checks.boxes(header, [box.where for box in boxes], corners)
    ids = np.array([box.class_id for box in boxes], np.int32)
    crowd = np.array([box.is_difficult for box in boxes], np.bool_)
    return Annotated(str(picture), shares[good].astype(np.float32), ids[good], crowd[good])


class _VocObject(Record):
    name: Typed[str, Field(min_length=1)]
    xmin: float
    ymin: float
    xmax: float
    ymax: float
    difficult: bool = False


class _VocFile(Record):
    filename: str = ""
    width: Typed[float, Field(ge=0)] = 0
    height: Typed[float, Field(ge=0)] = 0


_Objects = list[tuple[str, _VocObject]]
"""Objects, and where they are written."""


def read_voc(config: DataConfig) -> Found:
    """`Annotations/NAME.xml` and `JPEGImages/`, of each name in `ImageSets/Main/train.txt`.

    Instead of a list of names a folder of XML files, too, beside their pictures. A picture is
    called as its XML file; only if there is no such picture, `filename` names it. The classes are
    `class_names`, or else the names in the training data by alphabet.
    """
    root, checks = root_of(config), Checks(config)
    usual = root / "JPEGImages" if config.images is None else root / config.images
    objects: dict[str, list[tuple[Path, Path, Size, _Objects]]] = {}
    for split, lists in places(config, "ImageSets/Main/{}.txt").items():
        objects[split] = []
        for one in map(Path, lists):
            if one.is_dir():
                files, folder = sorted(one.glob("*.xml")), usual if usual.is_dir() else one
            else:
                lines = filter(None, map(str.strip, lines_of(read_text(one, config.encoding))))
                files, folder = [_listed(root / "Annotations", line) for line in lines], usual
            for file in files:
                with checks.at(file):
                    objects[split].append((file, *_of_voc(file, folder, checks)))
    found = {one.name for *_, rows in objects.get("train", []) for _, one in rows}
    names = config.class_names or sorted(found)
    parts: dict[str, list[Annotated]] = {}
    for split, pictures in objects.items():
        parts[split] = []
        for file, picture, size, rows in pictures:
            boxes: list[_Box] = []
            for where, one in rows:
                with checks.at(where):
                    # Pixels are counted from 1, and the last one belongs to the box.
                    corners = one.xmin - 1, one.ymin - 1, one.xmax, one.ymax
                    boxes.append(_Box(where, _number_of(one.name, names), corners, one.difficult))
            header = checks.header(picture, str(file), size)
            parts[split].append(_annotated(checks, picture, header, boxes))
    checks.warn()
    return names, parts


def _listed(folder: Path, line: str) -> Path:
    """Return the XML file of a line: `NAME`, or `NAME -1` in a list for one class."""
    whole = folder / f"{line}.xml"
    return whole if whole.is_file() else folder / f"{line.split()[0]}.xml"


def _of_voc(file: Path, folder: Path, checks: Checks) -> tuple[Path, Size, _Objects]:
    """Return a picture, its stated size, and its objects."""
    path: list[str] = []
    top: dict[str, str] = {}
    objects: list[tuple[str, dict[str, str]]] = []

    def start(name: str, _: object) -> None:
        path.append(name)
        if path[1:] == ["object"]:
            objects.append((f"{file}, line {parser.CurrentLineNumber}", {}))

    def text(value: str) -> None:
        holder = objects[-1][1] if path[1:2] == ["object"] else top
        key = path[-1] if len(path) < 4 or path[2] == "bndbox" else ""
        holder[key] = holder.get(key, "") + value

    def refused(*_: object) -> None:
        raise FormatError("It declares a document type, which annotations do not need.")

    parser = expat.ParserCreate()
    parser.StartElementHandler, parser.CharacterDataHandler = start, text
    parser.EndElementHandler = lambda _: path.pop()
    parser.StartDoctypeDeclHandler = refused
    try:
        parser.Parse(file.read_bytes(), True)
    except expat.ExpatError as error:
        raise ValueError(str(error)) from error
    stated = _VocFile.model_validate(_stripped(top))
    rows: _Objects = []
    for where, values in objects:
        with checks.at(where):
            rows.append((where, _VocObject.model_validate(_stripped(values))))
    return _picture_of(file, folder, stated.filename), (stated.width, stated.height), rows


def _stripped(values: Mapping[str, str]) -> dict[str, str]:
    """Return the values without the space around them; empty values are left out."""
    return {key: value.strip() for key, value in values.items() if value.strip()}


def _picture_of(file: Path, folder: Path, filename: str) -> Path:
    """Return the picture of an XML file: of the same stem, or else the one that it names."""
    named = folder / Path(filename.replace("\\", "/")).name
    suffixes = [named.suffix, *IMAGE_EXTENSIONS, *map(str.upper, IMAGE_EXTENSIONS)]
    pictures = (folder / f"{file.stem}{suffix}" for suffix in suffixes if suffix)
    picture = next(filter(Path.is_file, pictures), folder / f"{file.stem}.jpg")
    # A picture with an XML file of its own does not belong to another XML file.
    is_free = bool(filename) and not file.with_name(f"{named.stem}.xml").is_file()
    return named if is_free and not picture.is_file() else picture


def read_yolo(config: DataConfig) -> Found:
    """`images/train/` and `labels/train/` (or `train/images/` …) with lines `class x y w h`.

    Center and size are shares of the picture. A line `class x1 y1 x2 y2 x3 y3 …` is a polygon, of
    which the bounding box is taken. A picture without a file of labels has no boxes. The classes
    are `class_names`, or those of `data.yaml` or `classes.txt` in `path`.
    """
    root, checks = root_of(config), Checks(config)
    pattern = "{}/images" if (root / "train" / "images").is_dir() else "images/{}"
    folders = places(config, pattern)
    names = config.class_names or _names_of_yolo(root, config.encoding)
    parts: dict[str, list[Annotated]] = {}
    for split, several in folders.items():
        parts[split] = []
        for folder in several:
            files: set[Path] = set()
            for picture in map(Path, pictures_in(folder)):
                file = _label_file(picture)
                files.add(file)
                header = checks.header(picture, str(file))
                boxes = _of_yolo(file, checks, len(names), checks.size(header), config.encoding)
                parts[split].append(_annotated(checks, picture, header, boxes))
            labels = _label_file(Path(folder) / "any.jpg").parent
            others = () if labels == Path(folder) else {*labels.rglob("*.txt")} - files
            for file in sorted(others):
                if file.name != "classes.txt":
                    with checks.at(file):
                        raise FormatError("There is no picture for this file of labels.")
    checks.warn()
    return names, parts


class _AsWritten(yaml.BaseLoader):
    """Load scalars as strings, so that `yes` is no boolean. Refuse keys that occur twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [str(key.value) for key, _ in node.value]
        if len({*keys}) < len(keys):
            raise yaml.YAMLError(f"a key occurs twice among {', '.join(keys)}")
        return super().construct_mapping(node, deep)


class _YoloFile(Record):
    names: list[str] | dict[int, str]
    nc: int | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if isinstance(self.names, dict) and sorted(self.names) != list(range(len(self.names))):
            raise ValueError(f"the numbers of the names are not 0 to {len(self.names) - 1}")
        if self.nc not in (None, len(self.names)):
            raise ValueError(f"nc is {self.nc}, but there are {len(self.names)} names")
        return self


def _names_of_yolo(root: Path, encoding: str | None) -> list[str]:
    file = root / "data.yaml"
    if file.is_file():
        try:
            content = yaml.load(read_text(file, encoding), Loader=_AsWritten)  # noqa: S506
            names = _YoloFile.model_validate(content).names
        except yaml.YAMLError as error:
            raise FormatError(f"{file} is no YAML: {error}.") from error
        except ValidationError as error:
            fix = "correct it, or list the names of the classes in data.class_names"
            raise FormatError(f"{file}{reason(error)}", fix=fix) from error
        return names if isinstance(names, list) else [names[number] for number in sorted(names)]
    if (root / "classes.txt").is_file():
        lines = lines_of(read_text(root / "classes.txt", encoding))
        return [line.strip() for line in lines if line.strip()]
    raise ConfigError(
        f"{root} holds neither data.yaml nor classes.txt.",
        fix="list the names of the classes in data.class_names",
    )


class _YoloLine(Record):
    class_id: int
    # Programs round, or let polygons end a little outside of the picture.
    values: list[Typed[float, Field(ge=-0.01, le=1.01)]]

    def corners(self, width: float, height: float) -> tuple[float, float, float, float]:
        count = len(self.values)
        xs, ys = self.values[::2], self.values[1::2]
        if count == 4:
            (x, w), (y, h) = xs, ys
            xs, ys = [x - w / 2, x + w / 2], [y - h / 2, y + h / 2]
        elif count < 6 or count % 2:
            expected = "4 of a box, or x and y of at least 3 points"
            raise ValueError(f"there are {count} numbers after the class, instead of {expected}")
        return width * min(xs), height * min(ys), width * max(xs), height * max(ys)


def _label_file(picture: Path) -> Path:
    parts = list(picture.with_suffix(".txt").parts)
    if "images" in parts:
        parts[len(parts) - 1 - parts[::-1].index("images")] = "labels"
    return Path(*parts)


def _of_yolo(
    file: Path, checks: Checks, num_classes: int, size: Size, encoding: str | None
) -> list[_Box]:
    boxes: list[_Box] = []
    for number, text in enumerate(lines_of(read_text(file, encoding)) if file.is_file() else [], 1):
        where, fields = f"{file}, line {number}", text.split()
        if not fields:
            continue
        with checks.at(where):
            line = _YoloLine.model_validate({"class_id": fields[0], "values": fields[1:]})
            if line.class_id not in range(num_classes):
                raise ValueError(f"class {line.class_id} of {num_classes} classes")
            boxes.append(_Box(where, line.class_id, line.corners(*size)))
    return boxes


def _number_of(name: str, names: Sequence[str]) -> int:
    if name not in names:
        raise FormatError(
            f"{name!r} is no class.",
            expected=", ".join(names),
            fix="add the class to data.class_names",
        )
    return names.index(name)
