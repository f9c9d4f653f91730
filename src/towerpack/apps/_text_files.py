"""Texts of files, divided by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack._core.tables import read_text
from towerpack.dataflow.sources.discovery import Discovery

_LOG = get_logger(__name__)

Text = tuple[str, str]
"""Name and content."""


def divided_texts(
    root: Path,
    given: Mapping[str, str | Sequence[str] | None],
    share: float,
    encoding: str | None = None,
) -> dict[str, list[Text]]:
    """Names and contents of files for 'train', 'val' and 'test', which have nothing in common.

    Args:
        root: The folder of the files.
        given: By split, names or patterns. Files of 'val' and 'test' are left out of 'train'; for
            a split without files the last part of each training text is taken, so that another
            text changes nothing.
        share: Share of each training text's characters in that part.
        encoding: As for `read_text`.

    Raises:
        ConfigError: There are no such files, or one is given twice, or a split has no text.
        FormatError: A file is in another encoding.
    """
    held = {split: _files(root, given[split], split) for split in ("val", "test")}
    taken = {*held["val"], *held["test"]}
    both = sorted({*held["val"]} & {*held["test"]})
    if both:
        raise ConfigError(f"{both[0]} is in data.val and in data.test.")
    train = [path for path in _files(root, given["train"], "train") if path not in taken]
    texts = {
        split: [(path.stem, read_text(path, encoding)) for path in paths]
        for split, paths in (("train", train), ("test", held["test"]), ("val", held["val"]))
        if paths or split == "train"
    }
    empty = [name for some in texts.values() for name, text in some if not text.strip()]
    if empty:
        _LOG.warning("%d texts are empty, first %s.", len(empty), empty[0])
    whole = texts["train"]
    for split in ("test", "val"):
        if split not in texts:
            counts = [round(share * len(text)) for _, text in whole]
            texts[split], texts["train"] = _last(texts["train"], counts)
    for split, found in texts.items():
        if not any(text for _, text in found):
            raise ConfigError(
                f"There is no text '{split}' in {root}.",
                got=", ".join(f"data.{name}={files!r}" for name, files in given.items()),
                fix=f"set data.{split} to files with text",
            )
    return texts


def _files(root: Path, given: str | Sequence[str] | None, split: str) -> list[Path]:
    found: list[Path] = []
    discovery = Discovery()
    for pattern in [given] if isinstance(given, str) else given or ():
        new = [Path(file) for file in discovery.matching(root, pattern)]
        if not new:
            raise ConfigError(
                f"data.{split}: there is no {root / pattern}.",
                fix=f"set data.{split} to files below data.path",
            )
        found += new
    discovery.report(f"data.{split}")
    return list(dict.fromkeys(found))


def _last(texts: list[Text], counts: list[int]) -> tuple[list[Text], list[Text]]:
    """Return so many last characters of each text, and what is left."""
    both = [(n, t, len(t) - count) for (n, t), count in zip(texts, counts, strict=True)]
    ends, rests = [(n, t[at:]) for n, t, at in both], [(n, t[:at]) for n, t, at in both]
    return [end for end in ends if end[1]], rests
