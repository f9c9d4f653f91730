"""Reader of COCO instance annotations: JSON files of images, categories and objects."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.logs import get_logger
from towerpack.apps._config import Data
from towerpack.apps._splits import path_below, places, root_of

_LOG = get_logger(__name__)


@dataclass
class BadAnnotations:
    """Policy for invalid annotations: 'error' raises an error, 'skip' skips and counts them."""

    policy: str
    skipped: list[str] = field(default_factory=list)

    def add(self, where: str, what: str, got: str | None = None) -> None:
        """Raise an error for an invalid annotation, or count the annotation as skipped."""
        if self.policy == "error":
            fix = "correct the annotation, or set data.bad_boxes=skip to skip such annotations"
            raise FormatError(f"{where}: {what}", got=got, fix=fix)
        self.skipped.append(f"{where}: {what}")

    def warn(self) -> None:
        if self.skipped:
            count, first = len(self.skipped), self.skipped[0]
            _LOG.warning("Skipped %d invalid annotations. The first is %s", count, first)


class Record(BaseModel):
    """Base class of objects in an annotation file. Additional keys are ignored."""

    model_config = ConfigDict(allow_inf_nan=False, coerce_numbers_to_str=True)


def _integer_if_possible(value: Any) -> Any:
    # Some programs write the same id as a string in one place and as a number in another.
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    if value is None or isinstance(value, bool | list | dict):
        raise ValueError("is not an id")
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _polygon(points: list[float]) -> list[float]:
    if len(points) < 6 or len(points) % 2:
        raise ValueError("a polygon must have at least 3 points, each with x and y")
    return points


Id = Annotated[int | str, BeforeValidator(_integer_if_possible)]
Size = Annotated[float, BeforeValidator(lambda value: value or 0), Field(ge=0)]


class Category(Record):
    id: Id
    name: Annotated[str, Field(min_length=1)]


class Picture(Record):
    """Entry of an image. Width and height are 0 if the file does not state them."""

    id: Id
    file_name: str
    width: Size = 0
    height: Size = 0


class Annotation(Record):
    id: Id | None = None
    image_id: Id
    category_id: Id
    iscrowd: Annotated[bool, BeforeValidator(lambda value: value or False)] = False


class Box(Annotation):
    """Object with a box: x and y of the top left corner, width, height."""

    bbox: tuple[float, float, float, float]
    area: Annotated[float, Field(ge=0)] | None = None


class RunLengths(Record):
    """Mask as run lengths, either numbers or a compressed string."""

    counts: list[int] | str
    size: tuple[int, int]

    @model_validator(mode="after")
    def _check(self) -> Self:
        # If the runs are too short, pycocotools reads beyond the end of its memory.
        runs = _decoded(self.counts) if isinstance(self.counts, str) else self.counts
        if min(runs, default=0) < 0 or sum(runs) != self.size[0] * self.size[1]:
            raise ValueError(f"the runs do not cover {self.size[0]} x {self.size[1]} pixels")
        if not any(runs[1::2]):
            raise ValueError("the mask is empty")
        return self


class Mask(Annotation):
    segmentation: (
        Annotated[list[Annotated[list[float], AfterValidator(_polygon)]], Field(min_length=1)]
        | RunLengths
    )


class Instance(Mask):
    """Object with a mask. Without `bbox`, the box is the bounding box of the mask."""

    bbox: tuple[float, float, float, float] = (0, 0, 0, 0)
    area: Annotated[float, Field(ge=0)] | None = None

    @model_validator(mode="after")
    def _find_box(self) -> Self:
        if "bbox" not in self.model_fields_set:
            points = _points_of(self.segmentation)
            (x, y), (w, h) = points.min(0), np.ptp(points, 0)
            self.bbox = float(x), float(y), float(w), float(h)
        return self


def _points_of(shape: list[list[float]] | RunLengths) -> NDArray[np.float64]:
    """Return the corners of polygons, or of the pixels of run lengths: [n, 2]."""
    if not isinstance(shape, RunLengths):
        return np.concatenate(shape).reshape(-1, 2)
    runs = _decoded(shape.counts) if isinstance(shape.counts, str) else shape.counts
    pixels = np.flatnonzero(np.repeat(np.arange(len(runs)) % 2, runs))
    corner = np.stack(np.divmod(pixels, shape.size[0]), 1)  # runs go down the columns
    return np.concatenate([corner, corner + 1]).astype(np.float64)


def has_mask(where: str, mask: Mask, size: tuple[float, float], bad: BadAnnotations) -> bool:
    """Return whether a mask has an area inside its image; otherwise report the annotation.

    `size` is the width and height of the image.
    """
    shape = mask.segmentation
    if isinstance(shape, RunLengths):
        if shape.size == (size[1], size[0]):
            return True
        got = f"{shape.size[0]} x {shape.size[1]} pixels"
        bad.add(where, "the mask must have the size of the picture.", got)
    elif any(_is_inside(polygon, size) for polygon in shape):
        return True
    else:
        bad.add(where, "the mask must have an area inside its picture.")
    return False


def _is_inside(polygon: Sequence[float], size: tuple[float, float]) -> bool:
    xs, ys = polygon[::2], polygon[1::2]
    (x1, y1), (x2, y2) = ((f(xs), f(ys)) for f in (min, max))
    return max(x1, 0) < min(x2, size[0]) and max(y1, 0) < min(y2, size[1])


def _decoded(counts: str) -> list[int]:
    """Decode pycocotools' compressed run lengths: 5 bits and a continuation bit per character.

    From the fourth run on, differences to the run before the previous one are stored.
    """
    runs: list[int] = []
    value = shift = 0
    for byte in counts.encode():
        bits = byte - 48
        value |= (bits & 31) << shift
        shift += 5
        if not bits & 32:
            value -= (bits & 16) << (shift - 4)  # the sign
            runs.append(value + (runs[-2] if len(runs) > 2 else 0))
            value = shift = 0
    return runs


A = TypeVar("A", bound=Annotation)


@dataclass(frozen=True)
class CocoPicture(Generic[A]):
    """Image, its entry in `images`, and its annotations as pairs (location, annotation)."""

    path: Path
    entry: Picture
    annotations: Sequence[tuple[str, A]]
    where: str


def read_instances(
    config: Data, images: str | None, kind: type[A], bad: BadAnnotations
) -> tuple[dict[int | str, str], dict[str, list[CocoPicture[A]]]]:
    """Return the sorted categories (id → name), and the annotated images of each split.

    `images` is the folder of the images. None searches for the first image in `images`, next to the
    annotations, in the data folder, and in `NAME` for `instances_NAME.json`.
    """
    names: dict[int | str, str] = {}
    parts: dict[str, list[CocoPicture[A]]] = {}
    usual = "{}.json", "annotations/instances_{}.json"
    for split, files in places(config, *usual).items():
        parts[split] = []
        for file in map(Path, files):
            content = _content(file)
            categories = _records(content, "categories", Category, file)
            pictures = _records(content, "images", Picture, file)
            file_names = {category.id: category.name for category in categories}
            if not pictures:
                raise FormatError(f"{file} must list at least one picture in 'images'.")
            if names and file_names != names:
                raise FormatError(f"{file} must have the same categories as the training data.")
            names = file_names
            objects: dict[int | str, list[tuple[str, A]]] = {image.id: [] for image in pictures}
            ids: set[int | str] = set()
            for number, raw in enumerate(_list(content, "annotations", file)):
                name = raw.get("id", f"number {number}") if isinstance(raw, Mapping) else number
                where = f"{file}, annotation {name}"
                try:
                    annotation = kind.model_validate(raw)
                except ValidationError as error:
                    bad.add(where, text_of(error))
                    continue
                key, category, image = annotation.id, annotation.category_id, annotation.image_id
                if key is not None and key in ids:
                    bad.add(where, "its id must be unique, but another annotation has the same id.")
                elif category not in names:
                    bad.add(where, f"the file has no category {category!r}.")
                elif image not in objects:
                    bad.add(where, f"the file has no picture with the id {image!r}.")
                else:
                    objects[image].append((where, annotation))
                ids |= set() if key is None else {key}
            root, paths = root_of(config), [p.file_name.replace("\\", "/") for p in pictures]
            folder = _folder(root, images, file, paths[0])
            for path, entry in zip(paths, pictures, strict=True):
                path = path_below(folder, path, root, str(file))
                parts[split].append(CocoPicture(path, entry, objects[entry.id], str(file)))
    used = {a.category_id for some in parts.values() for p in some for _, a in p.annotations}
    names = _without_unused(names, used, config)
    order = sorted(names, key=lambda key: (isinstance(key, str), key))
    return {key: names[key] for key in order}, parts


def _without_unused(
    names: Mapping[int | str, str], used: set[int | str], config: Data
) -> dict[int | str, str]:
    """Drop unused categories with the same name as another category, as Roboflow writes them."""
    firsts: dict[str, int | str] = {}
    for key in sorted(names, key=lambda key: key not in used):
        if firsts.setdefault(names[key], key) != key and key in used:
            raise FormatError(
                f"Categories in {root_of(config)} must have different names, but several have the "
                f"name {names[key]!r}.",
                got=f"the ids {firsts[names[key]]} and {key}, which annotations use",
            )
    return {key: name for key, name in names.items() if firsts[name] == key}


def _content(file: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error}.") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{file} is not valid JSON: {error}.") from error
    if not isinstance(content, dict):
        raise FormatError(f"{file} must contain a JSON object, got a {type(content).__name__}.")
    return content


def _list(content: Mapping[str, Any], key: str, file: Path) -> list[Any]:
    values = content.get(key)
    if not isinstance(values, list):
        raise FormatError(f"{file} must contain a list '{key}'.", got=", ".join(content))
    return values


R = TypeVar("R", Category, Picture)


def _records(content: Mapping[str, Any], key: str, kind: type[R], file: Path) -> list[R]:
    records: list[R] = []
    for number, raw in enumerate(_list(content, key, file)):
        try:
            records.append(kind.model_validate(raw))
        except ValidationError as error:
            raise FormatError(f"{file}, {key}, number {number}: {text_of(error)}") from error
    for value, count in Counter(record.id for record in records).items():
        if count > 1:
            raise FormatError(f"{file}: the ids in '{key}' must be unique, but {value!r} is not.")
    return records


def text_of(error: ValidationError) -> str:
    errors = error.errors()
    # If a value may have several types, our own checks apply to the intended type.
    first = next((each for each in errors if each["type"] == "value_error"), errors[0])
    place = ".".join(str(part) for part in first["loc"] if isinstance(part, str | int))
    return f"{place}: {first['msg']}." if place else f"{first['msg']}."


def _folder(root: Path, images: str | None, file: Path, picture: str) -> Path:
    name = file.stem.partition("_")[2]
    usual = [root / "images", file.parent, root, root / name, root / "images" / name]
    folders = usual if images is None else [root / images]
    for folder in folders:
        if os.path.isfile(folder / picture):
            return folder
    raise ConfigError(
        f"The picture {picture} does not exist in {', '.join(map(str, folders))}.",
        fix="set data.images to the folder of the pictures",
    )
