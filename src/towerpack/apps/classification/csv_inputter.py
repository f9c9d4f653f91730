"""Pictures listed in CSV files: lines `path,label`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from towerpack._core.errors import FormatError
from towerpack._core.logs import get_logger
from towerpack._core.tables import Row
from towerpack.apps._pictures import check_exist
from towerpack.apps._splits import places
from towerpack.apps.classification._image_inputter import Found, ImageInputter, Labels, Pictures
from towerpack.dataflow.sources.labelled import labelled_rows, numbered

_LOG = get_logger(__name__)
_INTEGER = re.compile(r"[0-9]+", re.ASCII)


class CsvInputter(ImageInputter):
    """`path,label`, paths relative to the file's folder, with a header or without.

    Labels are names, or integers, in all files alike; where all names of classes are integers,
    too, labels are looked up among them. Quotes are double, or single where a file begins with
    one. Without `train`, `val` and `test` the files are `train.csv`, `val.csv` and
    `test.csv` in `path`, where these exist.
    """

    takes = frozenset(
        {"path", "train", "val", "test", "validation", "num_classes", "class_names", "encoding"}
    )

    def find(self) -> Found:
        """As the files list them."""
        config = self.config
        rows = {
            split: [
                row
                for file in files
                for row in labelled_rows(file, Path(file).parent, config.encoding)
            ]
            for split, files in places(config, "{}.csv").items()
        }
        every = [row for some in rows.values() for row in some]
        given = config.class_names
        integers = all(_INTEGER.fullmatch(row.fields[1]) for row in every)
        looked_up = given and (not integers or all(map(_INTEGER.fullmatch, given)))
        names, labels = numbered(every, given if looked_up else None)
        if names is None:
            names = given or self._of_integers(every, labels)
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
        """Return names of the classes. Without `num_classes`, check that no label is missing."""
        count = self.config.num_classes or int(labels.max()) + 1
        present = np.unique(labels[labels >= 0])
        gaps = np.flatnonzero(present != np.arange(len(present)))
        if self.config.num_classes is None and len(gaps):
            what = f"Labels from 0 to {count - 1} that no row has: {count - len(present)}"
            if gaps[0] == 0:
                raise FormatError(
                    f"{what}. The smallest label is {present[0]}, in "
                    f"{rows[int(np.argmax(labels == present[0]))]}.",
                    expected="labels from 0",
                    fix=f"number the classes from 0, or set data.num_classes={count}",
                )
            after = rows[int(np.argmax(labels == present[gaps[0]]))]
            _LOG.warning("%s. The first one after a gap is in %s.", what, after)
        return [str(i) for i in range(count)]


build = CsvInputter
