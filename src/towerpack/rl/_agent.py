"""What agents share: settings, environments, and a trainer."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import keras
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack._core.naming import did_you_mean
from towerpack.callbacks import Callback, ModelSaver, ScheduledHyperParamSetter
from towerpack.model import ModelDesc
from towerpack.rl._actions import actions_of
from towerpack.rl._envs import VectorEnv, make_envs
from towerpack.rl._experience import Experience, ShowEpisodes
from towerpack.rl._networks import MLP, Network, network_for
from towerpack.training import GlobalNormClip, TrainConfig, Trainer, apply_grad_processors


class Agent(ABC):
    """Learns to act in an environment.

    Args:
        env: A Gymnasium id, or a function that makes one environment.
        config: Settings; None for the defaults.
        network: A function in a tower, from a batch of observations to features, such as `MLP()`.
            None for the agent's own MLP, or `nature_cnn` for frames of bytes.
        env_options: Further arguments of `make_envs`.
        **settings: Fields of the configuration that are to be different.

    Attributes:
        config: The settings.
        model: What is trained. With a run's directory it makes a `Predictor`, whose output
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
        env: str | Callable[[], Any],
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
        probe = make_envs(env, 1, seed=0, **{**self._env_options, "backend": "serial"})
        self.observation_space, self.action_space = probe.observation_space, probe.action_space
        probe.close()
        self.actions = actions_of(self.action_space, who, continuous=self.continuous)
        self.network = network or network_for(self.observation_space, self.mlp)

    def observation_spec(self, name: str) -> tf.TensorSpec:
        """Of a batch of observations."""
        space: Any = self.observation_space
        return tf.TensorSpec([None, *space.shape], space.dtype, name)

    def make_envs(self, seed: int) -> VectorEnv:
        """The environments that it learns in."""
        return make_envs(self._env, self.config.num_envs, seed=seed, **self._env_options)

    @property
    @abstractmethod
    def steps_per_phase(self) -> int:
        """Environment steps between two trainings, of all environments together."""

    @property
    def steps_before_learning(self) -> int:
        """Environment steps of the first phase that no other one has."""
        return 0

    @abstractmethod
    def experience(self, total_steps: int, epoch_steps: int) -> Experience:
        """A new source of batches.

        Args:
            total_steps: Environment steps of the training.
            epoch_steps: And of an epoch.
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
        """A trainer of this agent, an ordinary one.

        Args:
            total_steps: Environment steps, of all environments together; whole epochs are done,
                of which the first also has the steps before learning.
            epoch_steps: Environment steps of an epoch, at least.
            run_dir: As in `TrainConfig`.
            callbacks: Besides `ShowEpisodes`, the schedules, and `ModelSaver` if there is none.
            **kwargs: Further arguments of `TrainConfig`.
        """
        phases = math.ceil(epoch_steps / self.steps_per_phase)
        played = phases * self.steps_per_phase
        before = self.steps_before_learning
        epochs = max(1, math.ceil((total_steps - before) / played))
        source = self.experience(before + epochs * played, played)
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
        """Train, or continue; takes the arguments of `trainer`, and gives it back."""
        trainer = self.trainer(**kwargs)
        trainer.train()
        return trainer

    def annealed(self) -> dict[str, float]:
        """Hyper-parameters that fall to 0 by the end, with their first values."""
        return {"learning_rate": self.config.learning_rate} if self.config.anneal else {}


def adam(config: Any) -> Any:
    """Adam by an agent's settings, gradients clipped by their global norm."""
    optimizer = keras.optimizers.Adam(config.learning_rate, epsilon=1e-5)
    return apply_grad_processors(optimizer, [GlobalNormClip(config.max_gradient_norm)])
