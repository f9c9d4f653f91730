"""Messages about bad datapoints advise only what the stage, or the one they name, can be told."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from towerpack._core.errors import MapError, TowerpackError
from towerpack.dataflow import (
    AugmentImageComponent,
    BatchData,
    DataFlow,
    DataFromGenerator,
    DataFromList,
    FilterData,
    MapData,
    MapDataComponent,
    MultiThreadMapData,
    SelectComponent,
    imgaug,
)

PICTURE = np.zeros((4, 4, 3), np.uint8)
SKIP, CATCH = 'on_error="skip" leaves out', "catch_exceptions=True leaves out"


class OfTheUsers(MapData):
    """Takes nothing but a flow."""

    def __init__(self, ds: DataFlow) -> None:
        super().__init__(ds, fail)


def fail(*arguments: Any) -> Any:
    raise ValueError("bad")


def ten() -> DataFlow:
    return DataFromList([[i, PICTURE, np.zeros((1, 2))] for i in range(10)])


too_large = imgaug.CenterCrop(9)

STAGES: dict[str, tuple[Callable[[DataFlow], DataFlow], str | None]] = {
    "MapData": (lambda ds: MapData(ds, fail), SKIP),
    "MapData, batched": (lambda ds: MapData(ds, fail, batched=True), None),
    "MapDataComponent": (lambda ds: MapDataComponent(ds, fail), SKIP),
    "MapDataComponent, index": (lambda ds: MapDataComponent(ds, fail, 7), SKIP),
    "MultiThreadMapData": (lambda ds: MultiThreadMapData(ds, 1, fail), SKIP),
    "FilterData": (lambda ds: FilterData(ds, fail), SKIP),
    "SelectComponent": (lambda ds: SelectComponent(ds, [7]), None),
    "AugmentImageComponent": (lambda ds: AugmentImageComponent(ds, too_large, 1), CATCH),
    "a subclass": (OfTheUsers, None),
}


def check(error: TowerpackError, taker: Callable[..., Any], expected: str | None) -> None:
    """All arguments that the message advises are those of the stage, or of one that it names."""
    fix = error.fix or ""
    assert (expected in fix) if expected else "leaves out" not in fix
    others = (BatchData, MapDataComponent, imgaug.decode_image)
    named = [one for one in others if one.__name__ in fix]
    taken = {name for one in (taker, *named) for name in inspect.signature(one).parameters}
    assert set(re.findall(r"(\w+)=", fix)) <= taken, fix


@pytest.mark.parametrize("case", STAGES)
def test_stages(case: str) -> None:
    make, expected = STAGES[case]
    for source in (ten(), DataFromGenerator(lambda: iter(ten()))):
        ds = make(source)
        with pytest.raises(MapError) as caught:
            next(ds.iterate())
        check(caught.value, MapData if case == "MultiThreadMapData" else type(ds), expected)
