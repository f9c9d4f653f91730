"""Deep Q-learning with a replay memory."""

from __future__ import annotations

import math as numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack._core.randomness import stream
from towerpack._core.remote_path import is_url
from towerpack.model import ModelDesc
from towerpack.nn import expose, freeze_variables, reuse_scope, scope, summary
from towerpack.rl import math
from towerpack.rl._actions import linear
from towerpack.rl._agent import Agent, AgentConfig, adam
from towerpack.rl._experience import Experience
from towerpack.rl._networks import MLP
from towerpack.rl._replay import ReplayMemory
from towerpack.training import Trainer
from towerpack.training.state.run_dir import run_dir_of


@dataclass(frozen=True, kw_only=True)
class DQNConfig(AgentConfig):
    """Settings of `DQN`, in addition to the fields of `AgentConfig`.

    Attributes:
        train_freq: Number of steps per environment between two phases of training.
        gradient_steps: Number of gradient steps in a phase.
        batch_size: Number of rows of a batch, at most `buffer_size`.
        buffer_size: Capacity of the replay memory, in transitions.
        frames: Number of frames stacked on the first axis of an observation; the replay memory
            stores only the newest. 1 to store whole observations; 0 for the number of `Atari`.
        learning_starts: Number of environment steps before the first gradient step.
        target_update: Minimum number of environment steps between updates of the target network.
        double: Whether to use double Q-learning (van Hasselt et al. 2016, arXiv:1509.06461).
        dueling: Whether to use a dueling network (Wang et al. 2016, arXiv:1511.06581).
        n_step: Number of steps of the n-step returns (Sutton 1988).
        priority: Exponent of prioritized replay, such as 0.6 (Schaul et al. 2016,
            arXiv:1511.05952); 0 to sample uniformly.
        exploration_fraction: Fraction of the training in which the probability of random actions
            decreases from 1 to `exploration_final`.
        exploration_final: Final probability of random actions.
    """

    num_envs: int = 1
    train_freq: int = 4
    gradient_steps: int = 1
    batch_size: int = 32
    buffer_size: int = 100_000
    frames: int = 0
    learning_starts: int = 1_000
    target_update: int = 1_000
    learning_rate: float = 1e-4
    double: bool = True
    dueling: bool = False
    n_step: int = 1
    priority: float = 0.0
    exploration_fraction: float = 0.1
    exploration_final: float = 0.05
    max_gradient_norm: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size > self.buffer_size:
            raise ConfigError(
                f"DQNConfig.batch_size must be at most buffer_size ({self.buffer_size}), got "
                f"{self.batch_size}."
            )


class QModel(ModelDesc):
    """Model of action values, trained on transitions from a replay memory.

    Exposes `'online/q'` [B, A] and `'action'`, the action with the highest value.

    Args:
        agent: Agent that the model belongs to.
    """

    def __init__(self, agent: DQN) -> None:
        self._agent = agent
        self._config = agent.config

    def inputs(self) -> list[tf.TensorSpec]:
        spec = self._agent.observation_spec
        names = ("reward", "discount", "weight")
        numbers = [tf.TensorSpec([None], tf.float32, name) for name in names]
        return [spec("observation"), self._agent.actions.spec, spec("next_observation"), *numbers]

    def values(self, observation: tf.Tensor) -> tf.Tensor:
        """Compute the values of all actions, [B, A], in a tower.

        Args:
            observation: Observations, [B, …].
        """
        features = self._agent.network(observation)
        q = linear("head", features, self._agent.num_actions, gain=1.0)
        if not self._config.dueling:
            return q
        return q - tf.reduce_mean(q, -1, keepdims=True) + linear("value", features, 1, gain=1.0)

    def build_graph(
        self,
        observation: tf.Tensor,
        action: tf.Tensor,
        next_observation: tf.Tensor,
        reward: tf.Tensor,
        discount: tf.Tensor,
        weight: tf.Tensor,
    ) -> tf.Tensor | None:
        """Return the cost `math.dqn_loss`, or None in inference mode.

        Args:
            observation, action, next_observation, reward, discount, weight: Fields of `Sample`.
        """
        with scope("online"):
            q = expose("q", self.values(observation))
        expose("action", self._agent.actions.mode(q))
        if not self.training:
            return None
        with scope("target"), freeze_variables(skip_collection=True):
            target = self.values(next_observation)
        selector = None
        if self._config.double:
            with scope("online"), reuse_scope():
                selector = self.values(next_observation)
        cost, errors = math.dqn_loss(q, action, reward, discount, target, selector, weight)
        expose("td_error", errors)
        summary.scalar("mean_q", tf.reduce_mean(q))
        return cost

    def optimizer(self) -> Any:
        return adam(self._config)


class Replayed(Experience):
    """Experience that steps the environments, then draws batches from a replay memory.

    Args:
        agent: Agent that collects the experience.
        total_steps: Number of environment steps of the training.
        epoch_steps: Number of environment steps between two checkpoints.
    """

    def __init__(self, agent: DQN, total_steps: int, epoch_steps: int) -> None:
        self._agent = agent
        self._config = config = agent.config
        # Slots written between two checkpoints and while a checkpoint is saved. The last
        # observation of each episode takes an additional slot.
        self._slack = max(config.buffer_size // 10, 4 * epoch_steps)
        self._falls_until = max(1.0, config.exploration_fraction * total_steps)
        super().__init__(
            agent.make_envs,
            agent.network,
            "online",
            output="q",
            batches=config.gradient_steps,
            room=[config.gradient_steps, config.batch_size],
        )
        self.fetches = ["td_error"] if config.priority else []
        self._errors: list[np.ndarray] = []
        self._sampled: Any = None
        self._synced = 0

    def _set_target(self) -> None:
        variables: Mapping[str, tf.Variable] = self.host.tower.store.named_variables()
        for name, variable in variables.items():
            if name.startswith("target/"):
                variable.assign(variables[name.replace("target/", "online/", 1)], read_value=False)

    def open(self, state: Any) -> None:
        sync = tf.function(self._set_target, input_signature=[], autograph=False)
        self._sync = sync.get_concrete_function()
        config = self._config
        self.replay = ReplayMemory(
            self.host.run_dir / "replay",
            capacity=config.buffer_size,
            num_envs=config.num_envs,
            observation_space=self._agent.observation_space,
            action_space=self._agent.action_space,
            frames=config.frames or self._agent.frames,
            n_step=config.n_step,
            discount=config.discount,
            priority=config.priority,
            slack=self._slack,
        )
        if state is not None:
            self._synced = state["synced"]
            self.replay.restore(state["replay"])

    def keep(self) -> dict[str, Any]:
        """Return the state of the replay memory, and the step of the last target network update."""
        return {"synced": self._synced, "replay": self.replay.state()}

    def settings(self) -> Mapping[str, Any]:
        """Return the settings to report, and the step after which exploration is constant."""
        return {**super().settings(), "agent.explores_until": self._falls_until}

    def gather(self, poll: Callable[[], None]) -> None:
        config, envs = self._config, self.envs
        if self._errors:
            indices = self._sampled.indices[: len(self._errors) * config.batch_size]
            self.replay.update_priorities(indices, np.concatenate(self._errors))
        if self.phase == 0 or envs.steps - self._synced >= config.target_update:
            self._sync()
            self._synced = envs.steps
        policy = self.policy()
        steps = config.train_freq
        if self.phase == 0:
            steps += self._agent.steps_before_learning // config.num_envs
        rng = stream(self.seed, "exploration", self.phase)
        for _ in range(steps):
            poll()
            observations = envs.observations
            fallen = min(1.0, envs.steps / self._falls_until)
            share = 1.0 + fallen * (config.exploration_final - 1.0)
            explored = rng.random(config.num_envs) < share
            actions = rng.integers(self._agent.num_actions, size=config.num_envs)
            if not explored.all():
                actions = np.where(explored, actions, policy(observations).argmax(-1))
            done = envs.step(self._agent.actions.for_environment(actions))
            outcome = done.rewards, done.terminated, done.truncated, done.final
            self.replay.append(observations, actions, *outcome)
        self._errors = []
        self._sample(self.phase)

    def _sample(self, phase: int) -> None:
        rows = self.batches * self._config.batch_size
        self._sampled = rows = self.replay.sample(stream(self.seed, "replay", phase), rows)
        first = [rows.observations, rows.actions, rows.next_observations]
        self.load([*first, rows.rewards, rows.discounts, rows.weights])

    def after_step(self, outputs: Mapping[str, Any]) -> None:
        self._errors.append(outputs["td_error"])

    def remaining(self, left: int) -> list[np.ndarray] | None:
        """Return the stored temporal-difference errors. Batches can be drawn again."""
        return list(self._errors) if left or self._errors else None

    def refill(self, state: Sequence[np.ndarray]) -> None:
        self._sample(self.phase - 1)
        self._errors = list(state)


class DQN(Agent):
    """Deep Q-learning (Mnih et al. 2015), optionally double, dueling, n-step and prioritized.

    Supports discrete actions.

        DQN("CartPole-v1", n_step=3).train(total_steps=50_000, run_dir="runs/dqn")

    Args:
        env: Environment; see `Agent`.
        config: Settings; None for the defaults.
        **kwargs: Further arguments of `Agent`, and fields of `DQNConfig` to override.
    """

    Config = DQNConfig
    continuous = False
    mlp = MLP((256, 256), "relu")

    def __init__(self, env: Any, config: DQNConfig | None = None, **kwargs: Any) -> None:
        super().__init__(env, config, **kwargs)
        self.num_actions = int(cast("gym.spaces.Discrete", self.action_space).n)
        self.model = QModel(self)

    def trainer(self, *, run_dir: str | Path | None = None, **kwargs: Any) -> Trainer:
        """Create a trainer for this agent, without starting it. See `Agent.trainer`.

        Args:
            run_dir: Directory of the run, which cannot be a URL.
            **kwargs: Further arguments of `Agent.trainer`.

        Raises:
            ConfigError: `run_dir` is a URL, or another argument is invalid.
        """
        if is_url(run_dir_of(run_dir)):
            raise ConfigError(
                "DQN needs a local run_dir=, because its replay memory is not uploaded.",
                got=str(run_dir_of(run_dir)),
                fix="pass a local directory, or train PPO or A2C",
            )
        return super().trainer(run_dir=run_dir, **kwargs)

    @property
    def steps_per_phase(self) -> int:
        return self.config.num_envs * self.config.train_freq

    @property
    def steps_before_learning(self) -> int:
        """Number of environment steps before learning, beyond the steps of the first phase."""
        first = max(self.config.learning_starts, self.config.num_envs * (self.config.n_step + 1))
        left = max(0, first - self.steps_per_phase)
        return numbers.ceil(left / self.config.num_envs) * self.config.num_envs

    def experience(self, total_steps: int, epoch_steps: int) -> Replayed:
        return Replayed(self, total_steps, epoch_steps)
