"""COCO's annotations of instances: JSON files that name pictures, categories and objects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from towerpack._core.errors import ConfigError, FormatError
from towerpack.apps._splits import Places, places, root_of

Json = Mapping[str, Any]


@dataclass(frozen=True)
class CocoPicture:
    """A picture and its annotations.

    Attributes:
        path: Of the file.
        entry: That of the picture among the `images`.
        annotations: Those of the picture.
        where: The file of annotations, for messages.
    """

    path: Path
    entry: Json
    annotations: Sequence[Json]
    where: str


def read_instances(
    config: Places, images: str | None
) -> tuple[dict[int, str], dict[str, list[CocoPicture]]]:
    """Names of the categories by id, in order, and the pictures of each split.

    Annotations are the files that `config` names, or `train.json` or
    `annotations/instances_train.json` below its path, and others alike.

    Args:
        config: Says where.
        images: The folder of the pictures, below the path; None for `images`, the folder of the
            annotations, the path itself, or, as COCO has it, `NAME` for `instances_NAME.json`.

    Raises:
        ConfigError: There are no such files.
        FormatError: One is damaged, or has other categories than another one.
    """
    names: dict[int, str] = {}
    parts: dict[str, list[CocoPicture]] = {}
    for split, files in places(config, "{}.json", "annotations/instances_{}.json").items():
        parts[split] = []
        for file in map(Path, files):
            try:
                content = json.loads(file.read_bytes())
                found = {int(one["id"]): str(one["name"]) for one in content["categories"]}
                objects: dict[Any, list[Json]] = {one["id"]: [] for one in content["images"]}
                for one in content["annotations"]:
                    objects[one["image_id"]].append(one)
                entries = [(str(one["file_name"]), one) for one in content["images"]]
            except OSError as error:
                raise ConfigError(f"{file} cannot be read: {error}.") from error
            except (KeyError, TypeError, ValueError) as error:
                raise FormatError(f"{file} is damaged: {error!r}.") from error
            if not entries:
                raise FormatError(f"{file} names no pictures.")
            if names and found != names:
                raise FormatError(f"{file} has other categories than the training data.")
            names = found
            folder = _folder(root_of(config), images, file, entries[0][0])
            parts[split] += [
                CocoPicture(folder / name, entry, objects[entry["id"]], str(file))
                for name, entry in entries
            ]
    return dict(sorted(names.items())), parts


def _folder(root: Path, images: str | None, file: Path, picture: str) -> Path:
    usual = [root / "images", file.parent, root, root / file.stem.partition("_")[2]]
    folders = usual if images is None else [root / images]
    for folder in folders:
        if (folder / picture).is_file():
            return folder
    raise ConfigError(
        f"There is no picture {picture} in {', '.join(map(str, folders))}.",
        fix="set data.images to the folder of the pictures",
    )
