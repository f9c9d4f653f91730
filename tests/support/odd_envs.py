"""Environments that fail; in a module that processes import without TensorFlow."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete


class Counting(gym.Env):
    """Observes how many steps its episode has, and does `fault` at step 3 of one episode.

    Args:
        fault: What happens; its result is the reward.
        seeded: Only in an episode whose seed leaves this rest by 5.
    """

    observation_space = Box(0, 100, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self, fault: Callable[[], float] | None = None, rest: int | None = None) -> None:
        self.fault, self.rest = fault, rest

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count, self.seed = 0, seed
        return np.zeros(1, np.float32), {}

    def step(self, action: int) -> Any:
        self.count += 1
        faulty = self.fault and self.count == 3
        faulty = faulty and (self.rest is None or (self.seed or 0) % 5 == self.rest)
        reward = self.fault() if faulty and self.fault else 1.0
        now = np.array([self.count], np.float32)
        return now, reward, self.count == 6, False, {}


class Growing(Counting):
    """Another world each time."""

    worlds = 0

    def reset(self, **kwargs: Any) -> Any:
        super().reset(**kwargs)
        Growing.worlds += 1
        return np.array([Growing.worlds % 100], np.float32), {}


class Odd(Counting):
    """Answers in another form than Gymnasium's."""

    def __init__(self, form: str) -> None:
        super().__init__(lambda: 0.0)
        self._form = form

    def reset(self, **arguments: Any) -> Any:
        observation, info = super().reset(**arguments)
        return observation if self._form == "reset" else (observation, info)

    def step(self, action: Any) -> Any:
        answer = super().step(action)
        if self._form == "shape":
            return np.zeros(7), *answer[1:]
        return answer[:4] if self._form == "step" else answer


def fail() -> float:
    raise ValueError("the ball has left the table")


def hang() -> float:
    time.sleep(600)
    return 0.0
