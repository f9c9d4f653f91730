from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from towerpack import ConfigError, FormatError
from towerpack.dataflow.formats import SVMLightData

pytest.importorskip("sklearn.datasets")

TEXT = b"""# a comment
1 1:0.5 3:2 # another
-1 2:1e2

2.5
1 4:-1
"""
DENSE = [[0.5, 0, 2, 0], [0, 100, 0, 0], [0, 0, 0, 0], [0, 0, 0, -1]]


def test_rows(tmp_path: Path) -> None:
    path = tmp_path / "data.svm"
    path.write_bytes(TEXT)
    ds = SVMLightData(path, shuffle=False)
    assert len(ds) == 4 and str(ds) == "SVMLightData(data.svm)"
    assert [dp[0].tolist() for dp in ds] == DENSE
    assert [dp[1] for dp in ds] == [1, -1, 2.5, 1]
    features, label = next(iter(ds))
    assert (features.dtype, label.dtype) == (np.float32, np.float64)
    assert SVMLightData(path, num_features=6).num_features == 6
    with pytest.raises(ConfigError, match="but has 4"):
        SVMLightData(path, num_features=3)


@pytest.mark.parametrize(
    "text", [b"1 99999999999:1\n", b"1 900000000:1\n", b"1 1:x\n", b"x 1:1\n", b"\xff\0"]
)
def test_damaged(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "bad.svm").write_bytes(text)
    with pytest.raises(FormatError, match=r"bad\.svm"):
        SVMLightData(tmp_path / "bad.svm")
