"""Atari games with the usual preprocessing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym


@dataclass(frozen=True)
class Atari:
    """An Atari game for `make_envs`, preprocessed as in Mnih et al. 2015 by ale-py's C++ threads.

    Observations are uint8 [frames, size, size], newest last. Frames before an episode are zeros.

    Args:
        game: A name such as 'Pong' or `ALE/Pong-v5`.
        frames: Frames stacked in an observation.
        size: Height and width of a frame.
        frame_skip: Emulator frames for each action; a frame is the maximum of the last 2 of them.
        noop_max: Most no-op actions at the beginning of an episode.
        fire_reset: Begin with FIRE in games that have it.
        life_loss: End an episode with each life; the game continues in the next one. For training.
        clip_reward: Clip rewards to their sign. For training.
        repeat_action_probability: Probability of sticky actions (Machado et al. 2018).
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

    # With a seed, ale-py loads the game again, which takes as long as 300 steps.
    reseed_after = 10_000

    @property
    def name(self) -> str:
        """Id of the environment in Gymnasium."""
        return self.game if "/" in self.game else f"ALE/{self.game}-v5"

    def make(self, num_envs: int) -> Any:
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
