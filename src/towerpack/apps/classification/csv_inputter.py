"""Inputter of images that CSV files list with their labels."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from towerpack._core.errors import FormatError
from towerpack._core.logs import get_logger
from towerpack._core.tables import Row
from towerpack.apps._pictures import check_exist
from towerpack.apps._splits import places
from towerpack.apps.classification._image_inputter import (
    OPTIONAL_KEYS,
    Found,
    ImageInputter,
    Labels,
    Pictures,
)
from towerpack.dataflow.sources.labelled import labeled_rows, numbered

_LOG = get_logger(__name__)
_INTEGER = re.compile(r"[0-9]+", re.ASCII)


class CsvInputter(ImageInputter):
    """Inputter of CSV files with lines `path,label`, with or without a header.

    Paths are relative to the folder of the file. Labels are names or integers, in the same form in
    all files. If all class names are integers, labels are looked up among the names. Quotation
    marks are double, or single if a file begins with one. By default, the files are `train.csv`,
    `val.csv` and `test.csv` in `path`.
    """

    takes = frozenset(OPTIONAL_KEYS)

    def find(self) -> Found:
        config = self.config
        rows: dict[str, list[Row]] = {}
        for split, files in places(config, "{}.csv").items():
            lists = (labeled_rows(file, Path(file).parent, config.encoding) for file in files)
            rows[split] = list(itertools.chain.from_iterable(lists))
        every = [row for some in rows.values() for row in some]
        class_names = config.class_names
        integers = all(_INTEGER.fullmatch(row.fields[1]) for row in every)
        looked_up = class_names and (not integers or all(map(_INTEGER.fullmatch, class_names)))
        names, labels = numbered(every, class_names if looked_up else None)
        if names is None:
            names = class_names or self._of_integers(every, labels)
        parts: dict[str, Pictures] = {}
        for split, some in rows.items():
            parts[split] = Pictures([row.fields[0] for row in some], labels[: len(some)])
            labels = labels[len(some) :]
        return names, parts

    def _checked(self, classes: Sequence[str], parts: dict[str, Pictures]) -> dict[str, Pictures]:
        checked = super()._checked(classes, parts)
        check_exist([str(file) for part in checked.values() for file in part.pictures])
        return checked

    def _of_integers(self, rows: list[Row], labels: Labels) -> list[str]:
        """Return the class names for integer labels. Report labels that occur in no row."""
        count = self.config.num_classes or int(labels.max()) + 1
        present = np.unique(labels[labels >= 0])
        gaps = np.flatnonzero(present != np.arange(len(present)))
        if self.config.num_classes is None and len(gaps):
            what = f"{count - len(present)} labels from 0 to {count - 1} are not in any row"
            if gaps[0] == 0:
                raise FormatError(
                    f"Integer labels must begin at 0, got {present[0]} as the smallest label, in "
                    f"{rows[int(np.argmax(labels == present[0]))]}.",
                    fix=f"correct the labels to start at 0, or set data.num_classes={count}",
                )
            after = rows[int(np.argmax(labels == present[gaps[0]]))]
            _LOG.warning("%s. The first label after a gap is in %s.", what, after)
        return [str(i) for i in range(count)]


build = CsvInputter
