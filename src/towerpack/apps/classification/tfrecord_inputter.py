"""Pictures in TFRecord files, as TensorFlow's Slim writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack.apps.classification._data_config import DataConfig
from towerpack.apps.classification._image_inputter import (
    Encoded,
    Found,
    ImageInputter,
    Labels,
    Part,
)
from towerpack.apps.classification._splits import folder_of, places
from towerpack.apps.classification.augmenters import Augmenter
from towerpack.dataflow import DataFlow, TFRecordData
from towerpack.dataflow.formats import FixedFeature
from towerpack.dataflow.formats._tfrecord import TFRecordNode
from towerpack.dataflow.formats._tfrecord_index import index_files

_IMAGE, _LABEL = "image/encoded", "image/class/label"
_FEATURES = {_IMAGE: FixedFeature((), bytes), _LABEL: FixedFeature((), np.int64)}


class TFRecordInputter(ImageInputter):
    """Records of `tf.train.Example` with `image/encoded` (a file) and `image/class/label`.

    `train`, `val` and `test` are files or patterns below `path`, by default `train.tfrecord` and
    its like. Either `class_names` or `num_classes` is needed: labels are read with their pictures.
    """

    takes = frozenset({"path", "train", "val", "test", "validation", "num_classes", "class_names"})

    def find(self) -> Found:
        """As the files hold them."""
        names = self.config.class_names or [str(i) for i in range(self.config.num_classes or 0)]
        if len(set(names)) != (self.config.num_classes or len(names)) or not names:
            raise ConfigError(
                "The number of classes is not known.",
                got=f"num_classes={self.config.num_classes}, {len(set(names))} class_names",
                fix="data.num_classes=N, or data.class_names=[…]",
            )
        given = places(self.config, "{}.tfrecord")
        if "train" not in given:
            raise ConfigError(
                f"There is no train.tfrecord in {folder_of(self.config)}.",
                fix="data.train='train-*'",
            )
        parts = {split: _Records(_Store(patterns, len(names))) for split, patterns in given.items()}
        return names, parts


class _Store:
    """Reads records of several files by their number."""

    def __init__(self, patterns: Sequence[str], num_classes: int) -> None:
        self.paths = [path for pattern in patterns for path in TFRecordData(pattern).paths]
        if TFRecordData(self.paths).in_order_only:
            raise ConfigError(
                f"Compressed records cannot be shuffled: {', '.join(patterns)}.",
                fix="decompress the files",
            )
        self.index = index_files(self.paths, None)
        self.node = TFRecordNode(self.paths, self.index, _FEATURES)
        self.num_classes = num_classes

    def __call__(self, number: int) -> tuple[Encoded, int]:
        found = cast("dict[str, Any]", self.node.get(0, number))
        file, start, _ = self.index.find(number)
        name, label = f"{self.paths[file]} (byte {start:,})", int(found[_LABEL])
        if not 0 <= label < self.num_classes:
            raise FormatError(
                f"{name} has the label {label}.", expected=f"0 to {self.num_classes - 1}"
            )
        return Encoded(found[_IMAGE], name), label


class _Records(Part):
    """Some records, or all."""

    def __init__(self, store: _Store, numbers: NDArray[np.intp] | None = None) -> None:
        self.store = store
        self.numbers = np.arange(store.index.ends[-1]) if numbers is None else numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def read_labels(self) -> Labels:
        return np.array([self.store(int(number))[1] for number in self.numbers], np.int64)

    def flow(self) -> DataFlow:
        return _RecordFlow(self)

    def take(self, positions: NDArray[np.intp]) -> Part:
        return _Records(self.store, self.numbers[positions])

    def strata(self) -> Labels:
        # Labels are in the records, and these may be many gigabytes.
        return np.zeros(len(self), np.int64)


class _RecordFlow(DataFlow):
    def __init__(self, records: _Records) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, i: int) -> tuple[Encoded, int]:
        return self.records.store(int(self.records.numbers[i]))


def build(config: DataConfig, augmenter: Augmenter) -> TFRecordInputter:
    """The inputter."""
    return TFRecordInputter(config, augmenter)
