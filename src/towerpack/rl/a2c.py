"""Advantage actor-critic (A2C)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import tensorflow as tf

from towerpack.rl import math
from towerpack.rl._agent import Agent
from towerpack.rl._rollouts import RolloutConfig
from towerpack.rl.ppo import PPO, ActorCritic


@dataclass(frozen=True, kw_only=True)
class A2CConfig(RolloutConfig):
    """Settings of `A2C`. Same fields as `RolloutConfig`, with different defaults."""

    num_steps: int = 5
    learning_rate: float = 7e-4
    gae_lambda: float = 1.0
    entropy_weight: float = 0.01
    normalize: bool = False

    epochs: ClassVar[int] = 1

    @property
    def batch_size(self) -> int:
        return self.num_envs * self.num_steps


class A2CModel(ActorCritic):
    """Actor-critic model with the policy-gradient loss `math.a2c_loss`."""

    def policy_loss(
        self, log_prob: tf.Tensor, old_log_prob: tf.Tensor, advantage: tf.Tensor
    ) -> tf.Tensor:
        return math.a2c_loss(log_prob, advantage)


class A2C(PPO):
    """Synchronous advantage actor-critic (Mnih et al. 2016, arXiv:1602.01783).

    Each rollout is used once, as one batch. Supports discrete and continuous actions. See `Agent`
    for the arguments and `A2CConfig` for the settings.
    """

    Config = A2CConfig
    model_class = A2CModel

    def annealed(self) -> dict[str, float]:
        """Return the learning rate, the only hyperparameter that is annealed."""
        return Agent.annealed(self)
