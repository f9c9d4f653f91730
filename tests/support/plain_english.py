"""Rules of `CONTRIBUTING.md` for docstrings, names and errors; samples of them to read.

As a program: `python tests/support/plain_english.py [FOLDER …]` lists what breaks the rules below
the folders, and `python tests/support/plain_english.py --sample SEED` prints 60 docstrings and 40
errors with their fixes, drawn at random, for somebody who reads them without the code.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import os
import random
import re
import textwrap
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "src" / "towerpack"
PUBLIC_NAMES = ROOT / "tests" / "unit" / "public_names.txt"

FIRST_WORDS = re.compile(
    r"(What(ever)?|How|Where(ver)?|Which(ever)?|Those|Who(se|ever)?|Of|As|With(out)?|Its?|That|This"
    r"|These|They|Them|Nobody|Nothing|None|All|Both|Each|Everything|When|One|Ones|Such|If|For|To|In|On"
    r"|By|From|At|And|But|Or|Not|Also|Only|There|Here|Because|So|Then|Than|Like|Into|Until|Unless|After"
    r"|Before|Again|Is|Are|Was|Has|Have|Does|Do|Can|May|Must)\b(?!-)"
)
VAGUE_NAMES = set(["told", "found", "given", "of", "at", "one", "own", "kept", "there", "made"])
NODES_WITH_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
# First words of a fix, beside the command `towerpack`.
IMPERATIVES = set(Path(__file__).with_name("imperatives.txt").read_text().split())
SECTION = re.compile(r"^\s*(Args|Attributes|Returns|Yields|Raises|Examples?|Notes?):\s*$", re.M)
LONGEST_SENTENCE = 30  # words


class Fault(NamedTuple):
    """One place that breaks a rule."""

    file: Path
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}:{self.line}: {self.rule}: {self.text}"


def python_files(*folders: Path) -> list[Path]:
    """Return the source files of the library, or those below the given folders."""
    paths = [p for f in folders or (SOURCES,) for p in ([f] if f.is_file() else f.rglob("*.py"))]
    return sorted(p.resolve() for p in paths)


def docstrings(path: Path) -> Iterator[tuple[ast.AST, str]]:
    """Iterate over the documented nodes of a file and their docstrings."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, NODES_WITH_DOCSTRINGS) and (text := ast.get_docstring(node)):
            yield node, text


def faults_of_docstrings(path: Path) -> Iterator[Fault]:
    """Find first words without a meaning of their own and sentences that are too long."""
    for node, text in docstrings(path):
        line = node.body[0].lineno  # type: ignore[attr-defined]
        first = text.partition("\n\n")[0].replace("\n", " ")
        if FIRST_WORDS.match(first):
            yield Fault(path, line, "first word", first)
        if len(first.split()) < 2:
            yield Fault(path, line, "fragment", first)
        for sentence in sentences(text):
            if len(sentence.split()) > LONGEST_SENTENCE:
                yield Fault(path, line, f"over {LONGEST_SENTENCE} words", sentence)


def sentences(docstring: str) -> list[str]:
    """Split the prose of a docstring; leave out examples, tables, drawings and arguments."""
    prose, _, _ = docstring.partition("\n::")
    paragraphs = SECTION.split(prose)[0].split("\n\n")
    plain = [p for p in paragraphs if not re.match(r"\s|>>>|[-*|+`.]", p)]
    return re.split(r"(?<=[.!?:;])\s+", " ".join(" ".join(plain).split()))


def faults_of_names(path: Path) -> Iterator[Fault]:
    """Find variables, parameters and attributes that do not say what they hold."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                pass
            case ast.arg(arg=name) | ast.FunctionDef(name=name):
                pass
            case _:
                continue
        if name.strip("_") in VAGUE_NAMES:
            yield Fault(path, node.lineno, "vague name", name)


def errors(path: Path) -> Iterator[tuple[ast.Call, str, str]]:
    """Iterate over the errors of a file that have a fix: node, source and fix."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            fix = next((k.value for k in node.keywords if k.arg == "fix"), None)
            if fix is not None and not isinstance(fix, (ast.Name, ast.Attribute)):
                yield node, ast.unparse(node), _template(fix)


def _template(node: ast.expr) -> str:
    """Return the text of a literal; values in braces."""
    match node:
        case ast.Constant(value=value):
            return str(value)
        case ast.JoinedStr(values=values):
            return "".join(_template(v) for v in values)
        case ast.FormattedValue(value=value):
            return "{" + ast.unparse(value) + "}"
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _template(left) + _template(right)
        case ast.IfExp(body=body):
            return _template(body)
        case _:
            return "{" + ast.unparse(node) + "}"


def faults_of_fixes(path: Path) -> Iterator[Fault]:
    """Find fixes that do not begin with an imperative, and help texts that are fragments."""
    for node, _, fix in errors(path):
        first = re.split(r"[\s:,;]", fix, maxsplit=1)[0]
        if not fix.startswith(("{", "`towerpack ")) and first.lower() not in IMPERATIVES:
            yield Fault(path, node.lineno, "fix without an imperative", fix)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.keyword) and node.arg == "help":
            text = _template(node.value)
            if FIRST_WORDS.match(text) or not text.endswith((".", ")", "}")):
                yield Fault(path, node.value.lineno, "help text", text)


RULES = (faults_of_docstrings, faults_of_names, faults_of_fixes)


def faults(*folders: Path) -> list[Fault]:
    """Return everything below the folders that breaks a rule."""
    return [f for path in python_files(*folders) for rule in RULES for f in rule(path)]


def undocumented() -> Iterator[Fault]:
    """Find arguments and raised errors of public callables that their docstrings do not name."""
    for name, function, text in _public_callables():
        parts = SECTION.split(text)
        sections = list(zip(parts[1::2], parts[2::2], strict=True))
        arguments = "".join(t for title, t in sections if title in ("Args", "Attributes"))
        raises = "".join(text for title, text in sections if title == "Raises")
        code = inspect.unwrap(function)
        path, line = Path(code.__code__.co_filename).resolve(), code.__code__.co_firstlineno
        if not path.is_relative_to(SOURCES):  # what a base class of Python's brings
            continue
        for parameter in inspect.signature(function).parameters:
            entry = rf"^\s*(?:[\w*]+, )*\*{{0,2}}{parameter}\b.*:"
            hidden = parameter in ("self", "cls") or parameter.startswith("_")
            if not hidden and not re.search(entry, arguments, re.M):
                yield Fault(path, line, "argument not documented", f"{name}({parameter})")
        for error in sorted(_raised(code)):
            if error not in raises:
                yield Fault(path, line, "error not documented", f"{name} raises {error}")


def _public_callables() -> Iterator[tuple[str, object, str]]:
    """Iterate over functions, constructors and methods that programs call."""
    seen: set[int] = set()
    for name in PUBLIC_NAMES.read_text().split():
        thing = _resolve(name)
        if id(thing) in seen or not getattr(thing, "__module__", "").startswith("towerpack"):
            continue
        seen.add(id(thing))
        if inspect.isfunction(thing):
            yield name, thing, inspect.getdoc(thing) or ""
        elif inspect.isclass(thing):
            init = thing.__dict__.get("__init__")
            code = getattr(inspect.unwrap(init), "__code__", None) if init else None
            if code is not None and not code.co_filename.startswith("<"):
                text = "\n\n".join(filter(None, (inspect.getdoc(thing), init.__doc__)))
                yield name, init, inspect.cleandoc(text)
            for key, member in thing.__dict__.items():
                method = getattr(member, "__func__", member)
                if not key.startswith("_") and inspect.isfunction(method) and method.__doc__:
                    # What an overridden method says about arguments holds for the override too.
                    bases = [getattr(c, key).__doc__ for c in thing.__mro__ if hasattr(c, key)]
                    texts = [inspect.cleandoc(text or "") for text in bases]
                    yield f"{name}.{key}", method, "\n\n".join(texts)


def _resolve(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    try:
        return getattr(import_module(module), attribute)
    except ModuleNotFoundError:
        return getattr(_resolve(module), attribute)


def _raised(function: object) -> set[str]:
    """Return the classes of the errors that a function raises itself and does not hide."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))  # type: ignore[arg-type]
    calls = [n.exc for n in ast.walk(tree) if isinstance(n, ast.Raise)]
    named = [c.func for c in calls if isinstance(c, ast.Call)]
    return {f.id for f in named if isinstance(f, ast.Name) and f.id[0].isupper()} - {
        "NotImplementedError"
    }


def sample(seed: int) -> str:
    """Draw 60 docstrings and 40 errors, numbered, as a newcomer without the code sees them."""
    draw = random.Random(seed)
    texts = [(p, n, t) for p in python_files() for n, t in docstrings(p)]
    calls = [(p, n, t) for p in python_files() for n, t, _ in errors(p)]
    rows = []
    for number, (path, node, text) in enumerate(draw.sample(texts, 60), 1):
        name = getattr(node, "name", path.stem)
        rows.append(
            f"D{number}. {path.relative_to(SOURCES)} · {name}\n{textwrap.indent(text, '    ')}"
        )
    for number, (path, node, text) in enumerate(draw.sample(calls, 40), 1):
        rows.append(f"E{number}. {path.relative_to(SOURCES)}:{node.lineno}\n    {text}")
    return "\n\n".join(rows)


def main() -> None:
    """Print a sample, or what breaks the rules."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, help="Folders or files to look through.")
    parser.add_argument("--sample", type=int, metavar="SEED", help="Print a random sample instead.")
    options = parser.parse_args()
    if options.sample is not None:
        print(sample(options.sample))
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    files = set(python_files(*options.folders))
    rows = [*faults(*options.folders), *(f for f in undocumented() if f.file in files)]
    print(*rows, f"{len(rows)} places", sep="\n")


if __name__ == "__main__":
    main()
