"""Texts as streams of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.apps._inputter import Inputter, Split
from towerpack.apps._text_files import Text, divided_texts
from towerpack.apps.text import VOCABULARY, Kind, Vocabulary, text_of, text_sources
from towerpack.apps.text_generation._config import TextGenerationConfig
from towerpack.apps.text_generation._tokens import BEGIN_ID, LONGEST
from towerpack.dataflow import BatchData, DataFlow, DataFromList, MapData

IGNORED = -1
"""The label of a token whose prediction does not count."""


class TextInputter(Inputter):
    """Texts of files, in three parts that have no character in common.

    Training reads streams: row r of batch k goes on where row r of batch k - 1 ended. Batches are
    (token int32 [n, time], label int32 [n, time]: the next tokens, text int32 [n]: its number,
    goes_on float32 [n]: 0 in an epoch's first batch, and wherever texts are evaluated).

    Args:
        config: The recipe.

    Raises:
        ConfigError: There are no such files, or too little text.
        FormatError: A file is in another encoding.
    """

    suffixes = (".txt",)

    def __init__(self, config: TextGenerationConfig) -> None:
        self.config = data = config.data
        self.batch_size = data.batch_size
        self.kind: Kind = "char" if data.unit == "char" else "spaced"
        self._kept: Vocabulary | None = None
        self._ids: dict[str, list[NDArray[np.int32]]] = {}

    @cached_property
    def texts(self) -> dict[str, list[Text]]:
        """By split, names and contents; read when they are needed."""
        data = self.config
        patterns = {"train": data.train, "val": data.val, "test": data.test}
        root = Path(data.path).expanduser()
        return divided_texts(root, patterns, data.validation, data.encoding)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Of the training texts, or of the run."""
        if self._kept is not None:
            return self._kept
        train = [text for _, text in self.texts["train"]]
        return Vocabulary.train(train, self.kind, self.config.vocab_size)

    @cached_property
    def _numbers(self) -> list[tuple[str, int]]:
        return [(split, i) for split, some in self.texts.items() for i in range(len(some))]

    def keep(self, run_dir: Path) -> None:
        """Write the vocabulary, so that predictions need no texts."""
        self.vocabulary.write(run_dir / VOCABULARY)

    def restore(self, run_dir: Path | None) -> None:
        """Take the vocabulary of a run."""
        file = None if run_dir is None else run_dir / VOCABULARY
        self._kept = Vocabulary.read(file) if file is not None and file.is_file() else None
        vars(self).pop("vocabulary", None)
        self._ids.clear()

    def row_names(self, split: Split) -> Sequence[str]:
        """Return the texts of a split."""
        return [text for _, text in self.texts[split]]

    def sources(self, given: Sequence[str]) -> Sequence[str]:
        """Beginnings of texts: as given, or the lines of files, or of standard input for `-`."""
        return text_sources(given, self.config.encoding)

    def name_of(self, number: int) -> str:
        """The name of a text."""
        split, i = self._numbers[number]
        return self.texts[split][i][0]

    def characters_per_token(self, number: int) -> float:
        """Of a text."""
        split, i = self._numbers[number]
        return len(self.texts[split][i][1]) / max(len(self.ids(split)[i]) - 1, 1)

    def ids(self, split: str) -> list[NDArray[np.int32]]:
        """The tokens of each text of a split, after the one that says that a text begins."""
        if split not in self._ids:
            first = np.array([BEGIN_ID], np.int32)
            self._ids[split] = [
                np.concatenate([first, self.vocabulary.ids(text)]) for _, text in self.texts[split]
            ]
        return self._ids[split]

    def flow(self, split: Split) -> DataFlow:
        """Batches of streams ('train'), or rows of each text, whose every token counts once."""
        if split == "train":
            return self._streams()
        first = self._numbers.index((split, 0))
        rows = [row for i, ids in enumerate(self.ids(split), first) for row in self._rows(i, ids)]
        return BatchData(DataFromList(rows), self.batch_size, remainder=True)

    def _streams(self) -> DataFlow:
        n, steps = self.batch_size, self.config.steps
        every = np.concatenate(self.ids("train"))
        batches = (len(every) - 1) // (n * steps)
        if not batches:
            raise ConfigError(
                f"{len(every)} tokens are no batch.", expected=f"more than {n} streams of {steps}"
            )
        token, label = (every[i : i + n * steps * batches].reshape(n, -1) for i in (0, 1))
        text = np.zeros(n, np.int32)

        def batch(k: int) -> tuple[Any, ...]:
            part = slice(k * steps, (k + 1) * steps)
            return token[:, part], label[:, part], text, np.full(n, k > 0, np.float32)

        return MapData(DataFromList(list(range(batches))), batch)

    def _rows(self, number: int, ids: NDArray[np.int32]) -> list[tuple[Any, ...]]:
        context, counted = self.config.eval_context, self.config.eval_steps
        rows = []
        for start in range(0, len(ids) - 1, counted):
            before = min(context, start)
            part = ids[start - before : start + counted + 1]
            token = np.zeros(context + counted, np.int32)
            label = np.full(context + counted, IGNORED, np.int32)
            token[: len(part) - 1] = part[:-1]
            label[before : len(part) - 1] = part[1 + before :]
            rows.append((token, label, np.int32(number), np.float32(0)))
        return rows

    def read(self, source: Any) -> str:
        """A text to go on with: as given.

        Raises:
            FormatError: The text is in a file of another encoding.
        """
        return text_of(source, empty=True)

    def prepare(self, sample: Any) -> tuple[NDArray[Any]]:
        """(the text as bytes,)."""
        if len(sample) >= LONGEST:
            raise ConfigError(
                f"A text of {len(sample):,} characters.", expected=f"fewer than {LONGEST:,}"
            )
        return (np.array(sample.encode(), object),)
