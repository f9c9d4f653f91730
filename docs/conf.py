"""Sphinx builds the website from the pages in this folder: `make docs`."""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from importlib import import_module
from pathlib import Path

# The reference imports every module; none of them needs a device.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "src"))

import towerpack  # noqa: E402

project = "Towerpack"
author = "The Towerpack developers"
copyright = f"2026, {author}"  # noqa: A001
version = release = towerpack.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode",
              "sphinx_design"]
exclude_patterns = ["build"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = ["myst.xref_missing"]  # links to files of the repository

default_role = "code"  # `name` in docstrings is code, as in Markdown
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
# References to types of other libraries: their own pages are elsewhere, and the build is offline.
nitpick_ignore_regex = [("py:.*", r"(?!towerpack\.).*")]

html_theme = "pydata_sphinx_theme"
html_title = f"Towerpack {version}"
html_theme_options = {
    "show_prev_next": False,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "header_links_before_dropdown": 7,
}


def write_reference() -> None:
    """Write a page for each public module, with an entry for each of its names."""
    names = (HERE.parent / "tests" / "unit" / "public_names.txt").read_text().split()
    modules: dict[str, list[str]] = defaultdict(list)
    homes: dict[int, str] = {}
    # A name is described where it is defined, most often in a package below `towerpack`.
    for name in sorted(names, key=lambda n: (-n.count("."), n)):
        module, _, attribute = name.rpartition(".")
        modules[module].append(attribute)
    folder = HERE / "reference"
    folder.mkdir(exist_ok=True)
    for module, attributes in sorted(modules.items()):
        rows = [f"# `{module}`\n", f"```{{eval-rst}}\n.. py:module:: {module}\n"]
        for attribute in sorted(attributes):
            rows.append(entry(module, attribute, homes))
        (folder / f"{module}.md").write_text("\n".join(rows) + "\n```\n")
    pages = "\n".join(sorted(modules))
    (folder / "index.md").write_text(
        f"# API reference\n\n```{{toctree}}\n:maxdepth: 1\n\n{pages}\n```\n"
    )


def entry(module: str, attribute: str, homes: dict[int, str]) -> str:
    """Return the directive that describes a name, or a link to the place that describes it."""
    try:
        thing = getattr(import_module(module), attribute)
    except ModuleNotFoundError:
        thing = import_module(f"{module}.{attribute}")
    name = f"{module}.{attribute}"
    kind = "class" if isinstance(thing, type) else "function" if callable(thing) else "data"
    if kind != "data" and homes.setdefault(id(thing), name) != name:
        return f".. py:{kind}:: {attribute}\n\n   Same as :py:obj:`{homes[id(thing)]}`.\n"
    members = "\n   :members:\n   :show-inheritance:" if kind == "class" else ""
    return f".. auto{kind}:: {name}{members}\n"


write_reference()
