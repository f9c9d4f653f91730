"""The classes of a data set."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.tables import lines_of, read_text
from towerpack.apps._label_pictures import Colour, open_labels, to_labels, voc_colour
from towerpack.apps._splits import root_of
from towerpack.apps.segmentation._config import DataConfig

VOID: Final = 255
"""What pixels without a class are in a batch."""
_ROW = re.compile(r"(?P<before>\d+\s+\d+\s+\d+\s+)?(?P<name>.*?)(?P<after>\s+\d+\s+\d+\s+\d+)?")


@dataclass(frozen=True)
class Classes:
    """The classes of a data set.

    Attributes:
        names: In the order of their labels; fewer than 255.
        colours: Red, green, blue of each; those of Pascal VOC where none were given.
        void: Labels that do not count, some of which may be classes.
        by_colour: Colours were given, so that label pictures may be in colour.
    """

    names: tuple[str, ...]
    colours: tuple[Colour, ...]
    void: frozenset[int] = frozenset()
    by_colour: bool = False

    @classmethod
    def of(cls, config: DataConfig, names: Sequence[str] | None = None) -> Classes:
        """Those of a recipe.

        Args:
            config: Says them, or which file does.
            names: The data's own, instead.

        Raises:
            ConfigError: There are no names, or colours and void do not fit them.
            FormatError: The file makes no sense.
        """
        colours: Sequence[Colour | None] | None = config.colours
        if names is not None:
            if config.class_names or config.classes:
                raise ConfigError(
                    "The data name their classes themselves.",
                    fix="remove data.class_names and data.classes",
                )
        elif config.class_names is not None:
            names = config.class_names
        else:
            file = root_of(config) / (config.classes or "classes.txt")
            names, in_file = read_classes_file(file, config.encoding)
            if colours is not None and any(in_file):
                raise ConfigError(
                    f"{file} and data.colours both name colours.",
                    fix="remove data.colours, or the colours in the file",
                )
            colours = in_file if colours is None else colours
        given = [c for c in colours or () if c is not None]
        if len(set(names)) < len(names) or not 2 <= len(names) < VOID:
            raise ConfigError(f"{len(names)} classes.", expected="2 to 254 different names")
        if given and len(set(given)) != len(names):
            raise ConfigError(f"{len(set(given))} different colours for {len(names)} classes.")
        void = set()
        for one in config.void:
            if isinstance(one, str) and one not in names:
                raise ConfigError(f"data.void: there is no class {one!r}.", got=", ".join(names))
            void.add(one if isinstance(one, int) else list(names).index(one))
        made = tuple(given) or tuple(voc_colour(i) for i in range(len(names)))
        return cls(tuple(names), made, frozenset(void), bool(given))

    @property
    def counted(self) -> NDArray[np.bool_]:
        """False for classes that are void: bool [classes]."""
        return np.array([i not in self.void for i in range(len(self.names))])

    def read(self, file: str, where: str) -> NDArray[np.uint8]:
        """A label picture, uint8 [h, w], `VOID` where it is void.

        Args:
            file: Its name.
            where: The line that names it.

        Raises:
            FormatError: It cannot be read, or holds something else than classes and void.
        """
        what = f"{where}: the label picture {file}"
        return self.labels_of(*open_labels(file, what), what)

    def labels_of(
        self, pixels: NDArray[Any], palette: NDArray[np.int64] | None, what: str
    ) -> NDArray[np.uint8]:
        """Return the labels of an opened label picture, as `read` does."""
        labels = to_labels(pixels, palette, self.colours if self.by_colour else None, what)
        void = np.isin(labels, list(self.void))
        bad = ~void & (labels >= len(self.names))
        if bad.any():
            row, column = np.argwhere(bad)[0]
            known = "".join(f", {v} (void)" for v in sorted(self.void))
            raise FormatError(
                f"{what} has the label {labels[row, column]} in row {row}, column {column}.",
                expected=f"0 to {len(self.names) - 1}{known}",
                fix=_fix_of(labels, len(self.names)),
            )
        return np.where(void, VOID, labels).astype(np.uint8)


def _fix_of(labels: NDArray[np.int64], count: int) -> str:
    """Return advice for a picture with labels that are not 0 to `count` - 1."""
    levels = np.unique(labels).tolist()
    if len(levels) > count:
        return "add classes, or list the values to be ignored in data.void"
    shown = [[v, v, v] for v in levels] if len(levels) == count else "[[0,0,0],[255,255,255],…]"
    return f"set data.colours to {shown}, if grey levels stand for the classes"


def read_classes_file(
    file: Path, encoding: str | None = None
) -> tuple[list[str], list[Colour | None]]:
    """Return the names of classes, and the color of each, or None without colors."""
    if not file.is_file():
        raise ConfigError(
            f"The names of the classes are not in {file}.",
            fix="set data.classes to a file, or list the names in data.class_names",
        )
    names: list[str] = []
    colours: list[Colour | None] = []
    for line in lines_of(read_text(file, encoding)):
        row = _ROW.fullmatch(line.replace(",", " ").strip())
        if row is None or not row["name"].strip():
            continue
        numbers = [int(n) for n in (row["before"] or row["after"] or "").split()]
        names.append(row["name"].strip())
        colours.append((numbers[0], numbers[1], numbers[2]) if numbers else None)
    if None in colours and any(colours):
        raise FormatError(f"{file}: {names[colours.index(None)]} has no colour, others have.")
    return names, colours
