"""The website builds without a warning, and its reference has an entry for every public name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jupytext
import nbclient
import pytest
from sphinx.util.inventory import InventoryFile

from scaling import sample

ROOT = Path(__file__).parents[2]
TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("[!i]*.md"))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_website_has_every_public_name(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-W", "-n", "-q", "docs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    inventory = InventoryFile.loads((tmp_path / "objects.inv").read_bytes(), uri="")
    described = {name for kind in inventory.data.values() for name in kind}
    names = (ROOT / "tests" / "unit" / "public_names.txt").read_text().split()
    assert set(names) - described == set()


@pytest.mark.slow
@pytest.mark.parametrize("page", sample(TUTORIALS, at_least=1), ids=lambda page: page.stem)
def test_a_tutorial_runs_as_a_notebook(page: Path, tmp_path: Path) -> None:
    notebook = jupytext.read(page)
    client = nbclient.NotebookClient(
        notebook, timeout=280, resources={"metadata": {"path": tmp_path}}
    )
    client.execute()  # raises if a cell fails
    assert any(cell.cell_type == "code" and cell.outputs for cell in notebook.cells)
