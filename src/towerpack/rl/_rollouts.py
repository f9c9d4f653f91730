from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.randomness import stream
from towerpack.rl import math
from towerpack.rl._agent import Agent, AgentConfig
from towerpack.rl._experience import Experience


@dataclass(frozen=True, kw_only=True)
class RolloutConfig(AgentConfig):
    """Settings of agents that learn from rollouts, in addition to the fields of `AgentConfig`.

    Attributes:
        num_steps: Number of steps per environment in a rollout.
        gae_lambda: λ of generalized advantage estimation.
        entropy_weight: Weight of the entropy bonus.
        value_weight: Weight of the value loss.
        normalize: Whether to standardize the advantages of each minibatch.
        shared: Whether policy and value share one network. With None, they do unless the network is
            an `MLP`.
    """

    num_steps: int = 256
    gae_lambda: float = 0.95
    entropy_weight: float = 0.0
    value_weight: float = 0.5
    normalize: bool = True
    shared: bool | None = None


class Rollouts(Experience):
    """Experience of on-policy agents: each rollout is used in several shuffled passes.

    A minibatch contains observations, actions, advantages, returns, and the log-probabilities of
    the actions under the policy that chose them.
    """

    def __init__(self, agent: Agent) -> None:
        self._config = config = agent.config
        self._actions = agent.actions
        self._shape = config.num_steps, config.num_envs
        rows = agent.steps_per_phase
        batches = config.epochs * (rows // config.batch_size)
        make_envs, network = agent.make_envs, agent.network
        super().__init__(
            make_envs, network, "policy", output="parameters", batches=batches, room=[rows]
        )
        order = tf.zeros([batches, config.batch_size], tf.int64)
        self._order = tf.Variable(order, trainable=False)

    def open(self, state: Any) -> None:
        steps, envs = self._shape
        observations = self.envs.observations
        shape, dtype = observations.shape[1:], observations.dtype
        spec: Any = self._actions.spec
        self._observations = np.zeros([steps + 1, envs, *shape], dtype)
        self._acted = np.zeros([steps, envs, *spec.shape[1:]], spec.dtype.as_numpy_dtype)
        self._rewards = np.zeros([steps, envs], np.float32)
        self._ends = np.zeros([2, steps, envs], bool)
        arrays = (self._observations, self._acted, self._rewards, self._ends)
        signature = [tf.TensorSpec(a.shape, a.dtype) for a in arrays]
        signature += [tf.TensorSpec([None, *shape], dtype), tf.TensorSpec([None], tf.int64)]
        prepare = tf.function(self._prepared, input_signature=signature, autograph=False)
        self._prepare = prepare.get_concrete_function()

    def gather(self, poll: Callable[[], None]) -> None:
        steps, envs = self._shape
        played, actions, policy = self.envs, self._actions, self.policy()
        noise = actions.noise(stream(self.seed, "actions", self.phase), self._shape)
        finals, cut = [self._observations[:0, 0]], [np.zeros(0, np.int64)]
        for t in range(steps):
            poll()
            self._observations[t] = played.observations
            self._acted[t] = acted = actions.sample(policy(played.observations), noise[t])
            done = played.step(actions.for_environment(acted))
            self._rewards[t] = done.rewards
            self._ends[:, t] = done.terminated, done.truncated
            if done.truncated.any():
                where = np.flatnonzero(done.truncated)
                finals.append(done.final[where])
                cut.append(t * envs + where)
        self._observations[steps] = played.observations
        arrays = (self._observations, self._acted, self._rewards, self._ends)
        joined = (np.concatenate(finals), np.concatenate(cut))
        self._prepare(*map(tf.convert_to_tensor, (*arrays, *joined)))
        self._shuffle(self.phase)

    def _prepared(self, observations: Any, acted: Any, rewards: Any, ends: Any, *cut: Any) -> None:
        steps, envs = self._shape
        rows = steps * envs
        finals, where = cut
        predict, _ = self.host.predict_function(["policy/parameters", "value"])
        flat = tf.reshape(observations, [rows + envs, *observations.shape[2:]])
        parameters, predicted = predict(tf.concat([flat, finals], 0))
        values = tf.reshape(predicted[: rows + envs], [steps + 1, envs])
        # After a truncated episode, the next row belongs to a new episode.
        reached = tf.tensor_scatter_nd_update(
            tf.reshape(values[1:], [rows]), where[:, None], predicted[rows + envs :]
        )
        advantages = math.gae(
            rewards,
            values[:-1],
            tf.reshape(reached, [steps, envs]),
            *tf.unstack(ends),
            discount=self._config.discount,
            lambda_=self._config.gae_lambda,
        )
        acted = tf.reshape(acted, [rows, *acted.shape[2:]])
        log_prob = self._actions.log_prob(parameters[:rows], acted)
        self.load([flat[:rows], acted, advantages, advantages + values[:-1], log_prob])

    def _shuffle(self, phase: int) -> None:
        order = np.tile(np.arange(self._shape[0] * self._shape[1]), (self._config.epochs, 1))
        order = stream(self.seed, "minibatches", phase).permuted(order, axis=1)
        self._order.assign(order.reshape(self.batches, self._config.batch_size))

    def batch(self, position: tf.Tensor) -> list[tf.Tensor]:
        order = tf.gather(self._order, position)
        return [tf.gather(variable, order) for variable in self.rows]

    def refill(self, state: Sequence[np.ndarray]) -> None:
        super().refill(state)
        self._shuffle(self.phase - 1)
