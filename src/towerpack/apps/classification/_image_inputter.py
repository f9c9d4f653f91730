"""Labelled pictures as batches: what all sources of them have in common."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack.apps._inputter import Inputter, Split
from towerpack.apps._registry import Registry
from towerpack.apps.classification._data_config import DataConfig
from towerpack.apps.classification._geometry import colours
from towerpack.apps.classification.augmenters import Augmenter
from towerpack.dataflow import (
    AugmentImageComponent,
    BatchData,
    DataFlow,
    DataFromArrays,
    DataFromList,
    MapDataComponent,
    PrefetchData,
    ShuffleData,
)
from towerpack.dataflow.images import AugmentorList, MapImage, decode_image
from towerpack.dataflow.sources._files import ImageReader
from towerpack.dataflow.sources._folders import IMAGE_EXTENSIONS

Labels = NDArray[np.int64]

_HERE = "towerpack.apps.classification"

INPUTTERS: Registry[Callable[..., Inputter]] = Registry(
    "inputter",
    {
        "csv": f"{_HERE}.csv_inputter:build",
        "folder": f"{_HERE}.folder_inputter:build",
        "tfrecord": f"{_HERE}.tfrecord_inputter:build",
        "cifar10": f"{_HERE}.cifar_inputter:build",
        "cifar100": f"{_HERE}.cifar_inputter:build",
        "mnist": f"{_HERE}.mnist_inputter:build",
        "fashion_mnist": f"{_HERE}.mnist_inputter:build",
        "digits": f"{_HERE}.digits_inputter:build",
        "imagenet_classes": f"{_HERE}.imagenet_inputter:build",
    },
)
"""Functions `(config, augmenter) -> Inputter`."""

AUGMENTERS: Registry[Augmenter] = Registry(
    "augmenter",
    {
        **{
            name: f"{_HERE}.augmenters:{name}"
            for name in ("none", "cifar", "vgg", "inception", "randaugment", "efficientnet_lite")
        },
        "digits": f"{_HERE}.digits_inputter:augmenter",
    },
)


_SOME_APPLY = ("path", "train", "val", "test", "validation", "num_classes", "class_names")


@dataclass(frozen=True)
class Encoded:
    """An image file in memory, and what messages call it."""

    data: bytes
    name: str


class Part(ABC):
    """Labelled pictures: those of a split."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read_labels(self) -> Labels:
        """All labels, int64 [n]."""

    @abstractmethod
    def flow(self) -> DataFlow:
        """(picture, label) in order; the picture is what `decoded` takes."""

    @abstractmethod
    def take(self, positions: NDArray[np.intp]) -> Part:
        """Those at some positions."""

    def strata(self) -> Labels:
        """Numbers of which each is to be found in a sample as often as in the whole."""
        return self.read_labels()

    def divided(self, num: int) -> tuple[Part, Part]:
        """What is left, and `num` of them: always the same ones, each class in proportion.

        Raises:
            ConfigError: There are fewer.
        """
        n = len(self)
        if num > n:
            raise ConfigError(f"There are {n} training pictures, and not {num}.")
        order = np.random.Generator(np.random.Philox(key=0)).permutation(n)
        order = order[np.argsort(self.strata()[order], kind="stable")]
        chosen = np.zeros(n, np.bool_)
        chosen[order[np.diff(np.arange(n + 1) * num // n) > 0]] = True
        return self.take(np.flatnonzero(~chosen)), self.take(np.flatnonzero(chosen))


@dataclass(frozen=True)
class Pictures(Part):
    """Pictures in memory, or names of files.

    Attributes:
        pictures: uint8 [n, h, w] or [n, h, w, c]; or the names.
        labels: int64 [n].
    """

    pictures: NDArray[np.uint8] | Sequence[str]
    labels: Labels

    def __len__(self) -> int:
        return len(self.labels)

    def read_labels(self) -> Labels:
        return self.labels

    def flow(self) -> DataFlow:
        if isinstance(self.pictures, np.ndarray):
            return DataFromArrays(self.pictures, self.labels)
        return DataFromList(list(zip(self.pictures, self.labels.tolist(), strict=True)))

    def take(self, positions: NDArray[np.intp]) -> Pictures:
        if isinstance(self.pictures, np.ndarray):
            return Pictures(self.pictures[positions], self.labels[positions])
        files = cast("Sequence[str]", self.pictures)
        return Pictures([files[i] for i in map(int, positions)], self.labels[positions])


def joined(parts: Sequence[Pictures]) -> Pictures:
    """Several lists of files as one."""
    files = [cast("Sequence[str]", part.pictures) for part in parts]
    return Pictures(list(itertools.chain(*files)), np.concatenate([part.labels for part in parts]))


Found = tuple[Sequence[str], Mapping[str, Part]]
"""Names of the classes, and the parts by split."""


class ImageInputter(Inputter):
    """Base of inputters of labelled pictures. A subclass says `takes` and defines `find`.

    Batches are (image uint8 [n, height, width, channels], label int64 [n]).

    Args:
        config: Which data, and how.
        augmenter: What happens to pictures.

    Attributes:
        config: As given.
        augmenter: As given; `normalize` is for the network's graph.
        geometry: From a decoded picture to the network's input, where nothing is random.
        num_classes: How many.

    Raises:
        ConfigError: A field does not apply to these data, or they are not there.
        FormatError: A list of them is damaged.
    """

    takes: ClassVar[frozenset[str]] = frozenset()
    """Which of the fields apply that do not apply to all inputters."""
    suffixes = IMAGE_EXTENSIONS

    def __init__(self, config: DataConfig, augmenter: Augmenter) -> None:
        self._refuse_others(config)
        self.config = config
        self.augmenter = augmenter
        self.batch_size = config.batch_size
        self.geometry = replace(augmenter.geometry(config.size), channels=config.channels)
        self.class_names, parts = self.find()
        self._parts = dict(parts)
        self.num_classes = len(self.class_names)
        if "val" not in self._parts and "validation" in self.takes and config.validation:
            self._set_apart("val")
        if config.samples is not None:
            _, self._parts["train"] = self._parts["train"].divided(config.samples)

    @abstractmethod
    def find(self) -> Found:
        """Names of the classes, and what there is: 'train', and 'val' and 'test' if they are."""

    def part(self, split: Split) -> Part:
        """The pictures of a split.

        Raises:
            ConfigError: There are none.
        """
        if split not in self._parts:
            raise ConfigError(
                f"There are no data '{split}'.",
                got=", ".join(f"{name}: {len(part)}" for name, part in self._parts.items()),
                fix=f"data.{split}"
                + ("; or data.validation above 0" if "validation" in self.takes else ""),
            )
        return self._parts[split]

    def source(self, split: Split) -> DataFlow:
        """(picture, label) of a split in order, as they are stored: see `Part.flow`."""
        return self.part(split).flow()

    def class_counts(self, split: Split = "train") -> Labels:
        """How many pictures each class has: int64 [classes]."""
        return np.bincount(self.part(split).read_labels(), minlength=self.num_classes).astype(
            np.int64
        )

    def flow(self, split: Split) -> DataFlow:
        training = split == "train"
        num = len(self.part(split))
        if training and num < self.batch_size:
            raise ConfigError(
                f"{num} training pictures are no batch.",
                expected=f"at least batch_size={self.batch_size}",
                fix="a smaller batch_size",
            )
        if training and self.config.synthetic:
            return DataFromList([self._constant_batch()] * (num // self.batch_size))
        ds = self.source(split)
        if training:
            ds = ShuffleData(ds)
        ds = MapDataComponent(ds, decoded, 0)
        # Not a method, with which workers would be sent all data.
        shape = (*self.config.size, self.config.channels)
        augmentors = [
            colours(self.config.channels),
            *(self.augmenter.train(self.config.size) if training else [self.geometry.scaling()]),
            MapImage(partial(_checked, shape=shape, augmenter=self.augmenter.name)),
        ]
        ds = AugmentImageComponent(ds, augmentors, 0, copy=False)
        ds = BatchData(ds, self.batch_size, remainder=not training)
        return PrefetchData(ds, num_proc=self.config.workers) if self.config.workers else ds

    def read(self, source: Any) -> NDArray[np.uint8]:
        """A picture [h, w, 3], upright.

        Args:
            source: The name of a file, or what is in one.

        Raises:
            FormatError: It is no picture, or a damaged one.
        """
        return decoded(source if isinstance(source, bytes) else str(source))

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
                    expected=", ".join(n for n in _SOME_APPLY if n in self.takes) or None,
                    fix="leave it out",
                )

    def _set_apart(self, split: Split) -> None:
        """Make a split of a share of the training pictures."""
        train = self._parts["train"]
        num = max(1, round(self.config.validation * len(train)))
        if num >= len(train):
            raise ConfigError(
                f"Of {len(train)} training pictures none can be set apart.", fix="data.validation=0"
            )
        self._parts["train"], self._parts[split] = train.divided(num)

    def _constant_batch(self) -> tuple[NDArray[np.uint8], Labels]:
        shape = (self.batch_size, *self.config.size, self.config.channels)
        label = np.arange(self.batch_size, dtype=np.int64) % self.num_classes
        return np.full(shape, 128, np.uint8), label


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


def decoded(picture: Any) -> NDArray[np.uint8]:
    """A picture of a source: uint8 as it is; files decoded to red, green, blue.

    Raises:
        FormatError: A file is no picture, or a damaged one.
    """
    if isinstance(picture, np.ndarray):
        return picture
    if isinstance(picture, Encoded):
        return decode_image(picture.data, name=picture.name)
    return decode_image(picture) if isinstance(picture, bytes) else _READER(picture)


def named_classes(
    config: DataConfig, parts: Sequence[Pictures], where: str, found: Sequence[str] | None = None
) -> list[str]:
    """Names of the classes: those that were found, or else those of the configuration.

    Args:
        config: Has `class_names` or `num_classes`, or neither.
        parts: Whose labels must be among them.
        where: For messages: what the labels are in.
        found: Names that the data give.

    Raises:
        ConfigError: Number and names do not fit each other.
        FormatError: A label is of no class.
    """
    labels = np.concatenate([part.labels for part in parts])
    names = list(found or config.class_names or [])
    num = config.num_classes or len(names) or int(labels.max()) + 1
    names = names or [str(i) for i in range(num)]
    if len(names) != num or len(set(names)) != num:
        raise ConfigError(
            f"data.num_classes is {num}, and {len(set(names))} different classes are named.",
            fix="leave num_classes out",
        )
    if labels.min() < 0 or labels.max() >= num:
        wrong = labels.min() if labels.min() < 0 else labels.max()
        raise FormatError(f"The label {wrong} in {where} is no class.", expected=f"0 to {num - 1}")
    return names


def _checked(img: NDArray[Any], shape: tuple[int, ...], augmenter: str) -> NDArray[Any]:
    if img.shape != shape or img.dtype != np.uint8:
        raise ConfigError(
            f"The augmenter '{augmenter}' gave another kind of picture.",
            got=f"{img.dtype} {list(img.shape)}",
            expected=f"uint8 {list(shape)}",
            fix="numbers are normalized in the network's graph: Augmenter.normalize",
        )
    return img


_READER = ImageReader()
