"""Episodes as GIF and as PNG strips."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from PIL import Image, ImageSequence

from towerpack import ConfigError
from towerpack.rl import Atari, episode_frames, save_episode


def test_an_episode_of_pong_becomes_a_gif_and_a_strip(tmp_path: Path) -> None:
    env = Atari("Pong")()
    frames = episode_frames(env, lambda batch: np.full(len(batch), 2), seed=3, max_steps=25)
    assert len(frames) == 25
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


def test_an_environment_without_pictures_says_how_to_get_them() -> None:
    env = gym.make("CartPole-v1")
    with pytest.raises(ConfigError, match="render_mode='rgb_array'"):
        episode_frames(env, lambda batch: [0], seed=0)
