"""How much of a slow test runs: a sample with `make test`, all of it with `make test-full`."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")

SCALE = float(os.environ.get("TOWERPACK_TEST_SCALE", "0.05"))
if not 0 < SCALE <= 1:
    raise ValueError(f"TOWERPACK_TEST_SCALE is {SCALE}; expected more than 0 and at most 1.")


def scaled(count: int, *, at_least: int = 1) -> int:
    """How many of `count` cases to run."""
    return max(min(at_least, count), math.ceil(count * SCALE))


def sample(cases: Sequence[T], *, at_least: int = 1) -> list[T]:
    """Evenly spaced cases, the same ones every time; for `parametrize` and for loops."""
    number = scaled(len(cases), at_least=at_least)
    return [cases[i * len(cases) // number] for i in range(number)]


# For what other tests prove in another way, or what fails for one programmer only.
only_in_full = pytest.mark.skipif(SCALE < 1, reason="runs with `make test-full` only")
