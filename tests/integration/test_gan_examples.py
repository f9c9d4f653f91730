"""Examples of GANs: each trains for a few steps, measures and draws."""

from __future__ import annotations

import gc
import runpy
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest

from scaling import only_in_full
from towerpack.callbacks.monitors import read_stats
from towerpack.checkpoint import load_checkpoint

EXAMPLES = Path(__file__).parents[2] / "examples" / "gan"
BOTH = ["gen/", "discrim/"]
FOUR = ["gen/ab/", "gen/ba/", "discrim/a/", "discrim/b/"]


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left() -> Iterator[None]:
    yield
    gc.collect()  # Whole models and environments, which else a thread of a later test would free.


@only_in_full  # test_gan.py has one, and docs/gan.md
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "runs", "players", "lowest", "highest", "pictures"),
    [
        ("infogan", ["."], BOTH, 0.0, 0.95, (10, 12)),
        ("pix2pix", ["l1", "both"], BOTH, 0.1, 10.0, (6, 4 * 3)),
        ("began", ["."], BOTH, 0.1, 1000.0, (8, 8)),
        ("cyclegan", ["."], FOUR, 5.0, 30.0, (6, 4 * 4)),
    ],
)
def test_both_players_move_and_pictures_are_drawn(
    name: str,
    runs: list[str],
    players: list[str],
    lowest: float,
    highest: float,
    pictures: tuple[int, int],
    tmp_path: Path,
) -> None:
    main = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
    measured = main(["--steps", "4", "--out", str(tmp_path)])
    assert np.all(lowest <= np.asarray(measured)) and np.all(np.asarray(measured) <= highest)
    for run in runs:
        last = read_stats(tmp_path / run / "stats.jsonl")[-1]
        assert last.step == 4
        assert np.isfinite([last.scalars["g_loss"], last.scalars["d_loss"]]).all()
        weights = load_checkpoint(tmp_path / run).model
        for player in players:
            biases = [w for n, w in weights.items() if n.startswith(player) and n.endswith("bias")]
            assert any(bias.any() for bias in biases), f"{player} is as it began: zero"
        grid = cv2.imread(str(tmp_path / run / "samples" / "epoch-0004.png"))
        assert grid is not None
        assert grid.shape[:2] == tuple(68 * n - 4 for n in pictures)  # 64 pixels, and 4 between
        assert grid.std() > 10
