"""Episodes as GIF and as PNG strips."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageSequence

from towerpack import ConfigError
from towerpack.rl import make_envs, save_episode


def test_an_episode_of_pong_becomes_a_gif_and_a_strip(tmp_path: Path) -> None:
    with make_envs("ALE/Pong-v5", 1, seed=3) as envs:
        envs.reset()
        frames = [envs.step(np.array([2])).observations[0, -1] for _ in range(25)]
    with Image.open(save_episode(tmp_path / "a" / "pong.gif", frames, fps=25)) as gif:
        shown = [np.asarray(frame.convert("L")) for frame in ImageSequence.Iterator(gif)]
        durations = [frame.info["duration"] for frame in ImageSequence.Iterator(gif)]
    assert sum(durations) == 25 * 40
    np.testing.assert_allclose(shown[-1], frames[-1], atol=1)
    with Image.open(save_episode(tmp_path / "pong.png", frames, count=4)) as strip:
        whole = np.asarray(strip)
    np.testing.assert_array_equal(whole, np.hstack([frames[i] for i in (0, 8, 16, 24)]))


@pytest.mark.parametrize("name", ["pong.gif", "pong.jpeg"])
def test_what_cannot_be_written_is_refused(name: str, tmp_path: Path) -> None:
    frames = [] if name == "pong.gif" else [np.zeros((4, 4), np.uint8)]
    with pytest.raises(ConfigError, match=name):
        save_episode(tmp_path / name, frames)
