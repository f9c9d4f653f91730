"""A checkpoint that an earlier version wrote loads with the values that it was given.

`golden` was written by Towerpack as of November 2026, from the values below:

    with CheckpointStore(GOLDEN, clock=lambda: 1.5) as store:
        store.save(7, TENSORS, STATE, tag="best-val/error", info={"score": 0.25})
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from towerpack.checkpoint import list_checkpoints, load_checkpoint

GOLDEN = Path(__file__).parent / "golden"

TENSORS: dict[str, dict[str, np.ndarray]] = {
    "model": {
        "conv0/kernel": np.arange(12, dtype=np.float32).reshape(3, 4).T,
        "bn/mean/EMA": np.array([0.1, -math.inf, math.nan]),
        "half": np.array([1.5, -2.0], np.float16),
        "brain": np.array([0.5, 3.0], ml_dtypes.bfloat16),
        "empty": np.zeros((0, 3), np.uint8),
        "mask": np.array([True, False, True]),
        "complex": np.array([1 + 2j], np.complex64),
        "scale": np.array(2.5, np.float64),
    },
    "optimizer": {"iterations": np.array(7, np.int64), "ema/scale": np.array(2.25, np.float64)},
}
STATE: Any = {
    "epoch": 3,
    "data": {"position": (1, b"\0\xff"), "seed": 2**100, "score": math.inf},
    "callbacks": [None, True, "ä\ud800", np.arange(3, dtype=np.int16), np.float32(0.1)],
    1: ("a", -5),
}


def same(ours: Any, theirs: Any) -> bool:
    """Whether two values are of one type and equal in all parts, bit for bit."""
    if type(ours) is not type(theirs):
        return False
    if isinstance(ours, dict):
        return list(ours) == list(theirs) and all(same(ours[key], theirs[key]) for key in ours)
    if isinstance(ours, (list, tuple)):
        return len(ours) == len(theirs) and all(map(same, ours, theirs))
    if isinstance(ours, np.ndarray):
        return (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape) and (
            ours.tobytes() == theirs.tobytes()
        )
    return ours == theirs


def test_an_old_checkpoint_loads() -> None:
    found = load_checkpoint(GOLDEN, tag="best-val/error")
    assert (found.step, found.tag) == (7, "best-val/error")
    assert (found.manifest.saved_at, found.manifest.info) == (1.5, {"score": 0.25})
    assert same(found.state, STATE)
    assert list(found.tensors) == list(TENSORS)
    for group, arrays in TENSORS.items():
        assert found.group(group).keys() == arrays.keys()
        for name, array in arrays.items():
            assert same(np.asarray(found.group(group)[name]), array), name
    assert found.averaged["scale"] == 2.25
    assert load_checkpoint(GOLDEN).path == found.path
    (row,) = list_checkpoints(GOLDEN)
    assert row.valid
