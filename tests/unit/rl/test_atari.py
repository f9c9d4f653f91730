"""Atari's preprocessing."""

from __future__ import annotations

import numpy as np

from towerpack.rl import Atari, make_envs


def test_a_game_as_the_options_say() -> None:
    game = Atari("Breakout", frames=2, size=42, life_loss=True, noop_max=0, fire_reset=True)
    envs = make_envs(game, 1, seed=0)
    assert game.name == "ALE/Breakout-v5"
    assert envs.reset().shape == (1, 2, 42, 42)
    steps = [envs.step(np.array([1 + 2 * (i % 2)])) for i in range(200)]
    lives = [step for step in steps if step.terminated[0]]
    assert 3 <= len(lives) <= 7  # FIRE and LEFT: the paddle is at the wall, every ball is lost
    for step in lives[:3]:  # the game goes on
        np.testing.assert_array_equal(step.observations, step.final)
    assert {float(step.rewards[0]) for step in steps} <= {0.0, 1.0}
    envs.close()
