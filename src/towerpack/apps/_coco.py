"""COCO's annotations of instances: JSON files that name pictures, categories and objects."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.logs import get_logger
from towerpack.apps._annotations import Checks, Record, Size, reason
from towerpack.apps._config import AnnotatedData
from towerpack.apps._splits import places, root_of
from towerpack.dataflow.images import ImageHeader

_LOG = get_logger(__name__)

Corners = tuple[float, float, float, float]
# Some programs write numbers as strings.
Id = Annotated[int | str, Field(union_mode="left_to_right")]
_Side = Annotated[float, Field(ge=0)]
_Text = Annotated[str, Field(min_length=1)]


class _Category(Record):
    id: Id
    name: _Text


class _Image(Record):
    id: Id
    # Programs on Windows write backslashes.
    file_name: Annotated[_Text, AfterValidator(lambda name: name.replace("\\", "/"))]
    width: _Side | None = None
    height: _Side | None = None


class Instance(Record):
    """An object in a picture."""

    id: Id
    image_id: Id
    category_id: Id
    iscrowd: bool | None = None

    @property
    def size(self) -> Size:
        """Size of the picture that the object states."""
        return 0, 0

    @property
    def corners(self) -> Corners:
        """Corners x1, y1, x2, y2 of a box around the object."""
        raise NotImplementedError


class BoxInstance(Instance):
    """An object with a box: left, top, width, height."""

    bbox: Corners
    area: _Side | None = None

    @property
    def corners(self) -> Corners:
        x, y, w, h = self.bbox
        return x, y, x + w, y + h


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


def _even(polygon: list[float]) -> list[float]:
    if len(polygon) % 2:
        raise ValueError("a polygon has an odd number of coordinates")
    return polygon


class MaskInstance(Instance):
    """An object with a mask: polygons, or run lengths."""

    segmentation: (
        Annotated[
            list[Annotated[list[float], Field(min_length=6), AfterValidator(_even)]],
            Field(min_length=1),
        ]
        | Runs
    )

    @property
    def size(self) -> Size:
        if isinstance(self.segmentation, list):
            return 0, 0
        return self.segmentation.size[1], self.segmentation.size[0]

    @property
    def corners(self) -> Corners:
        if isinstance(self.segmentation, Runs):
            return 0, 0, *self.size
        points = np.concatenate(self.segmentation).reshape(-1, 2)
        return *points.min(0), *points.max(0)


class _File(Record):
    images: Annotated[list[_Image], Field(min_length=1)]
    annotations: list[Any]
    categories: list[_Category]


Kind = TypeVar("Kind", bound=Instance)


class CocoPicture(NamedTuple, Generic[Kind]):
    """A picture, its header, its objects, and boxes [k, 4] around them as shares of it."""

    path: Path
    header: ImageHeader
    instances: Sequence[Kind]
    boxes: NDArray[np.float64]


def read_instances(
    config: AnnotatedData, kind: type[Kind]
) -> tuple[dict[int | str, str], dict[str, list[CocoPicture[Kind]]]]:
    """Names of the categories by id, in order, and the pictures of each split.

    Annotations are the files that `config` names, or `train.json` or
    `annotations/instances_train.json` below its path, and others alike. `config.images` is the
    folder of the pictures, below the path; None for `images`, the folder of the annotations, the
    path itself, or, as COCO has it, `NAME` for `instances_NAME.json`.

    Args:
        config: Says where.
        kind: Type of the objects.

    Raises:
        ConfigError: There are no such files.
        FormatError: One is damaged, or has other categories than another one.
    """
    names: dict[int | str, str] = {}
    parts: dict[str, list[CocoPicture[Kind]]] = {}
    checks = Checks(config)
    for split, files in places(config, "{}.json", "annotations/instances_{}.json").items():
        parts[split] = []
        for file in map(Path, files):
            content = _read(file)
            found = {one.id: one.name for one in content.categories}
            if names and found != names:
                raise FormatError(f"{file} has other categories than the training data.")
            names = found
            folder = _folder(root_of(config), config.images, file, content.images)
            objects = _objects(content, kind, str(file), checks)
            for image in content.images:
                path, size = folder / image.file_name, (image.width or 0, image.height or 0)
                header = checks.header(path, str(file), size)
                fitting: list[Kind] = []
                for one in objects[image.id]:
                    with checks.at(f"{file}, annotation {one.id}"):
                        checks.compare(header, one.size, "The mask and the picture differ in size.")
                        fitting.append(one)
                where = [f"{file}, annotation {one.id}" for one in fitting]
                shares, good = checks.boxes(header, where, [one.corners for one in fitting])
                kept = [one for one, is_good in zip(fitting, good, strict=True) if is_good]
                parts[split].append(CocoPicture(path, header, kept, shares[good]))
    checks.warn()
    if len({*names.values()}) < len(names):
        _LOG.warning("Categories of the same name are one class: %s.", names)
    order = sorted(names, key=lambda key: (isinstance(key, str), key))
    return {key: names[key] for key in order}, parts


def _read(file: Path) -> _File:
    try:
        content = _File.model_validate(json.loads(file.read_bytes()))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error}.") from error
    except ValueError as error:
        raise FormatError(f"{file}{reason(error)}") from error
    for what, records in (("category", content.categories), ("image", content.images)):
        key, count = Counter(one.id for one in records).most_common(1)[0] if records else ("", 0)
        if count > 1:
            fix = f"give each {what} its own id"
            raise FormatError(f"{file}: the {what} id {key!r} occurs {count} times.", fix=fix)
    return content


def _objects(
    content: _File, kind: type[Kind], where: str, checks: Checks
) -> dict[int | str, list[Kind]]:
    """Return the good annotations of each image."""
    objects: dict[int | str, list[Kind]] = {one.id: [] for one in content.images}
    categories, ids = {one.id for one in content.categories}, set[int | str]()
    for number, values in enumerate(content.annotations, 1):
        key = values.get("id") if isinstance(values, dict) else None
        with checks.at(f"{where}, annotation {f'number {number}' if key is None else key}"):
            one = kind.model_validate(values)
            if one.id in ids:
                raise FormatError("Another annotation has the same id.")
            ids.add(one.id)
            if one.image_id not in objects:
                raise FormatError(f"There is no image {one.image_id!r}.")
            if one.category_id not in categories:
                raise FormatError(f"There is no category {one.category_id!r}.")
            objects[one.image_id].append(one)
    return objects


def _folder(root: Path, images: str | None, file: Path, pictures: Sequence[_Image]) -> Path:
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
