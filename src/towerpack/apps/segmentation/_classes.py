"""The classes of a data set."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.logs import get_logger
from towerpack._core.tables import lines_of, read_text
from towerpack.apps._label_pictures import Colour, LabelPicture, voc_colour
from towerpack.apps._splits import root_of
from towerpack.apps.segmentation._config import DataConfig

_LOG = get_logger(__name__)
_MAX_LEVEL: Final = 65535
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
        levels: Pairs of gray level and label in gray label pictures; none: levels are labels.
    """

    names: tuple[str, ...]
    colours: tuple[Colour, ...]
    void: frozenset[int] = frozenset()
    by_colour: bool = False
    levels: tuple[tuple[int, int], ...] = ()

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
            names, in_file = _read(file, config.encoding)
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

    def for_levels(self, levels: Collection[int], void: Sequence[int | str]) -> Classes:
        """Return the classes for gray label pictures of some levels.

        If a level is no label, levels belong to classes of the same colors, or else to the classes
        in order. They have no order if their number is another one, or if several of them are
        labels and the steps between them differ: 0, 1 and 255.

        Args:
            levels: Gray levels of the label pictures.
            void: As configured: levels, or names of classes.
        """
        ignored = {one for one in void if isinstance(one, int)}
        order, count = sorted({*levels} - ignored), len(self.names)
        grays = [red for red, green, blue in self.colours if red == green == blue]
        if not order or order[-1] < count:
            return self
        if self.by_colour and len(grays) == count and {*grays} >= {*order}:
            order = grays
        elif len(order) != count or (order[1] < count and len({*np.diff(order)}) > 1):
            return self
        pairs = ", ".join(f"{name}: {level}" for name, level in zip(self.names, order, strict=True))
        _LOG.warning("Label pictures are read by their gray levels (%s).", pairs)
        named = {self.names.index(one) for one in void if isinstance(one, str)}
        table = {level: VOID for level in ignored}
        table |= {level: VOID if i in named else i for i, level in enumerate(order)}
        return replace(self, levels=tuple(table.items()), void=frozenset(named))

    def read(self, picture: LabelPicture) -> NDArray[np.uint8]:
        """Return the labels in a label picture, uint8 [h, w], `VOID` where it is void.

        Raises:
            FormatError: It holds something else than classes and void.
        """
        values, table = picture.pixels, dict(self.levels) if picture.is_gray else {}
        if not picture.is_gray and self.by_colour:
            values = picture.by_colour(self.colours, self.void)
        table = table or {i: i for i in range(len(self.names))} | dict.fromkeys(self.void, VOID)
        if values.ndim > 2:
            raise FormatError(
                f"{picture.what} is in color.",
                expected="gray, or indices of a palette",
                fix="list the colors in data.colours, or in the file of data.classes",
            )
        lookup = np.full(max(_MAX_LEVEL, *table) + 2, -1, np.int16)
        lookup[[*table]] = [*table.values()]
        labels = lookup[np.minimum(values.astype(np.uint32), len(lookup) - 1)]
        if (labels < 0).any():
            row, column = np.argwhere(labels < 0)[0]
            level = values[row, column]
            fix = "name a class for each gray level, in the order of the levels"
            if len(np.unique(labels)) > 2:  # Not one class and one level: it would be the object.
                fix += f", or list {level} in data.void if its pixels do not count"
            raise FormatError(
                f"{picture.what} has the label {level} in row {row}, column {column}.",
                expected=", ".join(
                    f"{k} (void)" if v == VOID else f"{k}" for k, v in table.items()
                ),
                fix=fix,
            )
        return labels.astype(np.uint8)


def _read(file: Path, encoding: str | None) -> tuple[list[str], list[Colour | None]]:
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
