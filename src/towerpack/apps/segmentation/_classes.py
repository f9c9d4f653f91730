from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from towerpack._core.deprecation import with_old_name
from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.tables import lines_of, read_text
from towerpack.apps._label_pictures import Color, open_labels, to_labels, voc_color
from towerpack.apps._splits import root_of
from towerpack.apps.segmentation._config import DataConfig

VOID: Final = 255  # label in a batch of pixels without a class
_ROW = re.compile(r"(?P<before>\d+\s+\d+\s+\d+\s+)?(?P<name>.*?)(?P<after>\s+\d+\s+\d+\s+\d+)?")


@with_old_name("of", "from_config", removed_in="0.3")
@dataclass(frozen=True)
class Classes:
    """Classes of a data set.

    Attributes:
        names: Names in the order of their labels; fewer than 255.
        colours: Same as `colors`.
        void: Labels that are ignored. Some of them may be classes.
        by_colour: Same as `by_color`.
    """

    # Checkpoints of runs contain checksums of these British names.
    names: tuple[str, ...]
    colours: tuple[Color, ...]
    void: frozenset[int] = frozenset()
    by_colour: bool = False

    @classmethod
    def from_config(cls, config: DataConfig, names: Sequence[str] | None = None) -> Classes:
        """Create the classes of a recipe.

        Args:
            config: Section `data` of the recipe.
            names: Class names in the data; None for the names in the recipe or its file.

        Raises:
            ConfigError: There are no names, or colors and void do not match the names.
        """
        colors: Sequence[Color | None] | None = config.colors
        if names is not None:
            if config.class_names or config.classes:
                raise ConfigError(
                    "The class names must not be configured, because the annotations name them.",
                    fix="remove data.class_names and data.classes",
                )
        elif config.class_names is not None:
            names = config.class_names
        else:
            file = root_of(config) / (config.classes or "classes.txt")
            names, in_file = read_classes_file(file, config.encoding)
            if colors is not None and any(in_file):
                raise ConfigError(
                    f"Only one of {file} and data.colors may define colors, but both do.",
                    fix="remove data.colors, or the colors in the file",
                )
            colors = in_file if colors is None else colors
        chosen = tuple(color for color in colors or () if color is not None)
        if len(set(names)) < len(names) or not 2 <= len(names) < VOID:
            what = "Segmentation needs 2 to 254 classes with different names."
            raise ConfigError(what, got=", ".join(names))
        if chosen and len(set(chosen)) != len(names):
            what = f"Each of the {len(names)} classes needs its own color, got {len(set(chosen))}."
            raise ConfigError(what)
        void = set()
        for value in config.void:
            if isinstance(value, str) and value not in names:
                raise ConfigError(
                    f"data.void must contain labels or class names, got {value!r}.",
                    expected=", ".join(names),
                )
            void.add(value if isinstance(value, int) else list(names).index(value))
        usual = tuple(map(voc_color, range(len(names))))
        return cls(tuple(names), chosen or usual, frozenset(void), bool(chosen))

    @property
    def colors(self) -> tuple[Color, ...]:
        """Color of each class; Pascal VOC's colors if none are configured."""
        return self.colours

    @property
    def by_color(self) -> bool:
        """Whether colors are configured, so that label images may be color images."""
        return self.by_colour

    @property
    def counted(self) -> NDArray[np.bool_]:
        """Mask of the classes that metrics count, bool [classes]: False for void classes."""
        return np.array([i not in self.void for i in range(len(self.names))])

    def read(self, file: str, where: str) -> NDArray[np.uint8]:
        """Read a label image, uint8 [h, w]. Void pixels are `VOID`.

        Args:
            file: Name of the file.
            where: Place where the file is named, such as a line of a list, for errors.

        Raises:
            FormatError: The file cannot be read, or has labels that are neither classes nor void.
        """
        what = f"{where}: the label picture {file}"
        return self.labels_of(*open_labels(file, what), what)

    def labels_of(
        self, pixels: NDArray[Any], palette: NDArray[np.int64] | None, what: str
    ) -> NDArray[np.uint8]:
        """Return the labels of an opened label image, uint8 [h, w]. Void pixels are `VOID`.

        Args:
            pixels: Labels or palette indices [h, w], or colors [h, w, 3].
            palette: Colors [colors, 3] of indices, or None.
            what: Name of the image, for errors.

        Raises:
            FormatError: The image contains labels that are not classes or void.
        """
        labels = to_labels(pixels, palette, self.colors if self.by_color else None, what)
        void = np.isin(labels, list(self.void))
        bad = ~void & (labels >= len(self.names))
        if bad.any():
            row, column = np.argwhere(bad)[0]
            known = "".join(f", {v} (void)" for v in sorted(self.void))
            raise FormatError(
                f"{what} must have only labels of classes, got {labels[row, column]} in "
                f"row {row}, column {column}.",
                expected=f"0 to {len(self.names) - 1}{known}",
                fix=_fix_of(labels, len(self.names)),
            )
        return np.where(void, VOID, labels).astype(np.uint8)


def _fix_of(labels: NDArray[np.int64], count: int) -> str:
    levels = np.unique(labels).tolist()
    if len(levels) > count:
        return "add classes, or list the ignored values in data.void"
    shown = [[v, v, v] for v in levels] if len(levels) == count else "[[0,0,0],[255,255,255],…]"
    return f"set data.colors to {shown} if gray levels represent the classes"


def read_classes_file(
    file: Path, encoding: str | None = None
) -> tuple[list[str], list[Color | None]]:
    """Read the class names in a file, and the color of each class or None."""
    if not file.is_file():
        raise ConfigError(
            f"The file {file} with the names of the classes does not exist.",
            fix="set data.classes to a file, or list the names in data.class_names",
        )
    names: list[str] = []
    colors: list[Color | None] = []
    for line in lines_of(read_text(file, encoding)):
        row = _ROW.fullmatch(line.replace(",", " ").strip())
        if row is None or not row["name"].strip():
            continue
        numbers = [int(n) for n in (row["before"] or row["after"] or "").split()]
        names.append(row["name"].strip())
        colors.append((numbers[0], numbers[1], numbers[2]) if numbers else None)
    if None in colors and any(colors):
        name = names[colors.index(None)]
        raise FormatError(f"{file}: all classes or none must have colors, but {name} has none.")
    return names, colors
