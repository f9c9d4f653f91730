"""Texts and their classes as batches of tokens' numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError, FormatError
from towerpack._core.logs import get_logger
from towerpack._core.tables import warn_of_similar
from towerpack.apps._inputter import Inputter, Split, read_classes, write_classes
from towerpack.apps._splits import are_classes, held_out, parted, places, root_of, subset
from towerpack.apps.text import VOCABULARY, Vocabulary, text_of, text_sources
from towerpack.apps.text_classification._config import DataConfig, TextClassificationConfig
from towerpack.apps.text_classification._files import READERS, Example
from towerpack.config import Registry
from towerpack.dataflow import BatchData, DataFlow, DataFromList, MapData, ShuffleData

_LOG = get_logger(__name__)

Labelled = Sequence[tuple[str, int]]
"""Texts and the numbers of their classes."""


class TextInputter(Inputter):
    """Texts with labels; batches are (tokens int32 [n, longest of them], label int64 [n]).

    Nothing is read before it is needed. A run keeps the vocabulary and the names of the classes,
    so that predictions need no data. For data of your own, override `find`.

    Args:
        config: Which data, and how.

    Attributes:
        config: As given.
    """

    def __init__(self, config: DataConfig) -> None:
        self.config = config
        self.batch_size = config.batch_size
        self._examples: dict[str, list[Example]] = {}
        self._kept: tuple[list[str], Vocabulary] | None = None

    def find(self) -> Mapping[str, Iterable[Example]]:
        """Examples of each split, 'train', 'val', 'test', as (text, class, place)."""
        config, (patterns, read) = self.config, READERS[self.config.inputter]
        if patterns == ("{}",) and not (config.train or config.val or config.test):
            root = root_of(config)
            if root.is_dir() and are_classes(root):  # `train` is a class, like its siblings.
                return {"train": read(root, config)}
        given = places(config, *patterns)
        return {
            split: (e for path in paths for e in read(Path(path), self.config))
            for split, paths in given.items()
        }

    @property
    def class_names(self) -> Sequence[str]:  # type: ignore[override]
        """Names of the classes: those of the run, of the configuration, or of the training data."""
        return self._kept[0] if self._kept else self._own_class_names

    @property
    def vocabulary(self) -> Vocabulary:
        """That of the run, of the configured file, or of the training data."""
        return self._kept[1] if self._kept else self._own_vocabulary

    @cached_property
    def _own_class_names(self) -> list[str]:
        names = self.config.class_names
        if names is None:
            labels = [(name, where) for _, name, where in self._read("train")]
            warn_of_similar(labels)
            names = _in_order({name for name, _ in labels})
        if len(names) < 2:
            raise ConfigError("There are not two classes.", got=", ".join(names) or "none")
        return names

    @cached_property
    def _own_vocabulary(self) -> Vocabulary:
        config, lowercase = self.config, self.config.lowercase
        if config.vocabulary is not None:
            path = Path(config.vocabulary).expanduser()
            return Vocabulary.read(path, config.tokenizer, lowercase=lowercase)
        texts = (text for text, _ in self.part("train"))
        return Vocabulary.train(texts, config.tokenizer, config.vocab_size, lowercase=lowercase)

    def part(self, split: str) -> Labelled:
        """The texts of a split.

        Raises:
            ConfigError: There are none.
            FormatError: A class is not among the classes; told with file and line.
        """
        config, labelled = self.config, self._labelled(split)
        if split == "train" or (split == "val" and not labelled):
            train, val = self._labelled("train"), self._labelled("val")
            if train and not val:
                texts, labels = zip(*train, strict=True)
                train, val = parted(train, held_out(texts, config.validation, "val", labels))
            if train and config.samples is not None:
                texts, labels = zip(*train, strict=True)
                train = [train[i] for i in subset(texts, config.samples, labels)]
            labelled = train if split == "train" else val
        if not labelled:
            raise ConfigError(
                f"There are no data '{split}'.", fix=f"set data.{split} to files or folders"
            )
        return labelled

    def row_names(self, split: Split) -> Sequence[str]:
        """Return the texts of a split."""
        return [text for text, _ in self.part(split)]

    def _labelled(self, split: str) -> list[tuple[str, int]]:
        """Texts of the split's own files, and the numbers of their classes."""
        numbers = {name: i for i, name in enumerate(self.class_names)}
        for _, name, where in self._read(split):
            if name not in numbers:
                names = ", ".join(numbers)[:200]
                raise FormatError(f"{where} has the class {name!r}.", expected=names)
        return [(text, numbers[name]) for text, name, _ in self._read(split)]

    def _read(self, split: str) -> list[Example]:
        if split not in self._examples:
            found = self.find().get(split, ())
            examples = [(text, label.strip(), where) for text, label, where in found]
            without = next((where for _, label, where in examples if not label), None)
            if without is not None:
                raise FormatError(f"{without} has no label.", fix="add a label, or remove the row")
            empty = [where for text, _, where in examples if not text.strip()]
            if empty:
                _LOG.warning("%d texts are empty, first in %s.", len(empty), empty[0])
            self._examples[split] = examples
        return self._examples[split]

    def flow(self, split: Split) -> DataFlow:
        training, config = split == "train", self.config
        texts, labels = zip(*self.part(split), strict=True)
        if training and len(texts) < self.batch_size:
            raise ConfigError(f"{len(texts)} training texts are no batch of {self.batch_size}.")
        ids, cut, empty = self.vocabulary.encoded(texts, config.max_length)
        if cut or empty:
            _LOG.info(
                "%s: of %d texts %d are cut after %d tokens, %d have no words.",
                *(split, len(texts), cut, config.max_length, empty),
            )
        ds: DataFlow = DataFromList(list(zip(ids, labels, strict=True)))
        ds = ShuffleData(ds) if training else ds
        ds = BatchData(ds, self.batch_size, remainder=not training, stack="list")
        return MapData(ds, _padded)

    def sources(self, given: Sequence[str]) -> Sequence[str]:
        """Texts, files of them (one a line), `-` for standard input."""
        return text_sources(given, self.config.encoding)

    def read(self, source: Any) -> str:
        """The text itself.

        Raises:
            FormatError: The text is empty, or is in a file of another encoding.
        """
        return text_of(source)

    def prepare(self, sample: Any) -> tuple[NDArray[np.int32]]:
        """(int32 [max_length],), 0 where the text has ended."""
        length = self.config.max_length
        (ids,), _, _ = self.vocabulary.encoded([sample], length)
        return (np.pad(ids, (0, length - len(ids))),)

    def keep(self, run_dir: Path) -> None:
        """Write the vocabulary and the names of the classes."""
        self.vocabulary.write(run_dir / VOCABULARY)
        write_classes(run_dir, list(self.class_names))

    def restore(self, run_dir: Path | None) -> None:
        """Take both from a run."""
        names = read_classes(run_dir)
        self._kept = None
        if run_dir is not None and names is not None:
            self._kept = names, Vocabulary.read(run_dir / VOCABULARY)


def _in_order(names: Iterable[str]) -> list[str]:
    """Sorted; whole numbers by their value."""
    return sorted(names, key=lambda n: (0, int(n), n) if n.isdecimal() else (1, 0, n))


def _padded(batch: tuple[list[NDArray[np.int32]], list[int]]) -> tuple[Any, Any]:
    ids, labels = batch
    tokens = np.zeros((len(ids), max(1, *map(len, ids))), np.int32)
    for row, some in zip(tokens, ids, strict=True):
        row[: len(some)] = some
    return tokens, np.array(labels, np.int64)


INPUTTERS: Registry[Any] = Registry(
    "inputter", {name: f"{__name__}:TextInputter" for name in READERS}
)


def make_inputter(config: TextClassificationConfig) -> Inputter:
    """The inputter of a recipe.

    Raises:
        ConfigError: There is none of that name.
    """
    return INPUTTERS.get(config.data.inputter)(config.data)
