"""Outputs of several steps in one vector for each."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from towerpack.training.loop.packing import Packing


@pytest.mark.parametrize("joined", [False, True])
def test_what_is_packed_is_unpacked(joined: bool) -> None:
    """Steps that were not applied, since the data had ended, add nothing."""
    steps = [[tf.fill([n, 2], float(n)), tf.constant([n, -n]), tf.constant(n)] for n in (3, 1, 2)]
    whole = [tf.TensorSpec([None, 2]), tf.TensorSpec([2], tf.int32), tf.TensorSpec([], tf.int32)]
    packing = Packing(["rows", "pair", "number"], whole, joined=joined)
    applied = [1, 1, 0]
    packed = [packing.pack(v, tf.constant(a)) for v, a in zip(steps, applied, strict=True)]
    assert [v.dtype for v in packed[0]] == packing.dtypes()
    found = packing.unpack([tf.concat(vectors, 0) for vectors in zip(*packed, strict=True)], 2)
    for number in range(2):
        for name, value in zip(packing.names, steps[number], strict=True):
            np.testing.assert_array_equal(found[name][number], value)
    assert all(tf.size(vector) == 0 for vector in packed[2])
