"""Examples of models: each trains for a few steps, evaluates and draws, as a user starts it."""

from __future__ import annotations

import math
import runpy
import sys
from pathlib import Path

import cv2
import pytest

from scaling import sample
from towerpack.callbacks.monitors import read_stats

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "runs", "numbers", "size"),
    sample(
        [
            ("spatial_transformer", ["."], {"val/cost", "val/error"}, (160, 960)),
            ("saliency", ["."], {"val/cost", "val/error"}, (360, 1200)),
            ("similarity", ["contrastive", "triplet"], {"val/cost", "val/error"}, (600, 1200)),
            ("ctc", ["."], {"val/cost", "val/label_error", "val/line_error"}, (600, 900)),
        ]
    ),
)
def test_it_trains_evaluates_and_draws(
    name: str,
    runs: list[str],
    numbers: set[str],
    size: tuple[int, int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--steps", "4", "--out", str(tmp_path)])
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    assert "%" in capsys.readouterr().out
    for run in runs:
        last = read_stats(tmp_path / run / "stats.jsonl")[-1]
        assert last.step == 4 and numbers <= last.scalars.keys()
        assert all(math.isfinite(last.scalars[number]) for number in numbers)
    picture = cv2.imread(str(tmp_path / f"{name}.png"))
    assert picture.shape[:2] == size
    assert picture.std() > 10, "something is drawn"
