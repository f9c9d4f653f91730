"""Configuration: what is written is what is read, and each mistake is told by its key."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from towerpack import ConfigError
from towerpack.config import (
    Config,
    PathText,
    Registry,
    change,
    differences,
    explained,
    from_folder,
    load,
    read_yaml,
    to_yaml,
)


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
    "no YAML": ({}, ["title=[1"], "'\\[1' is not a YAML value"),
    "no setting": ({}, ["batch_size"], "key=value"),
    "a pair without brackets": ({}, ["data.size=16,24"], r"write data.size=\[16,24\]"),
    "a pair with spaces": ({}, ["data.size=(16, 24)"], r"write data.size=\[16,24\]"),
    "a pair with a cross": ({}, ["data.size=16x24"], r"write data.size=\[16,24\]"),
    "one number for a pair": ({}, ["data.size=224"], r"write data.size=\[224,224\]"),
    "a list without brackets": ({"extra": {}}, ["names=box,fox"], r"extra.names=\[box,fox\]"),
    "a list of one": ({"extra": {}}, ["names=box"], r"write extra.names=\[box\]"),
    "out of range": (
        {},
        ["batch_size=0"],
        r"(?s)Some of the settings.*data.batch_size: .*greater than or equal to 1, got 0",
    ),
    "another type": (
        {"data": {"batch_size": "many"}},
        [],
        r"(?s)here\.yaml.*data.batch_size: .*integer.*'many'",
    ),
    "unknown in a file": ({"data": {"sizes": 3}}, [], "data.sizes: there is no such key. .*'size'"),
    "unknown in a section": ({"data": {"batch_sizes": 3}}, [], "Did you mean 'batch_size'"),
    "unknown at the top": ({"titles": ""}, [], "Did you mean 'title'"),
    "like a key of another section": ({"data": {"titles": ""}}, [], r"no such key\. *(?!.*title)"),
    "two at once": (
        {"titles": "", "data": {"size": 3}},
        [],
        r"(?s)data\.size.*titles: there is no such key",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_mistake_is_told_by_its_key(case: str) -> None:
    values, overrides, text = WRONG[case]
    with pytest.raises(ConfigError, match=text):
        load(Everything, values, overrides, where="here.yaml")


class Painted(Config):
    old_keys: ClassVar[dict[str, str]] = {"colours": "colors"}
    colors: list[int] = Field(default_factory=list)
    "Colors of the classes."


class Page(Config):
    data: Painted = Painted()


def test_old_keys_work_in_files_overrides_and_arguments() -> None:
    wanted = Page(data=Painted(colors=[1, 2]))
    old = {"data": {"colours": [1, 2]}}
    assert load(Page, old, where="x") == wanted == Page(data=Painted(colours=[1, 2]))
    for key in ("data.colours", "colours", "data.colors", "colors"):
        assert load(Page, old, [f"{key}=[3]"], where="x").data.colors == [3]
    assert change(wanted, **{"data.colours": [3]}).data.colors == [3]
    assert "colors: [1, 2]  " in explained(wanted) and "colours" not in to_yaml(wanted)
    with pytest.raises(ConfigError, match=r"data\.colours: there is no such key.*'colors'"):
        load(Page, {"data": {"colours": [1], "colors": [2]}}, where="x")


def test_names_differ_in_more_than_case_hyphens_and_underscores() -> None:
    registry: Registry[int] = Registry("thing", {"one-two": 12, "Three_x": 3, "same_a": 1})
    for name in ("one-two", "one_two", "One-Two", "ONE_TWO"):
        assert registry.get(name) == 12
    assert registry.get("three-X") == 3
    registry.register("same-a", 2)
    assert (registry.get("same_a"), registry.get("same-a")) == (1, 2)
    for name, near in (("onetwo", "one-two"), ("SAME_A", "same_a")):  # the second means both
        with pytest.raises(ConfigError, match=f"(?s)There is no thing.*Did you mean.*'{near}'"):
            registry.get(name)


def test_paths_in_a_file_start_at_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Inner(Config):
        path: str | None = None
        title: str = "here"

    class Paths(Config):
        file: PathText = "default"
        object: Path | None = None
        inner: Inner = Inner()
        several: list[Inner] = Field(default_factory=list)

    folder, elsewhere = tmp_path / "recipes", tmp_path / "elsewhere"
    for each in (folder / "both", elsewhere / "both", elsewhere / "here", elsewhere / "name"):
        each.mkdir(parents=True)
    monkeypatch.chdir(elsewhere)

    def of(value: str) -> str | None:
        values = {"inner": {"path": value, "title": "both"}, "file": value, "object": value}
        found = load(Paths, from_folder(Paths, values, folder, ["name-x"]), where="x")
        assert (found.file, found.inner.title) == (found.inner.path, "both")
        assert str(found.object) == found.file
        return found.inner.path

    assert of("both") == str(folder / "both")
    assert of("../recipes/nowhere") == str(folder / "nowhere")
    assert of("here") == "here"  # it exists in the working directory alone
    assert of("name_x") == "name_x"
    assert of("~/x") == "~/x" and of("/x") == "/x"


BOMB = "\n".join(
    ["a0: &a0 [1]", *(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12))]
)


MERGED = "\n".join(
    ["a0: &a0 {k: 1}"]
    + [f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}]}}" for i in range(1, 12)]
)


@pytest.mark.parametrize(
    "text",
    [
        MERGED,
        "a: [",
        "- 1",
        "\xff",
        BOMB,
        "a: " + "[" * 5000,
        "a: " + "7" * 5000,
        "a: &a [*a]",
        "a: 2001-99-99",
    ],
)
def test_a_file_that_holds_no_configuration(tmp_path: Path, text: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_bytes(text.encode("latin1"))
    with pytest.raises(ConfigError, match=r"x\.yaml") as caught:
        read_yaml(file)
    assert len(str(caught.value)) < 1000


def test_yaml_has_at_most_100_000_values(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    hundred = f"a: &a [{', '.join('7' * 99)}]"  # a list and 99 numbers
    # The mapping, two keys and the list of aliases are values, too.
    file.write_text(f"{hundred}\nb: [{', '.join(['*a'] * 998)}, {', '.join('7' * 96)}]")
    assert len(read_yaml(file)["b"]) == 998 + 96
    file.write_text(f"{hundred}\nb: [{', '.join(['*a'] * 998)}, {', '.join('7' * 97)}]")
    with pytest.raises(ConfigError, match="more than 100,000 values"):
        read_yaml(file)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    for path, reason in ((tmp_path / "x.yaml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(ConfigError, match=f"{path} cannot be read: {reason}"):
            read_yaml(path)


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
