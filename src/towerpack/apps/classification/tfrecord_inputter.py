"""Inputter of images in TFRecord files in TF-Slim's format."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack.apps._splits import places, relative_name, root_of
from towerpack.apps.classification._image_inputter import Found, ImageInputter, Labels, Pictures
from towerpack.dataflow import TFRecordData
from towerpack.dataflow.formats import FixedFeature
from towerpack.dataflow.formats._tfrecord import TFRecordNode
from towerpack.dataflow.images import decode_image

_IMAGE, _LABEL = "image/encoded", "image/class/label"
_FEATURES = {_IMAGE: FixedFeature((), bytes), _LABEL: FixedFeature((), np.int64)}


class TFRecordInputter(ImageInputter):
    """Inputter of `tf.train.Example` records with an encoded image and its label.

    `train`, `val` and `test` are files or patterns below `path`, by default `train.tfrecord` and so
    on. The keys are `image/encoded` and `image/class/label`. Set `class_names` or `num_classes`,
    because labels are not read before training.
    """

    takes = frozenset({"path", "train", "val", "test", "validation", "num_classes", "class_names"})

    def find(self) -> Found:
        names = self.config.class_names or [str(i) for i in range(self.config.num_classes or 0)]
        if not names:
            raise ConfigError(
                "TFRecord data need the number or the names of the classes.",
                fix="set data.num_classes or data.class_names",
            )
        parts: dict[str, Pictures] = {}
        for split, patterns in places(self.config, "{}.tfrecord").items():
            store = _RecordReader(patterns, len(names))
            numbers = np.arange(cast("int", store.node.size))
            parts[split] = Pictures(numbers, np.zeros(len(numbers), np.int64), store)
        return names, parts

    def names_of(self, part: Pictures) -> Sequence[str]:
        """Return a name for each record: its file below `path`, and its position in the file."""
        store, root = cast("_RecordReader", part.decode), root_of(self.config)
        places_of = (store.node.place_of(int(number))[:2] for number in part.pictures)
        return [
            f"{relative_name(str(store.paths[file]), root)}:{start}" for file, start in places_of
        ]

    def class_counts(self, split: str = "train") -> Labels:
        """Return the number of images of each class. Reads all records of the split."""
        part = self.part(split)
        labels = [part.decode((number, None))[1] for number in part.pictures]
        return np.bincount(labels, minlength=self.num_classes)


class _RecordReader:
    def __init__(self, patterns: Sequence[str], num_classes: int) -> None:
        sources = [TFRecordData(pattern) for pattern in patterns]
        self.paths = [path for source in sources for path in source.paths]
        if any(source.in_order_only for source in sources):
            raise ConfigError(
                f"TFRecord files must not be compressed, because they are shuffled: "
                f"{', '.join(patterns)}.",
                fix="set data.train to uncompressed files",
            )
        self.node = TFRecordNode(self.paths, _FEATURES)
        self.num_classes = num_classes

    def __call__(self, datapoint: tuple[Any, Any]) -> tuple[NDArray[np.uint8], int]:
        number = int(datapoint[0])
        record = cast("dict[str, Any]", self.node.get(0, number))
        file, start, _ = self.node.place_of(number)
        name, label = f"{self.paths[file]} (byte {start:,})", int(record[_LABEL])
        if not 0 <= label < self.num_classes:
            raise FormatError(
                f"The label of {name} must be from 0 to {self.num_classes - 1}, got {label}."
            )
        return decode_image(record[_IMAGE], name=name), label
