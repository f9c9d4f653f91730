"""Every Python block of the README and of docs/ runs.

The blocks of a page are one program, run from top to bottom in an empty folder. A block that is not
to run has its reason on the line before it: `<!-- not run: needs two machines -->`.
"""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from warm_python import warm_python

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *(p for p in sorted((ROOT / "docs").rglob("*.md")) if "reference" not in p.parts),
]
OPENS = re.compile(r"^(?P<indent> *)```(?:python|py)\s*$")
NOT_RUN = re.compile(r"^\s*<!-- not run: \S.* -->\s*$")


def program(page: str) -> str:
    """The page with all but its Python blocks blanked, so that line numbers stay true."""
    out: list[str] = []
    inside: re.Match[str] | None = None
    runs = False
    before = ""
    for line in page.splitlines():
        if inside is None:
            inside = OPENS.match(line)
            runs = not NOT_RUN.match(before)
            out.append("")
        elif line.strip() == "```":
            inside = None
            out.append("")
        else:
            out.append(line.removeprefix(inside["indent"]) if runs else "")
        before = line
    return "\n".join(out) + "\n"


def outputs(page: str) -> list[str]:
    """Lines in text blocks that directly follow a Python block, and `print(…)  # comments`."""
    blocks = re.findall(
        r"^```python\n(?:(?!```).*\n)*```\n\n```text\n((?:(?!```).*\n)*)", page, re.M
    )
    return [*"".join(blocks).splitlines(), *re.findall(r"^print\(.*\)  # (.*)$", page, re.M)]


def shape(line: str) -> str:
    """A line without numbers, hashes and folders, which differ between machines, and spaces."""
    line = re.sub(r"\b[0-9a-f]{8}\b|\S*/", "", line)
    return re.sub(r"[\d.:,─…<\s-]+", "", line)


def _speed(path: Path) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if program(path.read_text()).strip() else []


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=str(p.relative_to(ROOT)), marks=_speed(p)) for p in PAGES]
)
def test_page_runs(path: Path, tmp_path: Path) -> None:
    script = tmp_path / path.with_suffix(".py").name
    script.write_text(program(path.read_text()))
    warm_children = "sys.executable" in script.read_text()
    command = [*warm_python(children=warm_children), str(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"{path.relative_to(ROOT)}, same line numbers:\n{done.stderr}"
    printed = {shape(line) for line in (done.stdout + done.stderr).splitlines()}
    missing = [line for line in outputs(path.read_text()) if shape(line) not in printed]
    assert not missing, f"{path.relative_to(ROOT)} does not print: {missing}"


@pytest.mark.parametrize("path", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda path: path.stem)
def test_a_page_has_at_most_2000_words(path: Path) -> None:
    assert len(path.read_text().split()) <= 2000


def test_the_table_of_failures_names_tests_that_there_are() -> None:
    lines = (ROOT / "docs" / "reliability.md").read_text().splitlines()
    rows = [line for line in lines if line.startswith("| ") and "proved by" not in line]
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`([\w/]+\.py)::(\w+)`", row)
        assert named, row
        for file, name in named:
            assert f"def {name}(" in (ROOT / "tests" / file).read_text(), f"{file}::{name}"


def test_the_recipes_for_clusters_can_be_parsed() -> None:
    page = (ROOT / "docs" / "ray.md").read_text()
    (job,) = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    tree = yaml.safe_load(job)
    cluster = tree["spec"]["rayClusterSpec"]
    (group,) = cluster["workerGroupSpecs"]
    assert tree["kind"] == "RayJob" and group["template"] == cluster["headGroupSpec"]["template"]
    assert f"--workers {group['minReplicas']}:{group['maxReplicas']}" in tree["spec"]["entrypoint"]
    scripts = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    assert any("--requeue" in script for script in scripts)
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)


PAGE = """\
Text.
```python
x = 1
```
  ```py
  y = x + 1
  ```
<!-- not run: needs two machines -->
```python
z = cluster()
```
<!-- not run: -->
```python
y += 1
```
```sh
rm -r everything
```
"""


OUTPUT = """\
```python
print(3)  # 3
print(4)     # a remark
```

```text
cost  0.5
```

```text
not an output
```
"""


def test_outputs_are_text_blocks_after_code_and_comments_after_print() -> None:
    assert outputs(OUTPUT) == ["cost  0.5", "3"]
    assert shape("10:42:43     1       2.3 s") == shape("10:42:44     1       0.1 s")


def test_blocks_are_one_program_with_the_lines_of_the_page() -> None:
    lines = program(PAGE).splitlines()
    assert {n: line for n, line in enumerate(lines, 1) if line} == {
        3: "x = 1",
        6: "y = x + 1",
        14: "y += 1",  # an opt-out without a reason is none
    }
