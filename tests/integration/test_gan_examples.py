"""Examples of GANs: each trains for a few steps, measures and draws."""

from __future__ import annotations

import runpy
from pathlib import Path

import cv2
import numpy as np
import pytest

from towerpack.callbacks.monitors import read_stats
from towerpack.checkpoint import load_checkpoint

EXAMPLES = Path(__file__).parents[2] / "examples" / "gan"
BOTH = ["gen/", "discrim/"]
FOUR = ["gen/ab/", "gen/ba/", "discrim/a/", "discrim/b/"]


@pytest.mark.parametrize(
    ("name", "runs", "players", "lowest", "highest", "size"),
    [
        ("infogan", ["."], BOTH, 0.0, 0.95, (10 * 9 - 1, 12 * 9 - 1)),
        ("began", ["."], BOTH, 0.1, 1000.0, (8 * 9 - 1, 8 * 9 - 1)),
        ("pix2pix", ["l1", "both"], BOTH, 0.1, 10.0, (6 * 65 - 1, 4 * 193 - 1)),
        ("cyclegan", ["."], FOUR, 5.0, 30.0, (6 * 49 - 1, 4 * 193 - 1)),
    ],
)
def test_both_players_move_and_pictures_are_drawn(
    name: str,
    runs: list[str],
    players: list[str],
    lowest: float,
    highest: float,
    size: tuple[int, int],
    tmp_path: Path,
) -> None:
    main = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
    measured = main(["--steps", "3", "--out", str(tmp_path)])
    assert np.all(lowest <= np.asarray(measured)) and np.all(np.asarray(measured) <= highest)
    for run in runs:
        last = read_stats(tmp_path / run / "stats.jsonl")[-1]
        assert last.step == 3
        assert np.isfinite([last.scalars["g_loss"], last.scalars["d_loss"]]).all()
        weights = load_checkpoint(tmp_path / run).model
        for player in players:
            biases = [w for n, w in weights.items() if n.startswith(player) and n.endswith("bias")]
            assert any(bias.any() for bias in biases), f"{player} is as it began: zero"
        picture = cv2.imread(str(tmp_path / run / "samples" / "epoch-0001.png"))
        assert picture is not None
        assert picture.shape[:2] == size
        assert picture.std() > 10
