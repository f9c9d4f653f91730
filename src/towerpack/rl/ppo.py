"""Proximal policy optimization (PPO)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack.model import ModelDesc
from towerpack.nn import expose, scope, summary
from towerpack.rl import math
from towerpack.rl._actions import linear
from towerpack.rl._agent import Agent, adam
from towerpack.rl._networks import MLP
from towerpack.rl._rollouts import RolloutConfig, Rollouts


@dataclass(frozen=True, kw_only=True)
class PPOConfig(RolloutConfig):
    """Settings of `PPO`, in addition to the fields of `RolloutConfig`.

    Attributes:
        batch_size: Number of rows of a minibatch, a divisor of `num_envs * num_steps`.
        epochs: Number of passes over a rollout.
        clip: Largest distance from 1 of the ratio of new and old action probabilities.
    """

    batch_size: int = 256
    epochs: int = 10
    clip: float = 0.2


class ActorCritic(ModelDesc):
    """Model of a policy and a value function, trained on minibatches of rollouts.

    Exposes `'policy/parameters'`, the parameters of the action distribution, `'value'`, and
    `'action'`, the most likely action.

    Args:
        agent: Agent that the model belongs to.
    """

    def __init__(self, agent: PPO) -> None:
        self._agent = agent
        self._config = agent.config

    def inputs(self) -> list[tf.TensorSpec]:
        names = ("advantage", "return", "old_log_prob")
        numbers = [tf.TensorSpec([None], tf.float32, name) for name in names]
        return [self._agent.observation_spec("observation"), self._agent.actions.spec, *numbers]

    def build_graph(
        self,
        observation: tf.Tensor,
        action: tf.Tensor,
        advantage: tf.Tensor,
        returns: tf.Tensor,
        old_log_prob: tf.Tensor,
    ) -> tf.Tensor | None:
        """Return the policy and value losses minus the entropy bonus, or None in inference mode.

        Args:
            observation, action: Observations [B, …] and actions [B, …].
            advantage, returns, old_log_prob: Advantages, returns and log-probabilities [B].
        """
        config, actions, network = self._config, self._agent.actions, self._agent.network
        shared = not isinstance(network, MLP) if config.shared is None else config.shared
        with scope("policy"):
            features = network(observation)
            parameters = expose("parameters", actions.head(features))
        with scope("critic"):
            features = features if shared else network(observation)
            value = tf.squeeze(linear("head", features, 1, gain=1.0), -1)
        expose("value", value)
        expose("action", actions.mode(parameters))
        if not self.training:
            return None
        if config.normalize:
            mean, variance = tf.nn.moments(advantage, [0])
            advantage = (advantage - mean) / (tf.sqrt(variance) + 1e-8)
        log_prob = actions.log_prob(parameters, action)
        losses = {
            "policy_loss": self.policy_loss(log_prob, old_log_prob, advantage),
            "value_loss": tf.reduce_mean(tf.square(returns - value)),
            "entropy": tf.reduce_mean(actions.entropy(parameters)),
        }
        for name, loss in losses.items():
            summary.scalar(name, loss)
        weights = (1.0, config.value_weight, -config.entropy_weight)
        return tf.add_n([w * loss for w, loss in zip(weights, losses.values(), strict=True)])

    def policy_loss(
        self, log_prob: tf.Tensor, old_log_prob: tf.Tensor, advantage: tf.Tensor
    ) -> tf.Tensor:
        """Return the policy loss `math.ppo_loss`, a scalar. The variable `clip` can be scheduled.

        Args:
            log_prob, old_log_prob, advantage: See `math.ppo_loss`, [B].
        """
        first = tf.compat.v1.constant_initializer(self._config.clip)
        clip = tf.compat.v1.get_variable("clip", [], initializer=first, trainable=False)
        summary.scalar("kl", tf.reduce_mean(old_log_prob - log_prob))
        return math.ppo_loss(log_prob, old_log_prob, advantage, clip)

    def optimizer(self) -> Any:
        return adam(self._config)


class PPO(Agent):
    """Proximal policy optimization (Schulman et al. 2017, arXiv:1707.06347).

    Supports discrete and continuous actions.

        PPO("CartPole-v1", num_envs=8).train(total_steps=100_000, run_dir="runs/ppo")

    Args:
        env: Environment; see `Agent`.
        config: Settings; None for the defaults.
        **kwargs: Further arguments of `Agent`, and fields of `PPOConfig` to override.

    Raises:
        ConfigError: `batch_size` does not divide the number of rows of a rollout; see also `Agent`.
    """

    Config = PPOConfig
    model_class: ClassVar[type[ActorCritic]] = ActorCritic

    def __init__(self, env: Any, config: Any = None, **kwargs: Any) -> None:
        super().__init__(env, config, **kwargs)
        if self.steps_per_phase % self.config.batch_size:
            raise ConfigError(
                f"batch_size must divide the {self.steps_per_phase} rows of a rollout "
                f"(num_envs * num_steps), got {self.config.batch_size}.",
                fix="choose a divisor of num_envs * num_steps",
            )
        self.model = self.model_class(self)

    @property
    def steps_per_phase(self) -> int:
        return self.config.num_envs * self.config.num_steps

    def experience(self, total_steps: int, epoch_steps: int) -> Rollouts:
        return Rollouts(self)

    def annealed(self) -> dict[str, float]:
        """Return the hyperparameters that are annealed: the learning rate and the clip."""
        clip = {"clip": self.config.clip} if self.config.anneal else {}
        return {**super().annealed(), **clip}
