"""Text files, divided into splits by position in each text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack._core.tables import read_text
from towerpack.dataflow.sources.discovery import Discovery

_LOG = get_logger(__name__)

Text = tuple[str, str]
"""Name and content of a text."""


def divided_texts(
    root: Path,
    patterns: Mapping[str, str | Sequence[str] | None],
    share: float,
    encoding: str | None = None,
) -> dict[str, list[Text]]:
    """Return the texts for 'train', 'val' and 'test', which have no characters in common.

    Files of 'val' and 'test' are removed from 'train'. A split without files gets a share at the
    end of each training text, so that adding a text does not change the others.
    """
    held = {split: _files(root, patterns[split], split) for split in ("val", "test")}
    taken = {*held["val"], *held["test"]}
    both = sorted({*held["val"]} & {*held["test"]})
    if both:
        raise ConfigError(f"{both[0]} is in both data.val and data.test.")
    train = [path for path in _files(root, patterns["train"], "train") if path not in taken]
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
                f"The split '{split}' has no text in {root}.",
                got=", ".join(f"data.{name}={files!r}" for name, files in patterns.items()),
                fix=f"set data.{split} to files with text",
            )
    return texts


def _files(root: Path, patterns: str | Sequence[str] | None, split: str) -> list[Path]:
    files: list[Path] = []
    discovery = Discovery()
    for pattern in [patterns] if isinstance(patterns, str) else patterns or ():
        new = [Path(file) for file in discovery.matching(root, pattern)]
        if not new:
            raise ConfigError(
                f"data.{split}: no files match {root / pattern}.",
                fix=f"set data.{split} to files below data.path",
            )
        files += new
    discovery.report(f"data.{split}")
    return list(dict.fromkeys(files))


def _last(texts: list[Text], counts: list[int]) -> tuple[list[Text], list[Text]]:
    """Return the last `counts` characters of each text, and the remaining texts."""
    rows = [(n, t, len(t) - count) for (n, t), count in zip(texts, counts, strict=True)]
    ends = [(name, text[start:]) for name, text, start in rows if text[start:]]
    return ends, [(name, text[:start]) for name, text, start in rows]
