"""COCO's annotations of instances: JSON files that name pictures, categories and objects."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Generic, Self, TypeVar

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
from towerpack.apps._splits import Places, path_below, places, root_of

_LOG = get_logger(__name__)


@dataclass
class BadAnnotations:
    """Refuse annotations that cannot be used, or count them, as the policy says.

    Attributes:
        policy: 'error' or 'skip'.
        skipped: Place and fault of each annotation that was left out.
    """

    policy: str
    skipped: list[str] = field(default_factory=list)

    def add(self, where: str, what: str, got: str | None = None) -> None:
        """Note one.

        Raises:
            FormatError: They are errors.
        """
        if self.policy == "error":
            fix = "correct it, or set data.bad_boxes=skip to leave such annotations out"
            raise FormatError(f"{where}: {what}", got=got, fix=fix)
        self.skipped.append(f"{where}: {what}")

    def tell(self) -> None:
        """Warn once of what was left out."""
        if self.skipped:
            count, first = len(self.skipped), self.skipped[0]
            _LOG.warning("%d annotations were left out; the first: %s", count, first)


class Record(BaseModel):
    """An object of a file of annotations; what else it holds is ignored."""

    model_config = ConfigDict(allow_inf_nan=False, coerce_numbers_to_str=True)


def _integer_if_possible(value: Any) -> Any:
    # Some programs write the same number as text in one place and as a number in another.
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    if value is None or isinstance(value, bool | list | dict):
        raise ValueError("is no id")
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _polygon(points: list[float]) -> list[float]:
    if len(points) < 6 or len(points) % 2:
        raise ValueError("a polygon has at least 3 points, x and y of each")
    return points


Id = Annotated[int | str, BeforeValidator(_integer_if_possible)]
Size = Annotated[float, BeforeValidator(lambda value: value or 0), Field(ge=0)]


class Category(Record):
    """A class."""

    id: Id
    name: Annotated[str, Field(min_length=1)]


class Picture(Record):
    """A picture. Its sizes are 0 if the file does not state them."""

    id: Id
    file_name: str
    width: Size = 0
    height: Size = 0


class Annotation(Record):
    """An object in a picture."""

    id: Id | None = None
    image_id: Id
    category_id: Id
    iscrowd: Annotated[bool, BeforeValidator(lambda value: value or False)] = False


class Box(Annotation):
    """An object with a box: x and y of a corner, width, height."""

    bbox: tuple[float, float, float, float]
    area: Annotated[float, Field(ge=0)] | None = None


class RunLengths(Record):
    """A mask as lengths of runs, written as numbers or, compressed, as text."""

    counts: list[int] | str
    size: tuple[int, int]

    @model_validator(mode="after")
    def _check(self) -> Self:
        # pycocotools would read memory behind runs that are too short.
        runs = _decoded(self.counts) if isinstance(self.counts, str) else self.counts
        if min(runs, default=0) < 0 or sum(runs) != self.size[0] * self.size[1]:
            raise ValueError(f"the runs are not of {self.size[0]} x {self.size[1]} pixels")
        if not any(runs[1::2]):
            raise ValueError("the mask is empty")
        return self


class Mask(Annotation):
    """An object with a mask."""

    segmentation: (
        Annotated[list[Annotated[list[float], AfterValidator(_polygon)]], Field(min_length=1)]
        | RunLengths
    )


def _decoded(counts: str) -> list[int]:
    """Return the lengths in pycocotools' text: 5 bits and a continuation bit in a character.

    From the fourth length on, the difference to the last but one is stored.
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
    """A picture and its annotations.

    Attributes:
        path: Of the file.
        entry: That of the picture among the `images`.
        annotations: Those of the picture, with their places for messages.
        where: The file of annotations, for messages.
    """

    path: Path
    entry: Picture
    annotations: Sequence[tuple[str, A]]
    where: str


def read_instances(
    config: Places, images: str | None, kind: type[A], bad: BadAnnotations
) -> tuple[dict[int | str, str], dict[str, list[CocoPicture[A]]]]:
    """Names of the categories by id, in order, and the pictures of each split.

    Annotations are the files that `config` names, or `train.json` or
    `annotations/instances_train.json` below its path, and others alike.

    Args:
        config: Says where.
        images: The folder of the pictures, below the path; None for `images`, the folder of the
            annotations, the path itself, or, as COCO has it, `NAME` for `instances_NAME.json`.
        kind: What is wanted of each annotation.
        bad: Is told of annotations that cannot be used.

    Raises:
        ConfigError: There are no such files.
        FormatError: One is damaged, or has other categories than another one.
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
            _check_unique(file, "categories", "id", [one.id for one in categories])
            _check_unique(file, "images", "id", [one.id for one in pictures])
            found = {one.id: one.name for one in categories}
            if not pictures:
                raise FormatError(f"{file} names no pictures.")
            if names and found != names:
                raise FormatError(f"{file} has other categories than the training data.")
            names = found
            objects: dict[int | str, list[tuple[str, A]]] = {one.id: [] for one in pictures}
            ids: set[int | str] = set()
            for number, raw in enumerate(_list(content, "annotations", file)):
                told = raw.get("id", f"number {number}") if isinstance(raw, Mapping) else number
                where = f"{file}, annotation {told}"
                try:
                    one = kind.model_validate(raw)
                except ValidationError as error:
                    bad.add(where, text_of(error))
                    continue
                if one.id is not None and one.id in ids:
                    bad.add(where, "another annotation has the same id.")
                elif one.category_id not in found:
                    bad.add(where, f"there is no category {one.category_id!r}.")
                elif one.image_id not in objects:
                    bad.add(where, f"there is no picture with the id {one.image_id!r}.")
                else:
                    objects[one.image_id].append((where, one))
                ids |= {one.id} if one.id is not None else set()
            files_of = [one.file_name.replace("\\", "/") for one in pictures]
            folder = _folder(root_of(config), images, file, files_of[0])
            parts[split] += [
                CocoPicture(
                    path_below(folder, name, root_of(config), str(file)),
                    entry,
                    objects[entry.id],
                    str(file),
                )
                for name, entry in zip(files_of, pictures, strict=True)
            ]
    used = {a.category_id for some in parts.values() for p in some for _, a in p.annotations}
    names = _without_unused(names, used, config)
    order = sorted(names, key=lambda key: (isinstance(key, str), key))
    return {key: names[key] for key in order}, parts


def _without_unused(
    names: Mapping[int | str, str], used: set[int | str], config: Places
) -> dict[int | str, str]:
    """Leave out categories without annotations that have the name of another one.

    Roboflow writes such a category for the whole data set.
    """
    firsts: dict[str, int | str] = {}
    for key in sorted(names, key=lambda key: key not in used):
        if firsts.setdefault(names[key], key) != key and key in used:
            raise FormatError(
                f"{root_of(config)}: several categories have the name {names[key]!r}.",
                got=f"the ids {firsts[names[key]]} and {key}, both of which annotations have",
            )
    return {key: name for key, name in names.items() if firsts[name] == key}


def _content(file: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error}.") from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{file} is no JSON: {error}.") from error
    if not isinstance(content, dict):
        raise FormatError(f"{file} holds a {type(content).__name__}.", expected="a JSON object")
    return content


def _list(content: Mapping[str, Any], key: str, file: Path) -> list[Any]:
    found = content.get(key)
    if not isinstance(found, list):
        raise FormatError(f"{file} has no list '{key}'.", got=", ".join(content))
    return found


R = TypeVar("R", bound=Record)


def _records(content: Mapping[str, Any], key: str, kind: type[R], file: Path) -> list[R]:
    found: list[R] = []
    for number, raw in enumerate(_list(content, key, file)):
        try:
            found.append(kind.model_validate(raw))
        except ValidationError as error:
            raise FormatError(f"{file}, {key}, number {number}: {text_of(error)}") from error
    return found


def _check_unique(file: Path, key: str, what: str, values: Sequence[int | str]) -> None:
    twice = [value for value, count in Counter(values).items() if count > 1]
    if twice:
        raise FormatError(f"{file}: several {key} have the {what} {twice[0]!r}.")


def text_of(error: ValidationError) -> str:
    """Return the first fault, with its place."""
    first = error.errors()[0]
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
        f"There is no picture {picture} in {', '.join(map(str, folders))}.",
        fix="set data.images to the folder of the pictures",
    )
