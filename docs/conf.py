"""Sphinx builds the website from the pages in this folder: `make docs`."""

from __future__ import annotations

import inspect
import os
import re
import sys
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from typing import Any

import jupytext
from docutils.nodes import Element
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

# The reference imports every module; none of them needs a device.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "src"))

import towerpack  # noqa: E402

project = "Towerpack"
author = "The Towerpack developers"
copyright = f"2026, {author}"
version = release = towerpack.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_design",
]
html_extra_path = ["extra"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
suppress_warnings = [
    "myst.xref_missing",  # links to files of the repository
    "ref.python",  # one object under several public names
]

default_role = "code"  # `name` in docstrings is code, as in Markdown
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True

# Chromium does not let a page on disk read the pages from which summaries would come.
html_show_search_summary = False
html_theme = "pydata_sphinx_theme"
html_title = f"Towerpack {version}"
html_theme_options = {
    "show_prev_next": False,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "header_links_before_dropdown": 6,
}


NAMES = (HERE.parent / "tests" / "unit" / "public_names.txt").read_text().split()
PAGES = {name.rpartition(".")[0] for name in NAMES}  # modules that have a page
HOMES: dict[int, str] = {}  # of each public object: the name under which it is described


def write_reference() -> None:
    """Write a page for each public module, with an entry for each of its names."""
    modules: dict[str, list[str]] = defaultdict(list)
    # An object is described under the name that its package gives it, not under the shorter one.
    for name in sorted(NAMES, key=lambda n: (n.count(".") == 1, n.count("."), n)):
        module, _, attribute = name.rpartition(".")
        modules[module].append(entry(module, attribute))
    folder = HERE / "reference"
    folder.mkdir(exist_ok=True)
    for module, entries in modules.items():
        text = f"# {module}\n\n```{{eval-rst}}\n.. py:module:: {module}\n\n{''.join(entries)}```\n"
        (folder / f"{module}.md").write_text(text)
    pages = "\n".join(sorted(modules))
    (folder / "index.md").write_text(
        f"# API reference\n\n```{{toctree}}\n:maxdepth: 1\n\n{pages}\n```\n"
    )


def entry(module: str, attribute: str) -> str:
    """Return the directive that describes a public name."""
    try:
        thing = getattr(import_module(module), attribute)
    except ModuleNotFoundError:  # only a stub names it there
        thing = import_module(f"{module}.{attribute}")
    name = f"{module}.{attribute}"
    ours = getattr(thing, "__module__", "").startswith("towerpack.")
    if inspect.ismodule(thing):
        if name in PAGES:
            return ""
        return f".. py:data:: {attribute}\n\n   Alias of the module `{thing.__name__}`.\n\n"
    if not ours or not callable(thing):
        return f".. py:data:: {attribute}\n   :type: {type(thing).__name__}\n\n"
    kind = "class" if isinstance(thing, type) else "function"
    if HOMES.setdefault(id(thing), name) != name:
        link = HOMES[id(thing)]
        return f".. py:{kind}:: {attribute}\n   :no-typesetting:\n\n- :py:obj:`{link}`\n\n"
    return f".. auto{kind}:: {name}\n" + "   :members:\n" * (kind == "class") + "\n"


def resolve(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, text: Element
) -> Element | None:
    """Link a type that is named by its private module to its public entry, if it has one."""
    module, _, attribute = node.get("reftarget", "").rpartition(".")
    try:
        home = HOMES[id(getattr(import_module(module), attribute))]
    except AttributeError:
        # Sphinx warns of a name that our modules do not have: a mistake in a docstring.
        return None if module.startswith("towerpack") else text
    except (ImportError, KeyError, ValueError):
        return text  # a type of another library, or a private one
    domain = env.get_domain("py")
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", home, node, text)


def as_rst(app: Sphinx, kind: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Turn a docstring's indented code and tables, as in Markdown, into literal blocks of RST."""
    text: list[str] = []
    in_code = in_section = False
    for index, line in enumerate(lines):
        indented, table = line.startswith("    "), line.startswith("|")
        in_section = in_section or bool(re.fullmatch(r"(Args|Attributes|Raises):", line))
        begins = index > 0 and not lines[index - 1].strip()
        if (table or (indented and not in_section)) and begins and not in_code:
            text += ["::", ""]
            in_code = True
        elif line.strip() and not indented and not table:
            in_code = False
        line = re.sub(r"^( +)\*args, \*\*kwargs:", r"\1\\*args, \\*\\*kwargs:", line)
        line = re.sub(r"`s\b", r"`\\ s", line)
        if not in_code:
            line = re.sub(r"\[\*(\w+)", r"[\\*\1", line) if line.count("`") < 2 else line
        text.append("    " + line if table else line)
    lines[:] = text


def write_notebooks() -> None:
    """Write each tutorial as a notebook too."""
    folder = HERE / "extra" / "notebooks"
    folder.mkdir(parents=True, exist_ok=True)
    for page in (HERE / "tutorials").glob("[!i]*.md"):
        jupytext.write(jupytext.read(page), folder / page.with_suffix(".ipynb").name)


def setup(app: Sphinx) -> None:
    """Add the links from private names to public ones."""
    app.connect("missing-reference", resolve)
    app.connect("autodoc-process-docstring", as_rst, priority=400)  # before napoleon


# Sphinx looks for pages after it has read this file.
write_reference()
write_notebooks()
