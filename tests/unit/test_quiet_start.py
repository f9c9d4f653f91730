"""What a starting TensorFlow says: the usual lines are kept for the log, others go to stderr.

That the real one starts quietly is a part of `test_imports`.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

USUAL = "I0000 00:00:1795341283.902649    8722 port.cc:153] oneDNN custom operations are on."
NO_DRIVER = "E0000 00:00:17.6 8 cuda_platform.cc:52] failed call to cuInit: UNKNOWN ERROR (303)"
SERIOUS = "W0000 00:00:17.6 8 gpu_device.cc:2341] Cannot dlopen some GPU libraries."


def run(program: str, *folders: Path) -> subprocess.CompletedProcess[str]:
    program = f"import sys; sys.path[:0] = {[str(f) for f in folders]}\n{textwrap.dedent(program)}"
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)


def fake_tensorflow(folder: Path, body: str) -> Path:
    """A package of that name which writes lines to descriptor 2, and does what the body says."""
    said = "\n".join([USUAL, NO_DRIVER, SERIOUS, "something else", ""])
    (folder / "tensorflow").mkdir()
    text = f"import os, threading\nos.write(2, {said.encode()!r})\n{body}\n"
    (folder / "tensorflow" / "__init__.py").write_text(text)
    return folder


REQUIRE = """
from towerpack._core.extras import require
require("tensorflow", extra="tf", needed_for="it")
print("done", file=sys.stderr)
"""


def test_only_the_usual_lines_are_kept(tmp_path: Path) -> None:
    done = run(REQUIRE, fake_tensorflow(tmp_path, ""))
    assert done.stderr.splitlines() == [SERIOUS, "something else", "done"]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("raise ImportError('libbroken.so')", "MissingExtraError"),
        ("raise KeyError('odd')", "KeyError"),
        ("os.abort()", ""),
        ("os.kill(os.getpid(), 9)", ""),
    ],
)
def test_of_a_broken_one_everything_is_shown(tmp_path: Path, body: str, told: str) -> None:
    done = run(REQUIRE, fake_tensorflow(tmp_path, body))
    assert done.returncode != 0
    assert done.stderr.splitlines()[:4] == [USUAL, NO_DRIVER, SERIOUS, "something else"]
    assert told in done.stderr


def test_where_other_threads_run_nothing_is_turned_aside(tmp_path: Path) -> None:
    program = f"""
import threading
event = threading.Event()
threading.Thread(target=event.wait).start()
try:
    {REQUIRE.replace(chr(10), chr(10) + "    ")}
finally:
    event.set()
"""
    done = run(program, fake_tensorflow(tmp_path, ""))
    assert done.stderr.splitlines() == [USUAL, NO_DRIVER, SERIOUS, "something else", "done"]


def test_without_stderr_it_is_imported_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "tensorflow.py").write_text("print('imported')")
    done = run("import os; os.close(2)\n" + REQUIRE.replace("print", "# "), tmp_path)
    assert (done.returncode, done.stdout) == (0, "imported\n")
