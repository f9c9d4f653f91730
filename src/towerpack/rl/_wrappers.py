"""Atari as agents see it, and wrappers that Gymnasium has not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np


@dataclass(frozen=True)
class Atari:
    """A function that makes one game, preprocessed as Mnih et al. 2015 do; for `make_envs`.

    Observations are uint8 [frames, size, size], newest last, of zeros before an episode begins.

    Args:
        game: As in `ALE/Pong-v5`, or only 'Pong'.
        frames: Frames in an observation.
        size: Their height and width.
        frame_skip: Emulator frames for each action; each observed one is the maximum of the last 2.
        noop_max: An episode begins with up to so many actions that do nothing.
        fire_reset: And with FIRE, where the game has it.
        life_loss: An episode ends with each life, and the game goes on in the next. For training.
        clip_reward: Reduce rewards to −1, 0 and 1. For training.
        repeat_action_probability: Of sticky actions (Machado et al. 2018).
        max_frames: Emulator frames after which an episode is truncated.
    """

    game: str
    frames: int = 4
    size: int = 84
    frame_skip: int = 4
    noop_max: int = 30
    fire_reset: bool = True
    life_loss: bool = False
    clip_reward: bool = True
    repeat_action_probability: float = 0.25
    max_frames: int = 108_000

    # A seed makes ale-py load the game again, which takes as long as 300 steps.
    reseed_after = 10_000

    @property
    def name(self) -> str:
        """The id in Gymnasium."""
        return self.game if "/" in self.game else f"ALE/{self.game}-v5"

    def __call__(self) -> gym.Env[Any, Any]:
        """One game, of single wrappers."""
        import ale_py

        gym.register_envs(ale_py)
        env: Any = gym.make(
            self.name,
            disable_env_checker=True,
            frameskip=1,
            repeat_action_probability=self.repeat_action_probability,
            max_num_frames_per_episode=self.max_frames,
        )
        if self.fire_reset and "FIRE" in env.unwrapped.get_action_meanings():
            env = FireReset(env)
        env = gym.wrappers.AtariPreprocessing(
            env,
            noop_max=self.noop_max,
            frame_skip=self.frame_skip,
            screen_size=self.size,
        )
        if self.clip_reward:
            env = gym.wrappers.TransformReward(env, lambda reward: float(np.sign(float(reward))))
        env = gym.wrappers.FrameStackObservation(env, self.frames, padding_type="zero")
        return LifeLoss(env) if self.life_loss else env

    def native(self, num_envs: int) -> Any:
        """ale-py's vector environment of so many games."""
        import ale_py

        gym.register_envs(ale_py)
        return gym.make_vec(
            self.name,
            num_envs,
            vectorization_mode="vector_entry_point",
            stack_num=self.frames,
            img_height=self.size,
            img_width=self.size,
            frameskip=self.frame_skip,
            noop_max=self.noop_max,
            use_fire_reset=self.fire_reset,
            life_loss_info=self.life_loss,
            reward_clipping=self.clip_reward,
            repeat_action_probability=self.repeat_action_probability,
            max_num_frames_per_episode=self.max_frames,
        )


class FireReset(gym.Wrapper[Any, Any, Any, Any]):
    """Begin each episode with action 1, for games that wait for it."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Begin an episode; once more, should that action end it."""
        self.env.reset(seed=seed, options=options)
        observation, _, terminated, truncated, info = self.env.step(1)
        if terminated or truncated:
            return self.env.reset(options=options)
        return observation, info


class LifeLoss(gym.Wrapper[Any, Any, Any, Any]):
    """End an episode with each life; the next one goes on in the same game, unless it is seeded."""

    _lives = 0
    _next: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """Go on with the next life, or with a new game."""
        begun = self._next if seed is None else None
        begun = begun or self.env.reset(seed=seed, options=options)
        self._lives, self._next = begun[1].get("lives", 0), None
        return begun

    def step(self, action: Any) -> Any:
        """Take a step."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        lost = 0 < info.get("lives", 0) < self._lives
        if lost and not (terminated or truncated):
            self._next = observation, info
        self._lives = info.get("lives", 0)
        return observation, reward, terminated or lost, truncated, info
