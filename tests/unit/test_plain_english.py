"""Docstrings, names, errors and help texts keep the rules in `CONTRIBUTING.md`.

`python tests/support/plain_english.py` lists what breaks them.
"""

from __future__ import annotations

from pathlib import Path

import pytest

import plain_english

# One place for each rule, between texts that keep it.
BROKEN = '''
"""Readers of records."""


class Reader:
    """Where the records are read."""

    def size(self, given: int) -> int:
        """Return the number of records."""
        own = given
        if own < 0:
            raise ConfigError("size must not be negative", fix="a positive size")
        return own


def read(parser) -> None:
    """Read."""
    parser.add_argument("--size", help="Number of records.")
    parser.add_argument("--folder", help="Where the records are.")
    raise ConfigError("the folder is empty", fix="choose a folder with records")
'''


def test_the_library_keeps_the_rules() -> None:
    faults = plain_english.faults()
    assert not faults, "\n".join(map(str, faults))


def test_public_callables_document_their_arguments_and_errors() -> None:
    faults = list(plain_english.undocumented())
    assert not faults, "\n".join(map(str, faults))


def test_each_rule_finds_its_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reader.py").write_text(BROKEN)
    rules = sorted(f.rule for f in plain_english.faults(tmp_path))
    assert rules == [
        "first word",
        "fix without an imperative",
        "fragment",
        "help text",
        "vague name",
        "vague name",
    ]
