from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from towerpack._core.errors import ConfigError
from towerpack._core.randomness import derive_seed
from towerpack.callbacks import Callback, TrainerHost
from towerpack.rl._atari import Atari
from towerpack.rl._envs import make_envs


class Evaluator(Callback):
    """Callback that plays episodes with the current policy and reports their returns.

    Reports `'<prefix>/mean'`, `max`, `median` and `std`. Each environment plays the same number of
    whole episodes, because otherwise short episodes would count more. Every evaluation plays the
    same episodes: their seeds depend only on the run's seed and the prefix.

    Args:
        env: Environment; see `Agent`.
        episodes: Number of episodes.
        num_envs: Number of environments stepped together; at most `episodes` are used.
        prefix: Prefix of the reported names.
        output: Name of the tower's output with an action for each observation.
        **options: Additional arguments of `make_envs`.

    Raises:
        ConfigError: `episodes` or `num_envs` is less than 1.
    """

    def __init__(
        self,
        env: str | Callable[[], Any] | Atari,
        episodes: int = 100,
        *,
        num_envs: int = 8,
        prefix: str = "eval",
        output: str = "action",
        **options: Any,
    ) -> None:
        if episodes < 1 or num_envs < 1:
            raise ConfigError(
                "The arguments episodes and num_envs of Evaluator must be at least 1, got "
                f"{episodes} and {num_envs}."
            )
        self._env, self._options = env, options
        self._episodes, self._num_envs = episodes, min(num_envs, episodes)
        self._prefix, self._output = prefix, output

    def produces(self) -> Sequence[str]:
        return [f"{self._prefix}/{name}" for name in ("mean", "max", "median", "std")]

    def setup(self, trainer: TrainerHost) -> None:
        if trainer.fast_dev_run:
            self._episodes = min(self._episodes, trainer.fast_dev_run)
            self._num_envs = min(self._num_envs, self._episodes)

    def before_train(self) -> None:
        better = [f"{self._prefix}/{name}" for name in ("mean", "max", "median")]
        self.trainer.monitors.directions |= dict.fromkeys(better, "max")
        self._act, _ = self.trainer.predict_function([self._output])

    def trigger(self) -> None:
        returns = self._play()
        numbers = (returns.mean(), returns.max(), np.median(returns), returns.std())
        for name, value in zip(self.produces(), numbers, strict=True):
            self.trainer.monitors.put_scalar(name, float(value), self.trainer.global_step)

    def _play(self) -> np.ndarray:
        returns: list[float] = []
        # Number of episodes that each environment must still finish.
        left = np.full(self._num_envs, self._episodes // self._num_envs)
        left[: self._episodes % self._num_envs] += 1
        seed = derive_seed(self.trainer.seed, "Evaluator", self._prefix)
        with make_envs(self._env, self._num_envs, seed=seed, **self._options) as envs:
            observations = envs.reset()
            while left.any():
                self.trainer.check_interrupt()
                (actions,) = self._act(observations)
                done = envs.step(np.asarray(actions))
                observations = done.observations
                over = (done.terminated | done.truncated) & (left > 0)
                returns.extend(done.returns[over].tolist())
                left -= over
        return np.array(returns)

    def __repr__(self) -> str:
        return f"Evaluator({self._prefix!r})"
