"""Texts of files, divided by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from towerpack._core.errors import ConfigError, FormatError
from towerpack.dataflow.sources._discovery import Discovery

Text = tuple[str, str]
"""Name and content."""


def divided_texts(
    root: Path, given: Mapping[str, str | Sequence[str] | None], share: float
) -> dict[str, list[Text]]:
    """Names and contents of files for 'train', 'val' and 'test', which have nothing in common.

    Args:
        root: The folder of the files.
        given: By split, names or patterns. Files of 'val' and 'test' are left out of 'train'; for
            a split without files the last part of each training text is taken, so that another
            text changes nothing.
        share: Share of each training text's characters in that part.

    Raises:
        ConfigError: There are no such files, or one is given twice, or a split has no text.
        FormatError: A file is not in UTF-8.
    """
    held = {split: _files(root, given[split], split) for split in ("val", "test")}
    taken = {*held["val"], *held["test"]}
    both = sorted({*held["val"]} & {*held["test"]})
    if both:
        raise ConfigError(f"{both[0]} is in data.val and in data.test.")
    train = [path for path in _files(root, given["train"], "train") if path not in taken]
    texts = {"train": [(path.stem, _read(path)) for path in train]}
    for split in ("test", "val"):
        if held[split]:
            texts[split] = [(path.stem, _read(path)) for path in held[split]]
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
                fix=f"data.{split}=FILES",
            )
    return texts


def _files(root: Path, given: str | Sequence[str] | None, split: str) -> list[Path]:
    found: list[Path] = []
    discovery = Discovery()
    for pattern in [given] if isinstance(given, str) else given or ():
        new = [Path(file) for file in discovery.matching(root, pattern)]
        if not new:
            raise ConfigError(
                f"data.{split}: there is no {root / pattern}.", fix="data.path=FOLDER"
            )
        found += new
    discovery.report(f"data.{split}")
    return list(dict.fromkeys(found))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise FormatError(f"{path}, line {line}: {error.reason}.", expected="UTF-8") from error


def _last(texts: list[Text], counts: list[int]) -> tuple[list[Text], list[Text]]:
    """Return so many last characters of each text, and what is left."""
    both = [(n, t, len(t) - count) for (n, t), count in zip(texts, counts, strict=True)]
    ends, rests = [(n, t[at:]) for n, t, at in both], [(n, t[:at]) for n, t, at in both]
    return [end for end in ends if end[1]], rests
