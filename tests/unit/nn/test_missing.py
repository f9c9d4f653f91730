"""Without TensorFlow, a sentence says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
sys.modules["tensorflow"] = None
try:
    import {module}
except ImportError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize(
    "module", ["towerpack.nn", "towerpack.inputs", "towerpack.tower", "towerpack.model"]
)
def test_the_extra_is_named(module: str) -> None:
    command = [sys.executable, "-c", PROGRAM.format(module=module)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.startswith(f"MissingExtraError {module} needs the package 'tensorflow'")
    assert 'pip install "towerpack[tf]"' in printed
