"""COCO's annotations of instances: JSON files that name pictures, categories and objects."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, Self, TypeVar

from pydantic import AfterValidator, Field, model_validator

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.logs import get_logger
from towerpack.apps._annotations import AnnotationPlaces, Checks, Record, Size, reason
from towerpack.apps._splits import places, root_of

_LOG = get_logger(__name__)

# Some programs write numbers as strings.
Id = Annotated[int | str, Field(union_mode="left_to_right")]
Side = Annotated[float, Field(ge=0)]
Polygon = Annotated[list[float], Field(min_length=6)]


class Category(Record):
    """A class of objects."""

    id: Id
    name: Annotated[str, Field(min_length=1)]


class Image(Record):
    """A picture."""

    id: Id
    # Programs on Windows write backslashes.
    file_name: Annotated[str, Field(min_length=1), AfterValidator(lambda s: s.replace("\\", "/"))]
    width: Side | None = None
    height: Side | None = None


class Instance(Record):
    """An object in a picture."""

    id: Id
    image_id: Id
    category_id: Id
    iscrowd: bool | None = None


class BoxInstance(Instance):
    """An object with a box: left, top, width, height."""

    bbox: tuple[float, float, float, float]
    area: Side | None = None


class Runs(Record):
    """A mask as lengths of runs down the columns, of 0 first, or as pycocotools writes them."""

    size: tuple[int, int]
    counts: list[int] | str

    @model_validator(mode="after")
    def _check(self) -> Self:
        runs = _run_lengths(self.counts) if isinstance(self.counts, str) else self.counts
        if min(runs, default=0) < 0 or sum(runs) != self.size[0] * self.size[1]:
            raise ValueError(f"the counts do not add up to {self.size[0]} x {self.size[1]} pixels")
        if not any(runs[1::2]):
            raise ValueError("the mask is empty")
        return self


class MaskInstance(Instance):
    """An object with a mask: polygons, or run lengths."""

    segmentation: Annotated[list[Polygon], Field(min_length=1)] | Runs

    @model_validator(mode="after")
    def _check(self) -> Self:
        if isinstance(self.segmentation, list) and any(len(p) % 2 for p in self.segmentation):
            raise ValueError("a polygon has an odd number of coordinates")
        return self

    @property
    def corners(self) -> tuple[float, float, float, float]:
        """Corners x1, y1, x2, y2 of the polygons, or of the picture of run lengths."""
        if isinstance(self.segmentation, Runs):
            return 0, 0, self.segmentation.size[1], self.segmentation.size[0]
        xs = [x for polygon in self.segmentation for x in polygon[::2]]
        ys = [y for polygon in self.segmentation for y in polygon[1::2]]
        return min(xs), min(ys), max(xs), max(ys)


class _File(Record):
    images: list[Image]
    annotations: list[Any]
    categories: list[Category]


AnyInstance = TypeVar("AnyInstance", bound=Instance)


@dataclass(frozen=True)
class CocoPicture(Generic[AnyInstance]):
    """A picture and its annotations.

    Attributes:
        path: Path of the file.
        size: Width and height that the annotations state.
        annotations: Annotations of the picture.
        where: The file of annotations, for messages.
    """

    path: Path
    size: Size
    annotations: Sequence[AnyInstance]
    where: str


def read_instances(
    config: AnnotationPlaces, checks: Checks, kind: type[AnyInstance]
) -> tuple[dict[int | str, str], dict[str, list[CocoPicture[AnyInstance]]]]:
    """Names of the categories by id, in order, and the pictures of each split.

    Annotations are the files that `config` names, or `train.json` or
    `annotations/instances_train.json` below its path, and others alike. `config.images` is the
    folder of the pictures, below the path; None for `images`, the folder of the annotations, the
    path itself, or, as COCO has it, `NAME` for `instances_NAME.json`.

    Args:
        config: Says where.
        checks: Refuses bad annotations, or counts them.
        kind: Type of the annotations.

    Raises:
        ConfigError: There are no such files.
        FormatError: One is damaged, or has other categories than another one.
    """
    names: dict[int | str, str] = {}
    parts: dict[str, list[CocoPicture[AnyInstance]]] = {}
    for split, files in places(config, "{}.json", "annotations/instances_{}.json").items():
        parts[split] = []
        for file in map(Path, files):
            content = _read(file)
            found = {one.id: one.name for one in content.categories}
            objects: dict[int | str, list[AnyInstance]] = {one.id: [] for one in content.images}
            _check_unique(file, "category", [one.id for one in content.categories])
            _check_unique(file, "image", [one.id for one in content.images])
            if not objects:
                raise FormatError(f"{file} names no pictures.")
            if names and found != names:
                raise FormatError(f"{file} has other categories than the training data.")
            names = found
            seen: set[int | str] = set()
            for number, values in enumerate(content.annotations, 1):
                key = values.get("id") if isinstance(values, dict) else None
                with checks.at(f"{file}, annotation {f'number {number}' if key is None else key}"):
                    one = kind.model_validate(values)
                    if one.id in seen:
                        raise FormatError(f"Another annotation has the id {one.id!r}, too.")
                    seen.add(one.id)
                    if one.image_id not in objects:
                        raise FormatError(f"There is no image {one.image_id!r}.")
                    if one.category_id not in names:
                        raise FormatError(f"There is no category {one.category_id!r}.")
                    objects[one.image_id].append(one)
            folder = _folder(root_of(config), config.images, file, content.images)
            for one in content.images:
                size = one.width or 0, one.height or 0
                parts[split].append(
                    CocoPicture(folder / one.file_name, size, objects[one.id], str(file))
                )
    if len({*names.values()}) < len(names):
        _LOG.warning("Categories of the same name are one class: %s.", names)
    order = sorted(names, key=lambda key: (isinstance(key, str), key))
    return {key: names[key] for key in order}, parts


def _read(file: Path) -> _File:
    # The error of a whole file cannot be skipped.
    try:
        return _File.model_validate(json.loads(file.read_bytes()))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error}.") from error
    except ValueError as error:
        raise FormatError(f"{file}{reason(error)}") from error


def _check_unique(file: Path, what: str, ids: Sequence[int | str]) -> None:
    seen: set[int | str] = set()
    for key in ids:
        if key in seen:
            raise FormatError(
                f"{file}: the {what} id {key!r} occurs twice.", fix=f"give each {what} its own id"
            )
        seen.add(key)


def _folder(root: Path, images: str | None, file: Path, pictures: Sequence[Image]) -> Path:
    usual = [root / "images", file.parent, root, root / file.stem.partition("_")[2]]
    folders = usual if images is None else [root / images]
    for picture in pictures:
        for folder in folders:
            if (folder / picture.file_name).is_file():
                return folder
    raise ConfigError(
        f"There is no picture {pictures[0].file_name} in {', '.join(map(str, folders))}.",
        fix="set data.images to the folder of the pictures",
    )


def _run_lengths(counts: str) -> list[int]:
    """Decode pycocotools' text: 5 bits and a continuation bit in each character.

    From the fourth length on, the difference to the last but one length is stored.
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
