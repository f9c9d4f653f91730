"""Base class of agents and of their settings."""

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
"""Ranges of settings; other integers are at least 1, other numbers at least 0."""


@dataclass(frozen=True, kw_only=True)
class AgentConfig:
    """Settings of every agent.

    Attributes:
        num_envs: Number of environments stepped together.
        learning_rate: Learning rate of Adam.
        discount: Discount factor of a reward one step later.
        max_gradient_norm: Global norm to which gradients are clipped.
        anneal: Anneal the learning rate, and the clip of `PPO`, linearly to 0.

    Raises:
        ConfigError: A value of the wrong type or out of range.
    """

    num_envs: int = 8
    learning_rate: float = 3e-4
    discount: float = 0.99
    max_gradient_norm: float = 0.5
    anneal: bool = False

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value, usual = getattr(self, field.name), field.default
            if isinstance(usual, bool | None):
                fits, expected = isinstance(value, type(usual) | bool), "True or False"
            else:
                kind = numbers.Real if isinstance(usual, float) else numbers.Integral
                low, high = _RANGES.get(field.name, (int(kind is numbers.Integral), math.inf))
                fits = isinstance(value, kind) and not isinstance(value, bool)
                fits = fits and math.isfinite(value) and low <= value <= high
                expected = f"{'a number' if kind is numbers.Real else 'a whole number'}, {low}"
                expected += " or more" if high == math.inf else f" to {high}"
            if not fits:
                raise ConfigError(
                    f"{type(self).__name__}({field.name}={value!r}).", expected=expected
                )


class Agent(ABC):
    """An algorithm that learns to act in an environment.

    Args:
        env: A Gymnasium id, a function that makes one environment, or `Atari('Pong')`.
        config: Settings; None for the defaults.
        network: A function in a tower, from a batch of observations to features, such as `MLP()`.
            None for the agent's own MLP, or `nature_cnn` for frames of bytes.
        env_options: Further arguments of `make_envs`.
        **settings: Fields of the configuration to override.

    Attributes:
        config: The settings.
        model: The trained model. With a run's directory it makes a `Predictor`, whose output
            `'action'` is the action without exploration.

    Raises:
        ConfigError: There is no such setting, or the agent cannot serve the environment's spaces.
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
        who = type(self).__name__
        if not isinstance(config, self.Config | None):
            raise ConfigError(
                f"{who} does not take a {type(config).__name__}.",
                fix=f"{self.Config.__name__}(…), or settings by name",
            )
        known = [field.name for field in dataclasses.fields(self.Config)]
        if unknown := [name for name in settings if name not in known]:
            raise ConfigError(
                f"{who} has no setting '{unknown[0]}'.", fix=did_you_mean(unknown[0], known)
            )
        self.config = dataclasses.replace(config or self.Config(), **settings)
        self._env, self._env_options = env, dict(env_options or {})
        options = {**self._env_options, "backend": "auto", "timeout": math.inf}
        with make_envs(env, 1, seed=0, **options) as probe:
            self.observation_space, self.action_space = probe.observation_space, probe.action_space
            self.frames = probe.frames
        self.actions = actions_of(self.action_space, who, continuous=self.continuous)
        self.network = network or network_for(self.observation_space, self.mlp)

    def observation_spec(self, name: str) -> tf.TensorSpec:
        space: Any = self.observation_space
        return tf.TensorSpec([None, *space.shape], space.dtype, name)

    def make_envs(self, seed: int) -> VectorEnv:
        return make_envs(self._env, self.config.num_envs, seed=seed, **self._env_options)

    @property
    @abstractmethod
    def steps_per_phase(self) -> int:
        """Environment steps of one phase, all environments together."""

    @property
    def steps_before_learning(self) -> int:
        """Additional environment steps of the first phase."""
        return 0

    @abstractmethod
    def experience(self, total_steps: int, epoch_steps: int) -> Experience:
        """Make a source of batches for a number of environment steps, in total and in an epoch."""

    def trainer(
        self,
        *,
        total_steps: int,
        epoch_steps: int = 10_000,
        run_dir: str | Path | None = None,
        callbacks: Sequence[Callback] = (),
        **kwargs: Any,
    ) -> Trainer:
        """An ordinary trainer for this agent.

        Args:
            total_steps: Environment steps, all environments together, rounded up to whole epochs;
                the first epoch includes the steps before learning. Steps of a continued run count,
                whatever the length of its epochs was.
            epoch_steps: Least number of environment steps of an epoch.
            run_dir: As in `TrainConfig`.
            callbacks: In addition to `ShowEpisodes`, the schedules, and a `ModelSaver`.
            **kwargs: Further arguments of `TrainConfig`.
        """
        if min(total_steps, epoch_steps) < 1:
            raise ConfigError(
                f"{total_steps=} and {epoch_steps=} leave nothing to train.",
                expected="at least 1 of each",
            )
        phases = math.ceil(epoch_steps / self.steps_per_phase)
        played = phases * self.steps_per_phase
        before = self.steps_before_learning
        epochs = max(1, math.ceil((total_steps - before) / played))
        source = self.experience(total_steps, played)
        source.goal = total_steps, self.steps_per_phase, before
        fields = dataclasses.asdict(self.config)
        # The trainer itself reports changed hyper-parameters.
        told = {f"agent.{n}": v for n, v in fields.items() if n not in ("learning_rate", "clip")}
        envs = {"agent.env": self._env, "agent.env_options": self._env_options}
        source.told = {"agent": type(self).__name__, **envs, **told}
        steps = phases * source.batches
        usual: list[Callback] = [ShowEpisodes(source)]
        for name, first in self.annealed().items():
            line = [(0, first), (epochs * steps, 0.0)]
            usual.append(ScheduledHyperParamSetter(name, line, "linear", step_based=True))
        if not any(isinstance(callback, ModelSaver) for callback in callbacks):
            usual.append(ModelSaver(keep=3))
        config = TrainConfig(
            model=self.model,
            data=source,
            callbacks=[*usual, *callbacks],
            steps_per_epoch=steps,
            max_epoch=epochs,
            run_dir=run_dir,
            **kwargs,
        )
        return Trainer(config)

    def train(self, **kwargs: Any) -> Trainer:
        """Train, or continue a run; takes the arguments of `trainer` and returns that trainer."""
        trainer = self.trainer(**kwargs)
        trainer.train()
        return trainer

    def annealed(self) -> dict[str, float]:
        """Hyper-parameters annealed to 0, with their initial values."""
        return {"learning_rate": self.config.learning_rate} if self.config.anneal else {}


def adam(config: Any) -> Any:
    """Adam with an agent's settings, and gradients clipped by their global norm."""
    optimizer = keras.optimizers.Adam(config.learning_rate, epsilon=1e-5)
    return apply_grad_processors(optimizer, [GlobalNormClip(config.max_gradient_norm)])
