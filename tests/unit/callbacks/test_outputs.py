"""Outputs of steps as files, pictures, lines and means."""

from __future__ import annotations

import io
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from small_host import SmallHost
from towerpack import ConfigError
from towerpack.callbacks import (
    DumpTensorAsImage,
    DumpTensors,
    ProcessOutputs,
    SimpleMovingAverage,
    TensorPrinter,
)


def outputs(step: int) -> dict[str, Any]:
    ramp = np.linspace(0, 1, 12, dtype=np.float32).reshape(1, 3, 4)
    return {"cost": np.float32(step), "maps": np.concatenate([ramp, ramp * 0]), "many": [step] * 50}


def test_each_step_is_seen_with_its_own_values(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Any] = []
    callbacks = [
        ProcessOutputs(["cost", "many"], lambda cost, many: seen.append((cost, many[0]))),
        DumpTensors(["cost", "maps"], every_k_steps=5),
        TensorPrinter("many", every_k_steps=6),
    ]
    with caplog.at_level(logging.INFO):
        SmallHost(tmp_path, callbacks, outputs=outputs).run()
    assert seen == [(step, step) for step in range(1, 13)]
    files = sorted((tmp_path / "dump").iterdir())
    assert [file.name for file in files] == ["step-00000005.npz", "step-00000010.npz"]
    with np.load(files[1]) as dumped:
        assert dumped["cost"] == 10 and dumped["maps"].shape == (2, 3, 4)
    assert "Step 6: many [50] = [6 6 6 ... 6 6 6]" in caplog.text


def test_pictures(tmp_path: Path) -> None:
    dump = DumpTensorAsImage("maps", lambda maps: maps[..., None])
    SmallHost(tmp_path, [dump], outputs=outputs, max_epoch=2).run()
    names = sorted(file.name for file in (tmp_path / "images").iterdir())
    assert names == [f"maps-{step:08d}-{i}.png" for step in (4, 8) for i in (0, 1)]
    drawn = Image.open(io.BytesIO((tmp_path / "images" / names[0]).read_bytes()))
    expected = np.linspace(0, 255, 12).round().astype(np.uint8).reshape(3, 4)
    np.testing.assert_array_equal(np.asarray(drawn), expected)
    with pytest.raises(ConfigError, match="must get an image"):
        SmallHost(tmp_path, [DumpTensorAsImage("cost")], outputs=outputs).run()


def test_means_over_the_last_steps(tmp_path: Path) -> None:
    host = SmallHost(tmp_path, [SimpleMovingAverage("cost", 6)], outputs=outputs).run()
    assert host.monitors.history("cost/SMA") == [(4, 2.5), (8, 5.5), (12, 9.5)]
    with pytest.raises(ConfigError, match="'many' must be a scalar"):
        SmallHost(tmp_path, [SimpleMovingAverage("many", 6)], outputs=outputs).run()
    for wrong in (lambda: SimpleMovingAverage([], 3), lambda: DumpTensors([], every_k_steps=1)):
        with pytest.raises(
            ConfigError, match="needs names of outputs and every_k_steps of at least 1"
        ):
            wrong()
