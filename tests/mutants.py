"""Plant random mistakes in source files, and report those that no test notices.

    python tests/mutants.py [--number 50] [--since HEAD~3] [FILE…]

Each mistake is planted in a copy of `src`, for which the unit tests run that name what the file
defines. A mistake that survives is either a test that is missing, or changes nothing that matters.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
_SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult, ast.Mod: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
}  # fmt: skip


class Mutant(NamedTuple):
    """A mistake: its line, what it replaces by what, and the file with it."""

    line: int
    before: str
    after: str
    content: bytes


def mutants_of(file: Path) -> Iterator[Mutant]:
    """Iterate over all mistakes that can be planted in a file."""
    data = file.read_bytes()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node, after in _mistakes(ast.parse(data)):
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)
        content = data[:start] + after.encode() + data[end:]
        yield Mutant(node.lineno, data[start:end].decode(), after, content)


def _mistakes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Iterate over nodes below one, with the text of a mistake in the place of each."""
    for name, value in ast.iter_fields(node):
        # Annotations have no effect, and positions within f-strings are not known.
        if name in ("annotation", "returns", "decorator_list") or isinstance(node, ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                if isinstance(child, ast.expr | ast.stmt):
                    yield from ((child, after) for after in _replacements(child))
                yield from _mistakes(child)


def _replacements(node: ast.expr | ast.stmt) -> Iterator[str]:
    match node:
        case ast.Compare(left, [op], [right]) if type(op) in _SWAPPED:
            yield f"({ast.unparse(ast.Compare(left, [_SWAPPED[type(op)]()], [right]))})"
        case ast.BinOp(left, op, right) if type(op) in _SWAPPED:
            yield f"({ast.unparse(ast.BinOp(left, _SWAPPED[type(op)](), right))})"
        case ast.BoolOp(op, values):
            yield f"({ast.unparse(ast.BoolOp(_SWAPPED[type(op)](), values))})"
        case ast.UnaryOp(ast.Not() | ast.USub(), operand):
            yield f"({ast.unparse(operand)})"
        case ast.Constant(bool(value)):
            yield str(not value)
        case ast.Constant(int(value) | float(value)):
            yield f"({value + 1})"
        case ast.Expr(ast.Call()) | ast.AugAssign() | ast.Raise():
            yield "pass"
        case ast.Assign([ast.Attribute() | ast.Subscript()]):
            yield "pass"


def tests_of(file: Path) -> list[str]:
    """Return the unit tests of the file's package that are called like it, import or name it."""
    module = file.relative_to(ROOT / "src").with_suffix("")
    defined = [getattr(node, "name", "_") for node in ast.parse(file.read_bytes()).body]
    words = [".".join(module.parts), *(name for name in defined if name[0] != "_")]
    named = re.compile("|".join(rf"\b{re.escape(word)}\b" for word in words))
    folder = ROOT / "tests/unit" / Path(*module.parts[1:-1])
    tests = sorted(folder.glob("**/test_*.py")) or sorted(
        (ROOT / "tests/unit").glob("**/test_*.py")
    )
    like = f"test_{module.name.strip('_')}"
    own = [t for t in tests if t.stem.startswith(like) or named.search(t.read_text())]
    return [str(test) for test in own or tests]


def passes(source: Path, tests: list[str], limit_s: float | None) -> bool:
    """Return whether the tests pass with a copy of `src`; not if they take too long."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(source)}
    options = {"cwd": ROOT, "env": environment, "start_new_session": True}
    with subprocess.Popen([*command, *tests], stdout=subprocess.DEVNULL, **options) as process:
        try:
            return process.wait(limit_s) == 0
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="files below src/")
    parser.add_argument("--since", default="HEAD~1", help="without files: those changed since then")
    parser.add_argument("--number", type=int, default=20, help="of mistakes in each file")
    parser.add_argument("--seed", type=int, default=0, help="of the choice of mistakes")
    options = parser.parse_args()
    git = ["git", "diff", "--name-only", "--diff-filter=AM", options.since, "--", "src/*.py"]
    changed = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [f.resolve() for f in options.files] or [ROOT / name for name in changed.split()]
    planted = survived = 0
    with tempfile.TemporaryDirectory() as folder:
        source = Path(shutil.copytree(ROOT / "src", Path(folder) / "src"))
        for file in files:
            tests, copy = tests_of(file), source / file.relative_to(ROOT / "src")
            began = time.monotonic()
            if not tests or not passes(source, tests, None):
                print(f"{file.relative_to(ROOT)}: no tests, or they fail without any mistake")
                continue
            limit_s = 3 * (time.monotonic() - began) + 10
            found = list(mutants_of(file))
            random.Random(options.seed).shuffle(found)
            for mutant in found[: options.number]:
                copy.write_bytes(mutant.content)
                planted += 1
                if passes(source, tests, limit_s):
                    survived += 1
                    where = f"{file.relative_to(ROOT)}:{mutant.line}"
                    print(f"{where}: {mutant.before!r} -> {mutant.after!r}", flush=True)
            copy.write_bytes(file.read_bytes())
    print(f"{planted} planted, {survived} survived")


if __name__ == "__main__":
    main()
