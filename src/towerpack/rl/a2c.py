"""Advantage actor-critic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from towerpack.rl import math
from towerpack.rl._agent import Agent
from towerpack.rl.ppo import PPO, ActorCritic


@dataclass(frozen=True, kw_only=True)
class A2CConfig:
    """Settings of `A2C`; those of the same names are as in `PPOConfig`."""

    num_envs: int = 8
    num_steps: int = 5
    learning_rate: float = 7e-4
    discount: float = 0.99
    gae_lambda: float = 1.0
    entropy_weight: float = 0.01
    value_weight: float = 0.5
    max_gradient_norm: float = 0.5
    normalize: bool = False
    anneal: bool = False
    shared: bool | None = None

    epochs: ClassVar[int] = 1

    @property
    def batch_size(self) -> int:
        """All that was played."""
        return self.num_envs * self.num_steps


class A2CModel(ActorCritic):
    """As `ActorCritic`, with the loss of a plain policy gradient."""

    def policy_loss(
        self, log_prob: tf.Tensor, old_log_prob: tf.Tensor, advantage: tf.Tensor
    ) -> tf.Tensor:
        """See `math.a2c_loss`."""
        return math.a2c_loss(log_prob, advantage)


class A2C(PPO):
    """Advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783), its actors in step.

    Each rollout is learnt from once, as one batch. For discrete and continuous actions. See `Agent`
    for the arguments and `A2CConfig` for the settings.
    """

    Config = A2CConfig
    model_class = A2CModel

    def annealed(self) -> dict[str, float]:
        """The learning rate, if it is to be."""
        return Agent.annealed(self)
