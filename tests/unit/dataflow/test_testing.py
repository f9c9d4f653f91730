"""`check_flow` checks every law of the contract."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import pytest

from towerpack import dataflow as df
from towerpack.dataflow.testing import (
    LawError,
    check_flow,
    check_independence,
    check_length,
    check_pass,
    check_reading,
)


class Wearing(df.DataFlow):
    """Four datapoints, which change after `passes` passes over an instance."""

    def __init__(self, passes: int) -> None:
        self.passes = passes

    def __iter__(self) -> Iterator[Any]:
        self.passes -= 1
        shift = 10 * (self.passes < 0)
        yield from ((i + shift,) for i in range(4))


class Shorter(Wearing):
    def __len__(self) -> int:
        return 5


class OnePosition(df.DataFlow):
    """All iterators over an instance share one position."""

    def __iter__(self) -> Iterator[Any]:
        self.position = 0
        while self.position < 4:
            yield (self.position,)
            self.position += 1


class Tape(df.DataFlow):
    """Datapoints that are right only if they are read in order."""

    last = 0

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        jumped = index > self.last + 1
        self.last = index
        return (index + 10 * jumped,)


def changing_from(number: int) -> Callable[[], df.DataFlow]:
    """Return a function that makes flows, whose datapoints differ from the given instance on."""
    instances = count()
    return lambda: Wearing(0 if next(instances) >= number else 1000)


def test_every_law_is_checked() -> None:
    check_flow(lambda: Wearing(1000))
    made: list[df.DataFlow] = []
    for check in (check_pass, check_length, check_independence, check_reading):
        check(lambda: made.append(Wearing(1000)) or made[-1])
    for make, message in (
        (lambda: Wearing(2), "epoch 1 again"),
        (lambda: Shorter(1000), r"len\(\) 5, but epoch 0 has 4 datapoints"),
        (OnePosition, "beside another"),
        (Tape, "in another order"),
        (changing_from(len(made) + 2), "restored at 0 once"),
    ):
        with pytest.raises(LawError, match=message):
            check_flow(make)
