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
from towerpack.apps._inputter import Inputter, Split, class_list, read_classes, write_classes
from towerpack.apps._splits import (
    are_classes,
    check_batch,
    held_out,
    parted,
    places,
    root_of,
    subset,
)
from towerpack.apps.text import VOCABULARY, Vocabulary, text_of, text_sources
from towerpack.apps.text_classification._config import DataConfig, TextClassificationConfig
from towerpack.apps.text_classification._files import READERS, Example
from towerpack.config import Registry
from towerpack.dataflow import BatchData, DataFlow, DataFromList, MapData, ShuffleData

_LOG = get_logger(__name__)

Labeled = Sequence[tuple[str, int]]  # texts and their labels


class TextInputter(Inputter):
    """Inputter of labeled texts. A batch is (tokens int32 [n, longest text], label int64 [n]).

    Data are read when they are first needed. A run stores the vocabulary and the class names, so
    that predictions need no data. Override `find` to read other data.

    Args:
        config: Section `data` of a recipe.
    """

    def __init__(self, config: DataConfig) -> None:
        self.config = config
        self.batch_size = config.batch_size
        self._examples: dict[str, list[Example]] = {}
        self._stored: tuple[list[str], Vocabulary] | None = None

    def find(self) -> Mapping[str, Iterable[Example]]:
        """Return the examples (text, class, location) of each split."""
        config, (patterns, read) = self.config, READERS[self.config.inputter]
        if patterns == ("{}",) and not (config.train or config.val or config.test):
            root = root_of(config)
            if root.is_dir() and are_classes(root):  # here `train` is a class like the others
                return {"train": read(root, config)}
        return {
            split: (e for path in paths for e in read(Path(path), self.config))
            for split, paths in places(config, *patterns).items()
        }

    @property
    def class_names(self) -> Sequence[str]:  # type: ignore[override]
        """Names of the classes: from the run, the configuration or the training data."""
        return self._stored[0] if self._stored else self._data_class_names

    @property
    def vocabulary(self) -> Vocabulary:
        """Vocabulary of the run, of the configured file, or of the training data."""
        return self._stored[1] if self._stored else self._data_vocabulary

    @cached_property
    def _data_class_names(self) -> list[str]:
        names = self.config.class_names
        if names is None:
            labels = [(name, where) for _, name, where in self._read("train")]
            warn_of_similar(labels)
            names = _in_order({name for name, _ in labels})
        if len(names) < 2:
            what = "Text classification needs at least two classes."
            raise ConfigError(what, got=", ".join(names) or "none")
        return names

    @cached_property
    def _data_vocabulary(self) -> Vocabulary:
        config, lowercase = self.config, self.config.lowercase
        if config.vocabulary is not None:
            path = Path(config.vocabulary).expanduser()
            return Vocabulary.read(path, config.tokenizer, lowercase=lowercase)
        texts = (text for text, _ in self.part("train"))
        return Vocabulary.train(texts, config.tokenizer, config.vocab_size, lowercase=lowercase)

    def part(self, split: str) -> Labeled:
        """Return the labeled texts of a split.

        Args:
            split: 'train', 'val' or 'test'.

        Raises:
            ConfigError: The split has no texts.
            FormatError: A label is not the name of a class.
        """
        config, labeled = self.config, self._labeled(split)
        if split == "train" or (split == "val" and not labeled):
            train, val = self._labeled("train"), self._labeled("val")
            if train and not val:
                texts, labels = zip(*train, strict=True)
                train, val = parted(train, held_out(texts, config.validation, "val", labels))
            if train and config.samples is not None:
                texts, labels = zip(*train, strict=True)
                train = [train[i] for i in subset(texts, config.samples, labels)]
            labeled = train if split == "train" else val
        if not labeled:
            raise ConfigError(
                f"The recipe has no '{split}' data.", fix=f"set data.{split} to files or folders"
            )
        return labeled

    def row_names(self, split: Split) -> Sequence[str]:
        return [text for text, _ in self.part(split)]

    def _labeled(self, split: str) -> list[tuple[str, int]]:
        numbers = {name: i for i, name in enumerate(self.class_names)}
        for _, name, where in self._read(split):
            if name not in numbers:
                names = ", ".join(numbers)[:200]
                raise FormatError(f"{where} has an unknown class {name!r}.", expected=names)
        return [(text, numbers[name]) for text, name, _ in self._read(split)]

    def _read(self, split: str) -> list[Example]:
        if split not in self._examples:
            rows = self.find().get(split, ())
            examples = [(text, label.strip(), where) for text, label, where in rows]
            without = next((where for _, label, where in examples if not label), None)
            if without is not None:
                raise FormatError(
                    f"{without} must have a label.", fix="add a label, or remove the row"
                )
            empty = [where for text, _, where in examples if not text.strip()]
            if empty:
                _LOG.warning("%d texts are empty, for example in %s.", len(empty), empty[0])
            self._examples[split] = examples
        return self._examples[split]

    def flow(self, split: Split) -> DataFlow:
        training, config = split == "train", self.config
        texts, labels = zip(*self.part(split), strict=True)
        if training:
            check_batch(len(texts), self.batch_size)
        ids, cut, empty = self.vocabulary.encoded(texts, config.max_length)
        if cut or empty:
            _LOG.info(
                "%s: %d of %d texts are truncated to %d tokens, and %d have no words.",
                *(split, cut, len(texts), config.max_length, empty),
            )
        ds: DataFlow = DataFromList(list(zip(ids, labels, strict=True)))
        ds = ShuffleData(ds) if training else ds
        ds = BatchData(ds, self.batch_size, remainder=not training, stack="list")
        return MapData(ds, _padded)

    def sources(self, names: Sequence[str]) -> Sequence[str]:
        """Return texts: the arguments themselves, and lines of files or of `-` (standard input)."""
        return text_sources(names, self.config.encoding)

    def read(self, source: Any) -> str:
        return text_of(source)

    def prepare(self, sample: Any) -> tuple[NDArray[np.int32]]:
        """Return the token ids of a text: (int32 [max_length],), padded with 0."""
        length = self.config.max_length
        (ids,), _, _ = self.vocabulary.encoded([sample], length)
        return (np.pad(ids, (0, length - len(ids))),)

    def keep(self, run_dir: Path) -> None:
        self.vocabulary.write(run_dir / VOCABULARY)
        write_classes(run_dir, list(self.class_names))

    def restore(self, run_dir: Path | None) -> None:
        names = read_classes(run_dir, class_list)
        self._stored = None
        if run_dir is not None and names is not None:
            self._stored = names, Vocabulary.read(run_dir / VOCABULARY)


def _in_order(names: Iterable[str]) -> list[str]:
    """Sort class names, with integers in numeric order before other names."""
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
    """Create the inputter of a recipe.

    Args:
        config: Recipe.
    """
    return INPUTTERS.get(config.data.inputter)(config.data)
