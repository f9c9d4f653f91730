"""Pictures in TFRecord files, as TensorFlow's Slim writes them."""

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
    """Records of `tf.train.Example` with `image/encoded` (a file) and `image/class/label`.

    `train`, `val` and `test` are files or patterns below `path`, by default `train.tfrecord` and
    its like. Either `class_names` or `num_classes` is needed: labels are read with their pictures.
    """

    takes = frozenset({"path", "train", "val", "test", "validation", "num_classes", "class_names"})

    def find(self) -> Found:
        """As the files hold them."""
        names = self.config.class_names or [str(i) for i in range(self.config.num_classes or 0)]
        if not names:
            raise ConfigError(
                "The number of classes is not known.",
                fix="set data.num_classes or data.class_names",
            )
        given = places(self.config, "{}.tfrecord")
        parts: dict[str, Pictures] = {}
        for split, patterns in given.items():
            store = _RecordReader(patterns, len(names))
            numbers = np.arange(cast("int", store.node.size))
            parts[split] = Pictures(numbers, np.zeros(len(numbers), np.int64), store)
        return names, parts

    def names_of(self, part: Pictures) -> Sequence[str]:
        """Return a name for each record: its file below `path`, and its place in the file."""
        store, root = cast("_RecordReader", part.decode), root_of(self.config)
        places_of = (store.node.find(int(number))[:2] for number in part.pictures)
        return [f"{relative_name(store.paths[file], root)}:{start}" for file, start in places_of]

    def class_counts(self, split: str = "train") -> Labels:
        """As the base; all records of the split are read."""
        part = self.part(split)
        labels = [part.decode((number, None))[1] for number in part.pictures]
        return np.bincount(labels, minlength=self.num_classes)


class _RecordReader:
    """Read records of several files by their number."""

    def __init__(self, patterns: Sequence[str], num_classes: int) -> None:
        self.paths = [path for pattern in patterns for path in TFRecordData(pattern).paths]
        if TFRecordData(self.paths).in_order_only:
            raise ConfigError(
                f"Compressed records cannot be shuffled: {', '.join(patterns)}.",
                fix="set data.train to files that are not compressed",
            )
        self.node = TFRecordNode(self.paths, _FEATURES)
        self.num_classes = num_classes

    def __call__(self, datapoint: tuple[Any, Any]) -> tuple[NDArray[np.uint8], int]:
        number = int(datapoint[0])
        found = cast("dict[str, Any]", self.node.get(0, number))
        file, start, _ = self.node.find(number)
        name, label = f"{self.paths[file]} (byte {start:,})", int(found[_LABEL])
        if not 0 <= label < self.num_classes:
            raise FormatError(
                f"{name} has the label {label}.", expected=f"0 to {self.num_classes - 1}"
            )
        return decode_image(found[_IMAGE], name=name), label
