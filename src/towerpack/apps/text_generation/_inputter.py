from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack._core.tables import read_text
from towerpack.apps._inputter import Inputter, Split
from towerpack.apps.text import VOCABULARY, Kind, Vocabulary, text_of, text_sources
from towerpack.apps.text_generation._config import TextGenerationConfig
from towerpack.apps.text_generation._tokens import BEGIN_ID, LONGEST
from towerpack.dataflow import BatchData, DataFlow, DataFromList, MapData
from towerpack.dataflow.sources.discovery import Discovery

_LOG = get_logger(__name__)
Text = tuple[str, str]  # name and content
IGNORED = -1  # label of tokens whose prediction does not count


class TextInputter(Inputter):
    """Inputter of text files, divided into three splits that have no characters in common.

    In training, row r of batch k continues row r of batch k - 1. A batch is (token int32 [n, time],
    label int32 [n, time], text int32 [n], goes_on float32 [n]). `label` is the next token, `text`
    is the index of the text. `goes_on` is 1 if the row continues a row of the previous batch, and 0
    in the first batch of an epoch and in evaluations.

    Args:
        config: Recipe.

    Raises:
        ConfigError: The files of the recipe do not exist, or contain too little text.
        FormatError: A file does not have the encoding of the recipe.
    """

    suffixes = (".txt",)

    def __init__(self, config: TextGenerationConfig) -> None:
        self.config = data = config.data
        self.batch_size = data.batch_size
        self.kind: Kind = "char" if data.unit == "char" else "spaced"
        self._stored: Vocabulary | None = None
        self._ids: dict[str, list[NDArray[np.int32]]] = {}

    @cached_property
    def texts(self) -> dict[str, list[Text]]:
        """Names and contents of the texts of each split, read when first needed."""
        data = self.config
        patterns = {"train": data.train, "val": data.val, "test": data.test}
        root = Path(data.path).expanduser()
        return divided_texts(root, patterns, data.validation, data.encoding)

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """Vocabulary of the run, or of the training texts."""
        if self._stored is not None:
            return self._stored
        train = [text for _, text in self.texts["train"]]
        return Vocabulary.train(train, self.kind, self.config.vocab_size)

    @cached_property
    def _numbers(self) -> list[tuple[str, int]]:
        return [(split, i) for split, some in self.texts.items() for i in range(len(some))]

    def keep(self, run_dir: Path) -> None:
        self.vocabulary.write(run_dir / VOCABULARY)

    def restore(self, run_dir: Path | None) -> None:
        file = None if run_dir is None else run_dir / VOCABULARY
        self._stored = Vocabulary.read(file) if file is not None and file.is_file() else None
        vars(self).pop("vocabulary", None)
        self._ids.clear()

    def row_names(self, split: Split) -> Sequence[str]:
        return [text for _, text in self.texts[split]]

    def sources(self, names: Sequence[str]) -> Sequence[str]:
        """Return texts to continue: the arguments, or lines of files or of standard input (`-`)."""
        return text_sources(names, self.config.encoding)

    def name_of(self, number: int) -> str:
        """Return the name of a text.

        Args:
            number: Index of the text over all splits.
        """
        split, i = self._numbers[number]
        return self.texts[split][i][0]

    def characters_per_token(self, number: int) -> float:
        """Return the mean number of characters per token of a text.

        Args:
            number: Index of the text over all splits.
        """
        split, i = self._numbers[number]
        return len(self.texts[split][i][1]) / max(len(self.ids(split)[i]) - 1, 1)

    def ids(self, split: str) -> list[NDArray[np.int32]]:
        """Return the token ids of each text of a split. Each begins with a start token.

        Args:
            split: 'train', 'val' or 'test'.
        """
        if split not in self._ids:
            first = np.array([BEGIN_ID], np.int32)
            self._ids[split] = [
                np.concatenate([first, self.vocabulary.ids(text)]) for _, text in self.texts[split]
            ]
        return self._ids[split]

    def flow(self, split: Split) -> DataFlow:
        """Return batches of streams for 'train', else batches of rows with each token once."""
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
                f"A batch of {n} streams of {steps} tokens needs more than the {len(every)} tokens "
                "of the training texts.",
                fix="set data.batch_size or data.steps to a smaller number",
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
        return text_of(source, empty=True)

    def prepare(self, sample: Any) -> tuple[NDArray[Any]]:
        if len(sample) >= LONGEST:
            what = f"A text must have fewer than {LONGEST:,} characters, got {len(sample):,}."
            raise ConfigError(what)
        return (np.array(sample.encode(), object),)


def divided_texts(
    root: Path,
    patterns: Mapping[str, str | Sequence[str] | None],
    share: float,
    encoding: str | None = None,
) -> dict[str, list[Text]]:
    """Return the texts for 'train', 'val' and 'test', which have no characters in common.

    Files of 'val' and 'test' are removed from 'train'. A split without files gets the end of each
    training text, so that adding a text does not change the others.
    """
    held = {split: _text_files(root, patterns[split], split) for split in ("val", "test")}
    taken = {*held["val"], *held["test"]}
    both = sorted({*held["val"]} & {*held["test"]})
    if both:
        raise ConfigError(f"data.val and data.test must have no common file, got {both[0]}.")
    train = [path for path in _text_files(root, patterns["train"], "train") if path not in taken]
    texts = {
        split: [(path.stem, read_text(path, encoding)) for path in paths]
        for split, paths in (("train", train), ("test", held["test"]), ("val", held["val"]))
        if paths or split == "train"
    }
    empty = [name for rows in texts.values() for name, text in rows if not text.strip()]
    if empty:
        _LOG.warning("%d texts are empty, for example %s.", len(empty), empty[0])
    whole = texts["train"]
    for split in ("test", "val"):
        if split not in texts:
            counts = [round(share * len(text)) for _, text in whole]
            texts[split], texts["train"] = _last(texts["train"], counts)
    for split, split_texts in texts.items():
        if not any(text for _, text in split_texts):
            raise ConfigError(
                f"The '{split}' data in {root} must contain text, but all texts are empty.",
                got=", ".join(f"data.{name}={files!r}" for name, files in patterns.items()),
                fix=f"set data.{split} to files with text",
            )
    return texts


def _text_files(root: Path, patterns: str | Sequence[str] | None, split: str) -> list[Path]:
    files: list[Path] = []
    discovery = Discovery()
    for pattern in [patterns] if isinstance(patterns, str) else patterns or ():
        new = [Path(file) for file in discovery.matching(root, pattern)]
        if not new:
            raise ConfigError(
                f"No files match data.{split}: {root / pattern}.",
                fix=f"set data.{split} to files below data.path",
            )
        files += new
    discovery.report(f"data.{split}")
    return list(dict.fromkeys(files))


def _last(texts: list[Text], counts: list[int]) -> tuple[list[Text], list[Text]]:
    """Split the last `counts` characters off each text. Return the ends and the remaining texts."""
    rows = [(n, t, len(t) - count) for (n, t), count in zip(texts, counts, strict=True)]
    ends = [(name, text[start:]) for name, text, start in rows if text[start:]]
    return ends, [(name, text[:start]) for name, text, start in rows]
