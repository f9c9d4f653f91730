"""Arguments by position, as programs for the predecessor give them."""

from __future__ import annotations

import numpy as np
import pytest

from towerpack.dataflow import BatchData, DataFromList, FakeData, FixedSizeData, PrintData

SEVEN = DataFromList([(i,) for i in range(7)])


def test_batches_with_a_remainder() -> None:
    assert len(BatchData(SEVEN, 3, True)) == 3
    assert len(BatchData(SEVEN, 3, False)) == 2
    with pytest.raises(TypeError):
        BatchData(SEVEN, 3, True, True)  # type: ignore[misc]  # use_list: taken for nothing else


def test_passes_that_begin_again() -> None:
    for keep_state, second in ((True, [5, 6, 0, 1, 2]), (False, [0, 1, 2, 3, 4])):
        ds = FixedSizeData(SEVEN, 5, keep_state)
        assert len(list(ds)) == 5
        assert [dp[0] for dp in ds] == second


def test_made_up_data() -> None:
    ds = FakeData([[2, 3], []], 10, False, "uint8", (5, 6))
    (first, scalar), *others = list(ds)
    assert len(others) == 9 and first.dtype == np.uint8 and (first == 5).all() and scalar == 5
    several = FakeData([[1], [2]], 3, True, ["int32", "float64"], [(0, 2), (3, 4)])
    assert [component.dtype for component in next(iter(several))] == [np.int32, np.float64]


def test_printing(capsys: pytest.CaptureFixture[str]) -> None:
    nested = DataFromList([([[1, 2, 3, 4]],)])
    list(PrintData(nested, 1, "train", 2, 1))
    out = capsys.readouterr().out
    assert out.startswith("train: datapoint 0") and "list of 4" not in out.split("list of 1")[0]
    list(PrintData(nested, 1, "train", 3, 1))
    assert "and 3 more" in capsys.readouterr().out
    list(PrintData(nested, 1, None))
    assert capsys.readouterr().out.startswith("datapoint 0")
