"""Configuration: what is written is what is read, and each mistake is told by its key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from towerpack import ConfigError
from towerpack.config import Config, change, differences, explained, load, read_yaml, to_yaml


class Data(Config):
    batch_size: int = Field(default=64, ge=1)
    "Datapoints in a batch."
    size: tuple[int, int] = (32, 32)
    path: str | None = None


class Extra(Config):
    size: float = 1.0
    names: list[str] = Field(default_factory=list)


class Everything(Config):
    data: Data = Data()
    "Where the data are."
    options: dict[str, float | str] = Field(default_factory=dict)
    extra: Extra | None = None
    title: str = ""


def test_overrides_by_whole_and_by_last_names() -> None:
    given = ["batch_size=3", "data.size=[8, 9]", "options.rate=1e-3", "title=7", "path="]
    found = load(Everything, {"data": {"path": "x"}}, given, where="here")
    assert found.data == Data(batch_size=3, size=(8, 9))
    assert (found.options, found.title) == ({"rate": 0.001}, "7")


WRONG: dict[str, tuple[dict[str, Any], list[str], str]] = {
    "a near miss": ({}, ["batchsize=3"], "Did you mean 'batch_size'"),
    "a near miss in a section": ({}, ["data.batchsize=3"], "'data.batch_size'"),
    "several keys": ({"extra": {}}, ["size=3"], "data.size, extra.size"),
    "no YAML": ({}, ["title=[1"], "'\\[1' is no value in YAML"),
    "no setting": ({}, ["batch_size"], "key=value"),
    "out of range": (
        {},
        ["batch_size=0"],
        r"(?s)These settings.*data.batch_size: .*greater than or equal to 1, got 0",
    ),
    "another type": (
        {"data": {"batch_size": "many"}},
        [],
        r"(?s)here\.yaml.*data.batch_size: .*integer.*'many'",
    ),
    "unknown in a file": ({"data": {"sizes": 3}}, [], "data.sizes: no such key. .*'size'"),
    "two at once": (
        {"titles": "", "data": {"size": 3}},
        [],
        r"(?s)data\.size.*titles: no such key",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_told_by_its_key(case: str) -> None:
    values, overrides, text = WRONG[case]
    with pytest.raises(ConfigError, match=text):
        load(Everything, values, overrides, where="here.yaml")


@pytest.mark.parametrize("text", ["a: [", "- 1", "\xff"])
def test_a_file_that_holds_no_configuration(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(text.encode("latin1"))
    with pytest.raises(ConfigError, match=r"x\.yaml"):
        read_yaml(file)


# Control characters beyond line breaks do not survive PyYAML.
TEXT = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"], include_characters="\n\t"))


@settings(max_examples=40)
@given(
    size=st.tuples(st.integers(), st.integers()),
    title=TEXT,
    options=st.dictionaries(TEXT, st.one_of(st.floats(allow_nan=False), TEXT)),
    extra=st.one_of(st.none(), st.builds(Extra, names=st.lists(TEXT))),
)
def test_what_is_written_is_read(tmp_path_factory: Any, **values: Any) -> None:
    config = Everything(data=Data(size=values.pop("size")), **values)
    file = tmp_path_factory.mktemp("config") / "x.yaml"
    for text in (to_yaml(config), explained(config)):
        file.write_text(text, encoding="utf-8")
        assert load(Everything, read_yaml(file), where="x") == config
    assert differences(config, config) == []


def test_a_change_and_what_differs() -> None:
    new = change(Everything(), **{"data.batch_size": 8, "extra": {"size": 2}})
    assert differences(Everything(), new)[0] == ("data.batch_size", 64, 8)
    assert "batch_size: 8" in explained(new) and "# Datapoints in a batch." in explained(new)
