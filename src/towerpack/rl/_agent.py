from __future__ import annotations

import dataclasses
import math
import numbers
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import keras
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack._core.naming import did_you_mean
from towerpack.callbacks import Callback, ModelSaver, ScheduledHyperParamSetter
from towerpack.model import ModelDesc
from towerpack.rl._actions import actions_of
from towerpack.rl._atari import Atari
from towerpack.rl._envs import VectorEnv, make_envs
from towerpack.rl._experience import Experience, ShowEpisodes
from towerpack.rl._networks import MLP, Network, network_for
from towerpack.training import GlobalNormClip, TrainConfig, Trainer, apply_grad_processors

_RANGES = {
    **dict.fromkeys(["learning_starts", "frames"], (0, math.inf)),
    **dict.fromkeys(["discount", "gae_lambda"], (0, 1)),
    **dict.fromkeys(["exploration_fraction", "exploration_final"], (0, 1)),
}
"""Ranges of settings. All other integers must be at least 1, all other numbers at least 0."""


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """Settings that all agents have.

    Attributes:
        num_envs: Number of environments, which are stepped together.
        learning_rate: Learning rate of Adam.
        discount: Discount factor of rewards per step.
        max_gradient_norm: Global norm to which gradients are clipped.
        anneal: Whether to decrease the learning rate, and the clip of `PPO`, linearly to 0.

    Raises:
        ConfigError: A value has a wrong type or is out of range.
    """

    num_envs: int = 8
    learning_rate: float = 3e-4
    discount: float = 0.99
    max_gradient_norm: float = 0.5
    anneal: bool = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, default = getattr(self, field.name), field.default
            if isinstance(default, bool | None):
                fits, rule = isinstance(value, type(default) | bool), "True or False"
            else:
                kind = numbers.Real if isinstance(default, float) else numbers.Integral
                low, high = _RANGES.get(field.name, (int(kind is numbers.Integral), math.inf))
                fits = isinstance(value, kind) and not isinstance(value, bool)
                fits = fits and math.isfinite(value) and low <= value <= high
                rule = f"{'a number' if kind is numbers.Real else 'an integer'} "
                rule += f"of at least {low}" if high == math.inf else f"from {low} to {high}"
            if not fits:
                name = f"{type(self).__name__}.{field.name}"
                raise ConfigError(f"{name} must be {rule}, got {value!r}.")


class Agent(ABC):
    """Base class of agents, such as `PPO` and `DQN`.

    An agent alternates phases: it collects experience with the current policy, then trains on it.

    Args:
        env: A Gymnasium id, a function that creates one environment, or `Atari('Pong')`.
        config: Settings; None for the defaults.
        network: Function that computes features from a batch of observations in a tower, such as
            `MLP()`. None for `nature_cnn` if observations are images, else the agent's MLP.
        env_options: Additional arguments of `make_envs`.
        **settings: Fields of `config` to override.

    Attributes:
        config: The settings.
        model: The trained model. A `Predictor` of the model and a run directory has the output
            `'action'`: the action without exploration.

    Raises:
        ConfigError: A setting is unknown or invalid, or the agent does not support the spaces.
    """

    Config: ClassVar[type[Any]]
    continuous: ClassVar[bool] = True
    mlp: ClassVar[MLP] = MLP()
    model: ModelDesc

    def __init__(
        self,
        env: str | Callable[[], Any] | Atari,
        config: Any = None,
        *,
        network: Network | None = None,
        env_options: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> None:
        agent = type(self).__name__
        if not isinstance(config, self.Config | None):
            raise ConfigError(
                f"The config of {agent} must be a {self.Config.__name__}, got "
                f"{type(config).__name__}.",
                fix=f"pass {self.Config.__name__}(…), or settings by name",
            )
        known = [field.name for field in dataclasses.fields(self.Config)]
        if unknown := [name for name in settings if name not in known]:
            text = f"{agent} has no setting '{unknown[0]}'. {did_you_mean(unknown[0], known)}"
            raise ConfigError(text, fix=f"see the settings of {self.Config.__name__}")
        self.config = dataclasses.replace(config or self.Config(), **settings)
        self._env, self._env_options = env, dict(env_options or {})
        options = {**self._env_options, "backend": "auto", "timeout": math.inf}
        with make_envs(env, 1, seed=0, **options) as probe:
            self.observation_space, self.action_space = probe.observation_space, probe.action_space
            self.frames = probe.frames
        self.actions = actions_of(self.action_space, agent, continuous=self.continuous)
        self.network = network or network_for(self.observation_space, self.mlp)

    def observation_spec(self, name: str) -> tf.TensorSpec:
        space: Any = self.observation_space
        return tf.TensorSpec([None, *space.shape], space.dtype, name)

    def make_envs(self, seed: int) -> VectorEnv:
        return make_envs(self._env, self.config.num_envs, seed=seed, **self._env_options)

    @property
    @abstractmethod
    def steps_per_phase(self) -> int:
        """Number of environment steps in a phase, summed over all environments."""

    @property
    def steps_before_learning(self) -> int:
        """Number of additional environment steps in the first phase."""
        return 0

    @abstractmethod
    def experience(self, total_steps: int, epoch_steps: int) -> Experience:
        """Create the input source that collects experience.

        Args:
            total_steps, epoch_steps: Number of environment steps of the training and of an epoch.
        """

    def trainer(
        self,
        *,
        total_steps: int,
        epoch_steps: int = 10_000,
        run_dir: str | Path | None = None,
        callbacks: Sequence[Callback] = (),
        **kwargs: Any,
    ) -> Trainer:
        """Create a trainer for this agent, without starting it.

        Args:
            total_steps: Number of environment steps to train for, summed over all environments and
                including resumed runs. Rounded up to whole epochs.
            epoch_steps: Minimum number of environment steps per epoch. The first epoch also has
                `steps_before_learning`.
            run_dir: Directory of the run; see `TrainConfig`.
            callbacks: Callbacks in addition to `ShowEpisodes`, the schedules and a `ModelSaver`.
            **kwargs: Further arguments of `TrainConfig`.

        Raises:
            ConfigError: A number of steps is not positive.
        """
        if min(total_steps, epoch_steps) < 1:
            raise ConfigError(
                f"total_steps and epoch_steps must be at least 1, got {total_steps} and "
                f"{epoch_steps}."
            )
        phases = math.ceil(epoch_steps / self.steps_per_phase)
        played = phases * self.steps_per_phase
        before = self.steps_before_learning
        epochs = max(1, math.ceil((total_steps - before) / played))
        source = self.experience(total_steps, played)
        source.goal = total_steps, self.steps_per_phase, before
        fields = dataclasses.asdict(self.config)
        # The trainer itself reports changed hyper-parameters.
        values = {f"agent.{n}": v for n, v in fields.items() if n not in ("learning_rate", "clip")}
        envs = {"agent.env": self._env, "agent.env_options": self._env_options}
        source.reported_settings = {"agent": type(self).__name__, **envs, **values}
        steps = phases * source.batches
        defaults: list[Callback] = [ShowEpisodes(source)]
        for name, first in self.annealed().items():
            line = [(0, first), (epochs * steps, 0.0)]
            defaults.append(ScheduledHyperParamSetter(name, line, "linear", step_based=True))
        if not any(isinstance(callback, ModelSaver) for callback in callbacks):
            defaults.append(ModelSaver(keep=3))
        config = TrainConfig(
            model=self.model,
            data=source,
            callbacks=[*defaults, *callbacks],
            steps_per_epoch=steps,
            max_epoch=epochs,
            run_dir=run_dir,
            **kwargs,
        )
        return Trainer(config)

    def train(self, **kwargs: Any) -> Trainer:
        """Train the agent, or resume a run. Return the trainer.

        Args:
            **kwargs: Arguments of `trainer`.
        """
        trainer = self.trainer(**kwargs)
        trainer.train()
        return trainer

    def annealed(self) -> dict[str, float]:
        """Return the hyperparameters to anneal to 0, with their initial values."""
        return {"learning_rate": self.config.learning_rate} if self.config.anneal else {}


def adam(config: Any) -> Any:
    """Create Adam with an agent's learning rate and gradient clipping by global norm."""
    optimizer = keras.optimizers.Adam(config.learning_rate, epsilon=1e-5)
    return apply_grad_processors(optimizer, [GlobalNormClip(config.max_gradient_norm)])
