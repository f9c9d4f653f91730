"""Texts of files, divided by position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from towerpack._core.errors import ConfigError, FormatError

Text = tuple[str, str]
"""Name and content."""


def divided_texts(
    root: Path, given: Mapping[str, str | Sequence[str] | None], share: float
) -> dict[str, list[Text]]:
    """Names and contents of files for 'train', 'val' and 'test', which have nothing in common.

    Args:
        root: The folder of the files.
        given: By split, names or patterns. Files of 'val' and 'test' are left out of 'train'; for
            a split without files the last part of the training texts is taken.
        share: Of the training texts' characters: so large is that part.

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
    total = sum(len(text) for _, text in texts["train"])
    for split in ("test", "val"):
        if split not in texts:
            texts[split] = _last(texts["train"], round(share * total))
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
    for pattern in [given] if isinstance(given, str) else given or ():
        new = sorted(path for path in root.glob(pattern) if path.is_file())
        if not new:
            raise ConfigError(
                f"data.{split}: there is no {root / pattern}.", fix="data.path=FOLDER"
            )
        found += new
    return list(dict.fromkeys(found))


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        line = path.read_bytes()[: error.start].count(b"\n") + 1
        raise FormatError(f"{path}, line {line}: {error.reason}.", expected="UTF-8") from error


def _last(texts: list[Text], count: int) -> list[Text]:
    """Take so many characters off the end of texts."""
    taken: list[Text] = []
    while count > 0 and texts:
        name, text = texts.pop()
        if len(text) > count:
            texts.append((name, text[:-count]))
        taken.append((name, text[-count:]))
        count -= len(text)
    return taken[::-1]
