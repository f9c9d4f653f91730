"""The website builds without a warning, and its reference has an entry for every public name."""

from __future__ import annotations

import html
import re
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


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The website, built without a warning."""
    folder = tmp_path_factory.mktemp("site").resolve()
    command = [sys.executable, "-m", "sphinx", "-W", "-n", "-q", "docs", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_website_has_every_public_name(site: Path) -> None:
    inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
    described = {name for kind in inventory.data.values() for name in kind}
    names = (ROOT / "tests" / "unit" / "public_names.txt").read_text().split()
    assert set(names) - described == set()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_links_between_pages_lead_somewhere(site: Path) -> None:
    """Sphinx writes `href="#target"` if it cannot resolve a target."""
    pages = [*site.glob("*.html"), *site.glob("tutorials/*.html")]
    texts = {page: page.read_text() for page in pages}
    broken = []
    for page, text in texts.items():
        for link in re.findall(r'href="([^"?:]*)"', text):
            file, _, anchor = html.unescape(link).partition("#")
            target = page.parent / file if file else page
            known = texts.get(target.resolve(), f'id="{anchor}"')
            if not target.exists() or (anchor and f'id="{anchor}"' not in known):
                broken.append(f"{page.name}: {link}")
    assert broken == []


@pytest.mark.slow
@pytest.mark.parametrize("page", sample(TUTORIALS, at_least=1), ids=lambda page: page.stem)
def test_a_tutorial_runs_as_a_notebook(page: Path, tmp_path: Path) -> None:
    notebook = jupytext.read(page)
    client = nbclient.NotebookClient(
        notebook, timeout=280, resources={"metadata": {"path": tmp_path}}
    )
    client.execute()  # raises if a cell fails
    assert any(cell.cell_type == "code" and cell.outputs for cell in notebook.cells)
