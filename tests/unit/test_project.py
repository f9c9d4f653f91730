"""What the repository may hold."""

from __future__ import annotations

import re
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Written in pieces, so that this file does not hold what it forbids.
PACKAGE_HOST = re.compile(
    r"(?:index|registry)(?:-url|\s*=\s*\"?https?:)"
    r"|https?://\S*/sim" + r"ple\b"
    r"|https?://(?:[\w.-]+\.)?(?:pypi|pythonhosted|npmjs|anaconda)" + r"\.(?:org|com)"
)
MACHINE_PATH = re.compile(r"(?<![\w.~-])/(?:home|Users)/\w+/|(?<![\w.~-])/(?:root|opt)/\w")


def tracked() -> list[Path]:
    """The repository's files; in an unpacked archive, the files of its folders."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        return [ROOT / name for name in listed.stdout.split("\0") if name]
    folders = ["src", "tests", "docs", "examples", "benchmarks", ".ci"]
    return [*ROOT.glob("*.*"), *(path for name in folders for path in (ROOT / name).rglob("*.*"))]


@cache
def lines() -> list[tuple[str, str]]:
    """Every line of every text file, with its place."""
    found: list[tuple[str, str]] = []
    for path in tracked():
        if path.is_file() and b"\0" not in (data := path.read_bytes())[:8192]:
            text = data.decode(errors="replace").splitlines()
            found += [(f"{path.relative_to(ROOT)}:{n}", line) for n, line in enumerate(text, 1)]
    return found


def test_no_file_names_a_package_host() -> None:
    assert [place for place, line in lines() if PACKAGE_HOST.search(line)] == []


def test_no_file_names_a_path_of_the_machine() -> None:
    places = {ROOT, ROOT.parent} - {Path("/"), Path(tempfile.gettempdir())}
    here = re.compile("|".join(rf"(?<![\w.~-]){re.escape(str(path))}/" for path in places))
    found = [place for place, line in lines() if MACHINE_PATH.search(line) or here.search(line)]
    assert found == []


@pytest.mark.parametrize(
    ("pattern", "line"),
    [
        (PACKAGE_HOST, "pip install --index" + "-url x"),
        (PACKAGE_HOST, "registry" + ' = "https://packages.example"'),
        (PACKAGE_HOST, "https:" + "//packages.example/sim" + "ple/numpy"),
        (PACKAGE_HOST, "https:" + "//files.pythonhosted" + ".org/x.whl"),
        (MACHINE_PATH, "see /ho" + "me/me/towerpack"),
        (MACHINE_PATH, "see /op" + "t/wheels"),
    ],
)
def test_what_is_forbidden_is_recognised(pattern: re.Pattern[str], line: str) -> None:
    assert pattern.search(line)


def test_no_lock_file_is_tracked() -> None:
    locks = {"uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock", "package-lock.json"}
    assert [path for path in tracked() if path.name in locks] == []


def test_constraints_hold_versions_only() -> None:
    pins = (ROOT / "constraints.txt").read_text().splitlines()
    wrong = [pin for pin in pins if not re.fullmatch(r"#.*|[\w.-]+==[\w.]+", pin)]
    assert wrong == []
