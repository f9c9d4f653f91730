from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from small_host import SmallHost
from towerpack import NumericsError
from towerpack.callbacks import CheckNumerics


def bad_host(tmp_path: Path) -> SmallHost:
    host = SmallHost(tmp_path, [CheckNumerics()], steps_per_call=1)
    host.start()
    host.global_step = 41
    host.bad_batch = {
        "image": np.array([[1.0, np.nan], [np.inf, 0.0]], np.float32),
        "scope/label": np.array([3, 1]),
        "file": np.array([b"a.png", b"bb.png"], object),
        "half": np.array([1.5, 2.5], ml_dtypes.bfloat16),
    }
    return host


def test_it_asks_for_the_watch(tmp_path: Path) -> None:
    host = SmallHost(tmp_path, [CheckNumerics()]).run()
    assert host.watches_cost
    assert list(tmp_path.iterdir()) == []


def test_the_batch_is_kept_and_the_run_ends(tmp_path: Path) -> None:
    host = bad_host(tmp_path)
    with pytest.raises(NumericsError, match="step 42") as caught:
        host.callbacks.callbacks[0].after_call()
    path = tmp_path / "nonfinite-step-00000042.npz"
    assert caught.value.got == "input 'image' has 2 such values"
    assert str(path) in (caught.value.fix or "")
    with np.load(path, allow_pickle=False) as saved:
        assert sorted(saved) == ["file", "half", "image", "scope/label"]
        np.testing.assert_array_equal(saved["image"], host.bad_batch["image"])  # type: ignore[index]
        np.testing.assert_array_equal(saved["scope/label"], [3, 1])
        assert list(saved["file"]) == [b"a.png", b"bb.png"]
        assert saved["half"].dtype == np.float32
        assert list(saved["half"]) == [1.5, 2.5]
    assert list(tmp_path.iterdir()) == [path]


def test_finite_inputs_point_to_the_model(tmp_path: Path) -> None:
    host = bad_host(tmp_path)
    host.bad_batch = {"x": np.ones(3, np.float32)}
    with pytest.raises(NumericsError, match="lower the learning rate"):
        host.callbacks.callbacks[0].after_call()


def test_a_full_disk_does_not_hide_the_error(tmp_path: Path) -> None:
    host = bad_host(tmp_path)
    (tmp_path / "file").write_text("")
    host.run_dir = tmp_path / "file" / "run"
    with pytest.raises(NumericsError, match="could not be saved"):
        host.callbacks.callbacks[0].after_call()
