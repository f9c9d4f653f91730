"""Atari's preprocessing, in one game and in many at once."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from towerpack.rl import Atari, FireReset, make_envs


class Waiting(gym.Env):
    """Goes on only after action 1; that ends the episodes of even seeds at once."""

    observation_space = Box(0, 1, (1,))
    action_space = Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {"seed": seed}

    def step(self, action: int) -> Any:
        return np.full(1, action, np.float32), 0.0, self.np_random_seed % 2 == 0, False, {}


def test_fire_begins_an_episode() -> None:
    env = FireReset(Waiting())
    assert env.reset(seed=1)[0] == 1
    assert env.reset(seed=2)[0] == 0  # ended by it, and begun once more


@pytest.mark.parametrize("backend", ["serial", "native"])
def test_a_game_as_the_options_say(backend: Any) -> None:
    game = Atari("Breakout", frames=2, size=42, life_loss=True, noop_max=0, fire_reset=True)
    envs = make_envs(game, 1, seed=0, backend=backend)
    assert game.name == "ALE/Breakout-v5"
    assert envs.reset().shape == (1, 2, 42, 42)
    steps = [envs.step(np.array([1 + 2 * (i % 2)])) for i in range(200)]
    lives = [step for step in steps if step.terminated[0]]
    assert 3 <= len(lives) <= 7  # FIRE and LEFT: the paddle is at the wall, every ball is lost
    for step in lives[:3]:  # the game goes on
        np.testing.assert_array_equal(step.observations, step.final)
    assert {float(step.rewards[0]) for step in steps} <= {0.0, 1.0}
    envs.close()


def test_one_game_and_many_show_the_same() -> None:
    """Without random beginnings both come to the same picture, up to scaling."""
    game = Atari("Pong", noop_max=0, repeat_action_probability=0.0, fire_reset=False)
    pictures = []
    for backend in ("serial", "native"):
        envs = make_envs(game, 1, seed=0, backend=backend)  # type: ignore[arg-type]
        envs.reset()
        pictures.append([envs.step(np.array([i % 6])).observations[0] for i in range(60)])
        envs.close()
    single, native = np.array(pictures).astype(float)
    # One of them begins a frame or more later: compared over all that are near.
    distances = [np.abs(single[10:40] - native[10 + d : 40 + d]).mean() for d in range(-3, 4)]
    assert min(distances) < 1.0
