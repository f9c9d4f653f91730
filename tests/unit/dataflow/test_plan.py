"""Plans: random access as a pure function of (seed, epoch, position)."""

from __future__ import annotations

import itertools
import subprocess
import sys

import numpy as np
import pytest

from towerpack._core.errors import ConfigError
from towerpack.dataflow import (
    BatchData,
    ConcatData,
    DataFromArrays,
    DataFromGenerator,
    MapData,
    RepeatedData,
    ShuffleData,
)


def arrays(n: int = 30) -> DataFromArrays:
    return DataFromArrays(np.arange(n), np.arange(n) * 0.5)


def test_infinite() -> None:
    plan = RepeatedData(ShuffleData(arrays(7))).plan(seed=1)
    assert plan.size is None
    with pytest.raises(TypeError, match="infinite"):
        len(plan)
    far = 7 * 10**9 + 3
    assert "seed=1" in repr(plan)
    assert plan.get(far) == ShuffleData(arrays(7)).plan(seed=1).get(3, epoch=10**9)
    assert plan.read([far, 0]) == [plan.get(far), plan.get(0)]


def test_positions_are_checked() -> None:
    plan = arrays(5).plan()
    assert plan.read([]) == []
    for wrong, place in itertools.product((-1, -6, 5, 99, 2**40), range(4)):
        positions = [0, 4, 2]
        positions.insert(place, wrong)
        for some in (positions, tuple(positions), np.array(positions)):
            with pytest.raises(ConfigError, match=f"position must be .*, got {wrong}"):
                plan.read(some)
    for some in (range(3, 6), range(-1, 3), range(5, -1, -1), range(3, -2, -1), range(0, 9, 4)):
        wrong = next(position for position in some if not 0 <= position < 5)
        with pytest.raises(ConfigError, match=f"position must be .*, got {wrong}"):
            plan.read(some)
    with pytest.raises(ConfigError, match=r"position must be .*, got 5"):
        plan.get(5)
    assert plan.read(range(4, -1, -1))[0] == (4, 2.0)


def test_what_has_no_plan() -> None:
    skipping = MapData(arrays(), lambda dp: dp, on_error="skip")
    for flow, part in (
        (BatchData(skipping, 2), "MapData(<lambda>)"),
        (ConcatData([arrays(), DataFromGenerator(lambda: iter([]))]), "DataFromGenerator"),
    ):
        with pytest.raises(ConfigError, match="has no plan") as caught:
            flow.plan()
        assert part in caught.value.what


PROGRAM = """
import sys
for name in ("tensorflow", "keras", "torch", "rich", "cv2"):
    sys.modules[name] = None
import numpy as np
from towerpack.dataflow import *
ds = BatchData(ShuffleData(DataFromArrays(np.arange(10))), 5)
assert len(list(ds)) == 2
"""


def test_works_without_any_framework() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM], check=True, timeout=60)
