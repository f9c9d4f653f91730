from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium as gym


@dataclass(frozen=True)
class Atari:
    """Atari game for `make_envs`, preprocessed as in Mnih et al. 2015 by C++ threads of ale-py.

    Observations are uint8 [frames, size, size], the newest frame last. Frames before the start of
    an episode are zeros.

    Args:
        game: Name such as 'Pong' or `ALE/Pong-v5`.
        frames: Number of frames stacked in an observation.
        size: Height and width of a frame in pixels.
        frame_skip: Emulator frames per action. A frame is the maximum of the last 2 of them.
        noop_max: Maximum number of no-op actions at the start of an episode.
        fire_reset: Whether to start an episode with FIRE, if the game has this action.
        life_loss: Whether an episode ends with each life. The next episode continues the game. Use
            only for training.
        clip_reward: Whether to clip rewards to their sign. Use only for training.
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
