"""Base class of inputters of labeled images, and the registry of inputters."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack.apps._inputter import Inputter, Split
from towerpack.apps._pictures import PictureInputter, read_picture
from towerpack.apps._splits import Name, check_batch, held_out, relative_name, root_of, subset
from towerpack.apps.classification._config import ClassificationConfig, DataConfig
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
from towerpack.dataflow.images import MapImage
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
OPTIONAL_KEYS = (
    "path", "train", "val", "test", "validation", "num_classes", "class_names", "encoding"
)  # fmt: skip

INPUTTERS: Registry[Callable[..., Inputter]] = Registry(
    "inputter", {name: f"{_HERE}.{where}" for name, where in _INPUTTERS.items()}
)
"""Functions from the section `data` of a recipe and an augmenter to an `Inputter`, by name."""

AUGMENTERS: Registry[Augmenter] = Registry(
    "augmenter", {name: f"{_HERE}.augmenters:{name}" for name in _AUGMENTERS}
)


def decoded(datapoint: Any) -> tuple[NDArray[np.uint8], Any]:
    """Return an image and its label. The file of an image is decoded.

    Args:
        datapoint: Image, uint8 [h, w] or [h, w, c], or name of a file; and label.

    Raises:
        FormatError: The file is not an image, or is damaged.
    """
    picture, label = datapoint
    return picture if isinstance(picture, np.ndarray) else read_picture(picture), label


@dataclass(frozen=True)
class Pictures:
    """Labeled images of a split.

    Attributes:
        pictures: Images, uint8 [n, h, w] or [n, h, w, c], or names of files.
        labels: int64 [n].
        decode: Function from (image or file name, label) to (uint8 [h, w] or [h, w, 1 or 3],
            label).
    """

    pictures: NDArray[Any] | Sequence[str]
    labels: Labels
    decode: Callable[[Any], Any] = decoded

    def __len__(self) -> int:
        return len(self.labels)

    def flow(self) -> DataFlow:
        """Return a dataflow of the pairs (image or file name, label) in order, without decoding."""
        if isinstance(self.pictures, np.ndarray):
            return DataFromArrays(self.pictures, self.labels)
        return DataFromList(list(zip(self.pictures, self.labels.tolist(), strict=True)))

    def take(self, positions: NDArray[np.intp]) -> Pictures:
        """Return the images with some indices.

        Args:
            positions: Indices, int64 [k].
        """
        pictures: Any = self.pictures
        is_array = isinstance(pictures, np.ndarray)
        some = pictures[positions] if is_array else [pictures[i] for i in positions]
        return replace(self, pictures=some, labels=self.labels[positions])


def joined(parts: Sequence[Pictures]) -> Pictures:
    files = itertools.chain.from_iterable(part.pictures for part in parts)
    return Pictures([str(file) for file in files], np.concatenate([p.labels for p in parts]))


Found = tuple[Sequence[str], Mapping[str, Pictures]]  # names of the classes, pictures by split


class ImageInputter(PictureInputter):
    """Base class of inputters of labeled images. Subclasses set `takes` and define `find`.

    A batch is (image uint8 [n, height, width, channels], label int64 [n]).

    Args:
        config: Section `data` of a recipe.
        augmenter: Augmentation of training images, and normalization.

    Raises:
        ConfigError: A key does not apply to the inputter.
    """

    takes: ClassVar[frozenset[str]] = frozenset()
    """Keys of `OPTIONAL_KEYS` that apply to the inputter."""

    def __init__(self, config: DataConfig, augmenter: Augmenter) -> None:
        self._check_keys(config)
        self.config = config
        self.augmenter = augmenter
        self.batch_size = config.batch_size
        self.geometry = replace(augmenter.geometry(config.size), channels=config.channels)

    @abstractmethod
    def find(self) -> Found:
        """Return the names of the classes, and the images of each split."""

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def splits(self) -> Sequence[str]:
        """Names of the splits that have data, out of 'train', 'val' and 'test'."""
        return [split for split in ("train", "val", "test") if split in self.parts]

    def part(self, split: str) -> Pictures:
        """Return the images of a split.

        Args:
            split: 'train', 'val' or 'test'.

        Raises:
            ConfigError: The split has no images.
        """
        parts = self.parts
        if split not in parts:
            can_divide = split == "val" and "validation" in self.takes
            also = "set data.validation above 0" if can_divide else "use --split val"
            raise ConfigError(
                f"The recipe has no '{split}' data.",
                got=", ".join(f"{name}: {len(part)}" for name, part in parts.items()),
                fix=f"set data.{split} to files or folders, or {also}",
            )
        return parts[split]

    def names_of(self, part: Pictures) -> Sequence[Name]:
        """Return a name for each image: the path of its file below `path`, or the image's bytes.

        Args:
            part: Images.
        """
        if isinstance(part.pictures, np.ndarray):
            return [picture.tobytes() for picture in part.pictures]
        root = root_of(self.config)
        return [relative_name(file, root) for file in part.pictures]

    def row_names(self, split: Split) -> Sequence[Name]:
        return self.names_of(self.part(split))

    def divided(self, part: Pictures, split: Literal["test", "val"]) -> tuple[Pictures, Pictures]:
        """Split images at random. Return the images that remain, and the images of the new split.

        Args:
            part: Images to divide.
            split: New split, which gets the fraction `config.validation`.
        """
        chosen = held_out(self.names_of(part), self.config.validation, split, part.labels)
        return part.take(np.flatnonzero(~chosen)), part.take(np.flatnonzero(chosen))

    def source(self, split: str, shuffle: bool = False) -> DataFlow:
        """Return a dataflow of the decoded pairs (image uint8 of any size, label) of a split.

        Args:
            split: 'train', 'val' or 'test'.
            shuffle: Whether to shuffle the pairs.
        """
        part = self.part(split)
        return MapData(ShuffleData(part.flow()) if shuffle else part.flow(), part.decode)

    def class_counts(self, split: str = "train") -> Labels:
        """Return the number of images of each class, int64 [classes].

        Args:
            split: 'train', 'val' or 'test'.
        """
        return np.bincount(self.part(split).labels, minlength=self.num_classes)

    def flow(self, split: Split) -> DataFlow:
        training, config, count = split == "train", self.config, len(self.part(split))
        if training:
            check_batch(count, self.batch_size)
        shape = (*config.size, config.channels)
        if training and config.synthetic:
            label = np.arange(self.batch_size, dtype=np.int64) % self.num_classes
            batch = np.full((self.batch_size, *shape), 128, np.uint8), label
            return DataFromList([batch] * (count // self.batch_size))
        # A bound method would pickle all data for the workers.
        check = partial(_checked, shape=shape, augmenter=self.augmenter.name)
        change = self.augmenter.train(config.size) if training else [self.geometry.scaling()]
        augmentors = [colours(config.channels), *change, MapImage(check)]
        ds = AugmentImageComponent(self.source(split, training), augmentors, copy=False)
        ds = BatchData(ds, self.batch_size, remainder=not training)
        return PrefetchData(ds, num_proc=config.workers) if config.workers else ds

    def _check_keys(self, config: DataConfig) -> None:
        for name in OPTIONAL_KEYS:
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
                    f"The label of {part.pictures[k]} must be from 0 to {len(classes) - 1}, got "
                    f"{part.labels[k]}.",
                    fix="correct the label, or set data.num_classes to include all classes",
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


def make_inputter(config: DataConfig | ClassificationConfig) -> Inputter:
    """Create the inputter of a recipe with its augmenter.

    Args:
        config: Recipe, or its section `data`.
    """
    data = config if isinstance(config, DataConfig) else config.data
    return INPUTTERS.get(data.inputter)(data, AUGMENTERS.get(data.augmenter))


def _checked(img: NDArray[Any], shape: tuple[int, ...], augmenter: str) -> NDArray[Any]:
    if img.shape != shape or img.dtype != np.uint8:
        raise ConfigError(
            f"The augmenter '{augmenter}' must return uint8 pictures of the size in data.size.",
            got=f"{img.dtype} {list(img.shape)}",
            expected=f"uint8 {list(shape)}",
            fix="set data.augmenter to a different augmenter, or correct its code",
        )
    return img
