"""Plans: random access as a pure function of (seed, epoch, position)."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

from every_flow import STAGES, planned
from towerpack._core.errors import ConfigError
from towerpack.dataflow import (
    BatchData,
    ConcatData,
    DataFlow,
    DataFromArrays,
    DataFromGenerator,
    MapData,
    RepeatedData,
    SelectComponent,
    ShuffleData,
)
from towerpack.dataflow.testing import same_datapoints


def arrays(n: int = 30) -> DataFromArrays:
    return DataFromArrays(np.arange(n), np.arange(n) * 0.5)


FLOWS: dict[str, DataFlow] = {
    "concat": ShuffleData(ConcatData([ShuffleData(arrays(7)), arrays(5), arrays(8)])),
    "select": SelectComponent(ShuffleData(arrays()), 1),
    **{
        name: case.make(planned)
        for name, case in STAGES.items()
        if case.make is case.plain
        and not re.search("skip|Filter|ByShape|ByLength|few|Disk|for_ever|Proxy|mixed|all", name)
    },
}


@pytest.mark.parametrize("name", FLOWS)
def test_any_order_gives_what_iterating_gives(name: str) -> None:
    flow = FLOWS[name]
    for epoch in (0, 3):
        expected = list(flow.iterate(seed=1, epoch=epoch))
        plan = flow.plan(seed=1)
        order = np.random.default_rng(0).permutation(len(expected))
        for found in (
            [plan.read(order, epoch=epoch)[i] for i in np.argsort(order)],
            [plan.get(i, epoch=epoch) for i in range(len(expected))],
            plan.read(range(len(expected)), epoch=epoch),
            [
                dp
                for i in range(0, len(expected), 4)
                for dp in plan.read(range(i, min(i + 4, len(expected))), epoch=epoch)
            ],
        ):
            assert len(found) == len(expected) == len(plan) == plan.size
            assert all(map(same_datapoints, found, expected))


def test_infinite() -> None:
    plan = RepeatedData(ShuffleData(arrays(7))).plan(seed=1)
    assert plan.size is None
    with pytest.raises(TypeError, match="infinite"):
        len(plan)
    far = 7 * 10**9 + 3
    assert plan.get(far) == ShuffleData(arrays(7)).plan(seed=1).get(3, epoch=10**9)
    assert plan.read([far, 0]) == [plan.get(far), plan.get(0)]


def test_positions_are_checked() -> None:
    plan = arrays(5).plan()
    assert plan.read([]) == []
    for wrong in ([-1], [0, 5], range(3, 6)):
        with pytest.raises(ConfigError, match=r"no position (-1|5)"):
            plan.read(wrong)
    with pytest.raises(ConfigError, match="no position 5"):
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


def test_plan_knows_its_seed() -> None:
    flow = ShuffleData(arrays())
    assert flow.plan().seed == flow.iterate().seed
    assert "seed=3" in repr(flow.plan(seed=3))
    assert flow.plan().signature == flow.iterate().state()["flow"]


PROGRAM = """
import sys
for name in ("tensorflow", "keras", "torch", "msgpack", "rich", "cv2"):
    sys.modules[name] = None
import numpy as np
from towerpack.dataflow import *
ds = BatchData(ShuffleData(DataFromArrays(np.arange(10))), 5)
assert len(list(ds)) == 2
"""


def test_works_without_any_framework() -> None:
    subprocess.run([sys.executable, "-W", "error", "-c", PROGRAM], check=True, timeout=60)
