"""Labelled pictures as batches: what all sources of them have in common."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack.apps._inputter import Inputter, Split
from towerpack.apps._pictures import PictureInputter, read_picture
from towerpack.apps._splits import Name, held_out, relative_name, root_of, subset
from towerpack.apps.classification._data_config import DataConfig
from towerpack.apps.classification.augmenters import Augmenter
from towerpack.config import Registry
from towerpack.dataflow import (
    AugmentImageComponent,
    BatchData,
    DataFlow,
    DataFromArrays,
    DataFromList,
    MapData,
    PrefetchData,
    ShuffleData,
)
from towerpack.dataflow.images import AugmentorList, MapImage
from towerpack.ops.geometry import colours

Labels = NDArray[np.int64]

_HERE = "towerpack.apps.classification"
_INPUTTERS = {
    "csv": "csv_inputter:CsvInputter",
    "folder": "folder_inputter:FolderInputter",
    "tfrecord": "tfrecord_inputter:TFRecordInputter",
    "digits": "data_sets:DigitsInputter",
    "imagenet_classes": "data_sets:ImagenetClassesInputter",
    **dict.fromkeys(("cifar10", "cifar100"), "data_sets:CifarInputter"),
    **dict.fromkeys(("mnist", "fashion_mnist"), "data_sets:MnistInputter"),
}
_AUGMENTERS = (
    "none", "cifar", "vgg", "inception", "randaugment", "digits", "efficientnet_lite", "unmirrored"
)  # fmt: skip
_SOME_APPLY = (
    *("path", "train", "val", "test", "validation"),
    *("num_classes", "class_names", "encoding"),
)

INPUTTERS: Registry[Callable[..., Inputter]] = Registry(
    "inputter", {name: f"{_HERE}.{where}" for name, where in _INPUTTERS.items()}
)
"""Functions `(config, augmenter) -> Inputter`."""

AUGMENTERS: Registry[Augmenter] = Registry(
    "augmenter", {name: f"{_HERE}.augmenters:{name}" for name in _AUGMENTERS}
)


def decoded(datapoint: Any) -> tuple[NDArray[np.uint8], Any]:
    """(picture, label) of what `Pictures` hold: files decoded to red, green, blue.

    Raises:
        FormatError: A file is no picture, or a damaged one.
    """
    picture, label = datapoint
    return picture if isinstance(picture, np.ndarray) else read_picture(picture), label


@dataclass(frozen=True)
class Pictures:
    """Labelled pictures: those of a split.

    Attributes:
        pictures: uint8 [n, h, w] or [n, h, w, c]; or names of files.
        labels: int64 [n].
        decode: From (picture, label) to (uint8 [h, w] or [h, w, 1 or 3], label).
    """

    pictures: NDArray[Any] | Sequence[str]
    labels: Labels
    decode: Callable[[Any], Any] = decoded

    def __len__(self) -> int:
        return len(self.labels)

    def flow(self) -> DataFlow:
        """(picture, label) in order, not decoded."""
        if isinstance(self.pictures, np.ndarray):
            return DataFromArrays(self.pictures, self.labels)
        return DataFromList(list(zip(self.pictures, self.labels.tolist(), strict=True)))

    def take(self, positions: NDArray[np.intp]) -> Pictures:
        """Those at some positions."""
        pictures: Any = self.pictures
        array = isinstance(pictures, np.ndarray)
        some = pictures[positions] if array else [pictures[i] for i in positions]
        return replace(self, pictures=some, labels=self.labels[positions])


def joined(parts: Sequence[Pictures]) -> Pictures:
    """Several lists of files as one."""
    files = itertools.chain.from_iterable(part.pictures for part in parts)
    return Pictures([str(file) for file in files], np.concatenate([p.labels for p in parts]))


Found = tuple[Sequence[str], Mapping[str, Pictures]]
"""Names of the classes, and the pictures of each split."""


class ImageInputter(PictureInputter):
    """Base of inputters of labelled pictures. A subclass says `takes` and defines `find`.

    Batches are (image uint8 [n, height, width, channels], label int64 [n]).

    Args:
        config: Which data, and how.
        augmenter: What happens to pictures.

    Attributes:
        config: As given.
        augmenter: As given; `normalize` is for the network's graph.
        geometry: From a decoded picture to the network's input, where nothing is random.

    Raises:
        ConfigError: A field does not apply to these data.
    """

    takes: ClassVar[frozenset[str]] = frozenset()
    """Which of the fields apply that do not apply to all inputters."""

    def __init__(self, config: DataConfig, augmenter: Augmenter) -> None:
        self._refuse_others(config)
        self.config = config
        self.augmenter = augmenter
        self.batch_size = config.batch_size
        self.geometry = replace(augmenter.geometry(config.size), channels=config.channels)

    @abstractmethod
    def find(self) -> Found:
        """Names of the classes, and the pictures of each split."""

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def splits(self) -> Sequence[str]:
        """Those of 'train', 'val' and 'test' that there are."""
        return [split for split in ("train", "val", "test") if split in self.parts]

    def part(self, split: str) -> Pictures:
        """The pictures of a split.

        Raises:
            ConfigError: There are none.
        """
        parts = self.parts
        if split not in parts:
            can_divide = split == "val" and "validation" in self.takes
            also = "set data.validation above 0" if can_divide else "use --split val"
            raise ConfigError(
                f"There are no data '{split}'.",
                got=", ".join(f"{name}: {len(part)}" for name, part in parts.items()),
                fix=f"set data.{split} to files or folders, or {also}",
            )
        return parts[split]

    def names_of(self, part: Pictures) -> Sequence[Name]:
        """Return a name for each picture: that of its file below `path`, or its content."""
        if isinstance(part.pictures, np.ndarray):
            return [picture.tobytes() for picture in part.pictures]
        root = root_of(self.config)
        return [relative_name(file, root) for file in part.pictures]

    def row_names(self, split: Split) -> Sequence[Name]:
        """Return the names of a split's pictures."""
        return self.names_of(self.part(split))

    def divided(self, part: Pictures, split: Literal["test", "val"]) -> tuple[Pictures, Pictures]:
        """Return the pictures that are left, and the share `validation` of them for a split."""
        chosen = held_out(self.names_of(part), self.config.validation, split, part.labels)
        return part.take(np.flatnonzero(~chosen)), part.take(np.flatnonzero(chosen))

    def source(self, split: str, shuffle: bool = False) -> DataFlow:
        """(picture uint8 of any size, label) of a split, decoded."""
        part = self.part(split)
        return MapData(ShuffleData(part.flow()) if shuffle else part.flow(), part.decode)

    def class_counts(self, split: str = "train") -> Labels:
        """How many pictures each class has: int64 [classes]."""
        return np.bincount(self.part(split).labels, minlength=self.num_classes)

    def flow(self, split: Split) -> DataFlow:
        training, config, num = split == "train", self.config, len(self.part(split))
        if training and num < self.batch_size:
            raise ConfigError(
                f"{num} training pictures are no batch.",
                expected=f"at least batch_size={self.batch_size}",
                fix="set data.batch_size to a smaller number",
            )
        shape = (*config.size, config.channels)
        if training and config.synthetic:
            label = np.arange(self.batch_size, dtype=np.int64) % self.num_classes
            batch = np.full((self.batch_size, *shape), 128, np.uint8), label
            return DataFromList([batch] * (num // self.batch_size))
        # Not a method, with which workers would be sent all data.
        check = partial(_checked, shape=shape, augmenter=self.augmenter.name)
        change = self.augmenter.train(config.size) if training else [self.geometry.scaling()]
        augmentors = [colours(config.channels), *change, MapImage(check)]
        ds = AugmentImageComponent(self.source(split, training), augmentors, copy=False)
        ds = BatchData(ds, self.batch_size, remainder=not training)
        return PrefetchData(ds, num_proc=config.workers) if config.workers else ds

    def prepare(self, sample: Any) -> tuple[NDArray[np.uint8]]:
        """(uint8 [height, width, channels],)."""
        return (AugmentorList(self.geometry.augmentors()).augment(sample),)

    def _refuse_others(self, config: DataConfig) -> None:
        for name in _SOME_APPLY:
            value = getattr(config, name)
            if name not in self.takes and value != DataConfig.model_fields[name].default:
                raise ConfigError(
                    f"data.{name} does not apply to the inputter '{config.inputter}'.",
                    got=repr(value),
                    fix=f"remove data.{name}",
                )

    def _checked(self, classes: Sequence[str], parts: dict[str, Pictures]) -> dict[str, Pictures]:
        for part in parts.values():
            for k in np.flatnonzero((part.labels < 0) | (part.labels >= len(classes)))[:1]:
                raise FormatError(
                    f"The label {part.labels[k]} of {part.pictures[k]} is no class.",
                    expected=f"0 to {len(classes) - 1}",
                    fix="set data.num_classes or data.class_names if they lack some",
                )
        config = self.config
        train, divisible = parts.get("train"), "validation" in self.takes
        if train is not None and "val" not in parts and divisible and config.validation:
            train, parts["val"] = self.divided(train, "val")
        if train is not None and config.samples is not None:
            train = train.take(subset(self.names_of(train), config.samples, train.labels))
        if train is not None:
            parts["train"] = train
        return parts


class _Recipe(Protocol):
    @property
    def data(self) -> DataConfig: ...


def make_inputter(config: DataConfig | _Recipe) -> Inputter:
    """The inputter of a recipe, or of its section `data`, with its augmenter.

    Raises:
        ConfigError: There is none of that name, or no such data, or a field does not apply.
        FormatError: A list of the data is damaged.
    """
    data = config if isinstance(config, DataConfig) else config.data
    return INPUTTERS.get(data.inputter)(data, AUGMENTERS.get(data.augmenter))


def _checked(img: NDArray[Any], shape: tuple[int, ...], augmenter: str) -> NDArray[Any]:
    if img.shape != shape or img.dtype != np.uint8:
        raise ConfigError(
            f"The augmenter '{augmenter}' gave another kind of picture.",
            got=f"{img.dtype} {list(img.shape)}",
            expected=f"uint8 {list(shape)}",
            fix="set data.augmenter to one that gives uint8",
        )
    return img
