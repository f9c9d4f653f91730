"""Small environments: what the tests of agents share."""

from __future__ import annotations

import os
import signal
from typing import Any

import gymnasium as gym
import numpy as np


class Walk(gym.Env[np.ndarray, Any]):
    """Episodes of 1 to 9 steps, by the seed; those of odd length terminate, others are truncated.

    The observation is the time and a number of the episode, the reward the time.

    Args:
        space: Of actions.
        faults: What happens at some steps of this object's life, by their number.
    """

    def __init__(self, space: Any = None, faults: Any = None) -> None:
        self.action_space = gym.spaces.Discrete(2) if space is None else space
        self.observation_space = gym.spaces.Box(-1.0, 10.0, (2,), np.float32)
        self._faults = dict(faults or {})
        self._life = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.length = int(self.np_random.integers(1, 10))
        self._number = self.np_random.random()
        self._time = 0
        return self._observation(), {}

    def _observation(self) -> np.ndarray:
        return np.array([self._time, self._number], np.float32)

    def step(self, action: Any) -> Any:
        self._time += 1
        self._life += 1
        over, odd = self._time >= self.length, bool(self.length % 2)
        fault = self._faults.get(self._life)
        if fault == "signal":
            os.kill(os.getpid(), signal.SIGTERM)
        reward = float("nan") if fault == "nan" else float(self._time)
        return self._observation(), reward, over and odd, over and not odd, {}
