"""What an error of a step says of the batch that it was computed from."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from towerpack.training.loop.tensorflow_error import _kept


def test_the_batch_is_kept_or_why_not(tmp_path: Path) -> None:
    path = tmp_path / "failed.npz"
    assert _kept(path, lambda: {"x": np.arange(3)}, 5.0).endswith(str(path))
    np.testing.assert_array_equal(np.load(path)["x"], np.arange(3))

    def fails() -> None:
        raise KeyError("row 7")

    assert "not kept: KeyError: 'row 7'" in _kept(path, fails, 5.0)
    assert "not kept: TimeoutError" in _kept(path, lambda: time.sleep(1), 0.01)
    assert "made inside TensorFlow" in _kept(path, lambda: None, 5.0)
