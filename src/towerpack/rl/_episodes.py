"""Episodes as pictures: a GIF that moves, or a strip of some frames as PNG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from PIL import Image

from towerpack._core.errors import ConfigError


def episode_frames(
    env: gym.Env[Any, Any],
    policy: Callable[[np.ndarray], Any],
    *,
    seed: int,
    max_steps: int = 10_000,
) -> list[np.ndarray]:
    """Play one episode and look on.

    Args:
        env: Made with `render_mode='rgb_array'`; or its observations are frames, as of `Atari`.
        policy: Gives actions for a batch of observations, here of one.
        seed: Of the episode.
        max_steps: After which it is left.

    Returns:
        uint8 [height, width, 3], or [height, width] of observations.
    """
    frames: list[np.ndarray] = []
    observation, _ = env.reset(seed=seed)
    for _ in range(max_steps):
        picture: Any = env.render() if env.render_mode == "rgb_array" else observation[-1]
        if np.ndim(picture) < 2:
            raise ConfigError(
                "This environment shows nothing.",
                got=f"render_mode={env.render_mode!r}, observations {env.observation_space}",
                fix="gymnasium.make(..., render_mode='rgb_array')",
            )
        frames.append(np.array(picture))
        action = np.asarray(policy(observation[None]))[0]
        observation, _, terminated, truncated, _ = env.step(action)
        if terminated or truncated:
            break
    return frames


def save_episode(
    path: str | Path, frames: Sequence[np.ndarray], *, fps: float = 30.0, count: int = 8
) -> Path:
    """Write an episode to a GIF, or `count` frames of it side by side to a PNG.

    Args:
        path: It ends in `.gif` or `.png`.
        frames: uint8 [height, width] or [height, width, 3].
        fps: Frames per second; browsers show at most 50.
        count: Frames of a strip: the first, the last, and some at equal distances between.
    """
    path = Path(path)
    if path.suffix not in (".gif", ".png") or not len(frames):
        raise ConfigError(
            f"{len(frames)} frames cannot be written to {path.name}.",
            expected="at least one frame, to a name that ends in .gif or .png",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".png":
        chosen = np.linspace(0, len(frames) - 1, min(count, len(frames))).round().astype(int)
        Image.fromarray(np.concatenate([frames[i] for i in chosen], axis=1)).save(path)
    else:
        first, *others = map(Image.fromarray, frames)
        first.save(path, save_all=True, append_images=others, duration=1000 / fps, loop=0)
    return path
