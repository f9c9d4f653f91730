"""Vector environments that recover from failures and can be restored exactly."""

from __future__ import annotations

import functools
import importlib
import math
import zlib
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from towerpack._core.errors import ConfigError, EnvError, StateError
from towerpack._core.logs import get_logger
from towerpack._core.randomness import derive_seed
from towerpack.rl._atari import Atari
from towerpack.rl._backends import (
    CARTPOLES,
    AtariGames,
    Backend,
    CartPoles,
    EnvFailure,
    MakeEnv,
    SingleEnvs,
    Transitions,
)

_log = get_logger(__name__)

_FEW = 4
"""Up to this number, single environments are faster than a vector environment."""
_MAX_RESTARTS = 3
"""Allowed consecutive failures of an environment. An episode or `_LONG` steps reset the count."""
_LONG = 1000


class Step(NamedTuple):
    """Results of one step of all environments, with one row per environment.

    Attributes:
        observations: Observations for the next action. After the end of an episode, this is the
            first observation of the next episode.
        rewards: Rewards, float32.
        terminated: Whether the episode ended in a terminal state.
        truncated: Whether the episode was cut off before a terminal state.
        final: Observations after the action: the last observation of an episode that ended, else
            the same as `observations`.
        returns: Sum of the episode's rewards up to this step, float64.
        lengths: Number of steps of the episode up to this step.
    """

    observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final: np.ndarray
    returns: np.ndarray
    lengths: np.ndarray


class VectorEnv(AbstractContextManager["VectorEnv"]):
    """Environments of one kind that are stepped together. Create them with `make_envs`.

    The seed of an episode depends only on the run's seed, the environment and the number of the
    episode. A saved state contains only the number, and the actions since the last seed, which
    `restore` replays.

    An environment that raises an error, dies or hangs is created again, with a warning. Its
    episode is truncated at the last observation, with reward 0.

    Attributes:
        num_envs: Number of environments.
        observation_space, action_space: Spaces of one environment.
        observations: Current observations.
        restarts: Number of failures so far.
        steps: Number of steps so far, summed over all environments.
        frames: Number of frames stacked on the first axis of an observation; 1 if unknown.

    Args:
        backend: Object that steps the environments.
        name: Name of the environment for messages.
        seed: The run's seed.
        reseed_after: Number of steps after which the next episode is seeded. Use 0 to seed each
            episode, or more if seeding is slow, as for Atari. `restore` then replays more actions.
    """

    def __init__(self, backend: Backend, *, name: str, seed: int, reseed_after: int = 0) -> None:
        self.frames: int = getattr(backend, "frames", 1)
        self._backend, self._name = backend, name
        self._seed, self._reseed_after = seed, reseed_after
        self.num_envs = n = backend.num_envs
        self.observation_space = backend.observation_space
        self.action_space = backend.action_space
        self.restarts = self.steps = 0
        self._floats = np.issubdtype(self.observation_space.dtype, np.floating)
        self._all = np.arange(n)
        self._episode = np.full(n, -1)
        self._seeded = np.full(n, -1)  # the episode of the last seed
        self._row = (n, *(self.action_space.shape or ()))  # shape of the actions of a step
        self._since = np.zeros(n, int)  # steps since the last seed
        self._log = [bytearray() for _ in range(n)]  # actions since the last seed
        self._failed = np.zeros(n, int)
        self._returns = np.zeros(n)
        self._lengths = np.zeros(n, int)
        self._ended: deque[tuple[float, int]] = deque(maxlen=100)

    def reset(self) -> np.ndarray:
        """Start a new episode in every environment. Return the observations."""
        self._seeded[:] = -1
        self.observations = self._begin(self._all)
        return self.observations

    def step(self, actions: np.ndarray) -> Step:
        """Step every environment. If an episode ends, start the next one.

        Args:
            actions: Actions, one row per environment.

        Raises:
            ConfigError: The actions have a wrong shape.
            EnvError: A reward or observation is not finite, or an environment fails repeatedly.
        """
        actions = np.asarray(actions, self.action_space.dtype)
        if actions.shape != self._row:
            raise ConfigError(
                f"Actions for {self._name} must have the shape {self._row}, got {actions.shape}."
            )
        done = self._step(actions, self._all)
        self.steps += self.num_envs
        for i in np.flatnonzero(done.terminated | done.truncated):
            self._ended.append((float(done.returns[i]), int(done.lengths[i])))
        return done

    def statistics(self) -> dict[str, float]:
        """Return numbers of steps and failures, and the mean results of the last 100 episodes."""
        numbers = {"env_steps": float(self.steps), "env_restarts": float(self.restarts)}
        if self._ended:
            mean = np.mean(self._ended, axis=0)
            numbers |= {"episode/return": float(mean[0]), "episode/length": float(mean[1])}
        return numbers

    def state(self) -> dict[str, Any]:
        """Return the state for `restore`: episode numbers, and actions since the last seed."""
        return {
            "steps": self.steps,
            "ended": list(self._ended),
            "seed": self._seed,
            "restarts": self.restarts,
            "episode": self._episode.copy(),
            "seeded": self._seeded.copy(),
            "actions": [bytes(log) for log in self._log],
            "observed": [_digest(row) for row in self.observations],
        }

    def restore(self, state: dict[str, Any]) -> np.ndarray:
        """Restore a state by replaying its actions. Return the observations.

        If an environment does not reach its saved observation, it starts a new episode, and a
        warning is logged.

        Args:
            state: Result of `state`.

        Raises:
            StateError: The state has another number of environments.
        """
        row = self._row[1:]
        dtype = self.action_space.dtype
        actions = [np.frombuffer(log, dtype).reshape(-1, *row) for log in state["actions"]]
        if len(actions) != self.num_envs:
            raise StateError(
                f"The number of environments must be {len(actions)}, as in the saved state, got "
                f"{self.num_envs}.",
                fix="resume with the same number of environments",
            )
        self._seed = state["seed"]
        lengths = np.array([len(rows) for rows in actions])
        longest = int(lengths.max())
        self._episode = np.array(state["seeded"]) - 1
        self._seeded[:] = -1
        shape = (self.num_envs, *(self.observation_space.shape or ()))
        self.observations = np.zeros(shape, self.observation_space.dtype)
        step = np.zeros(self._row, self.action_space.dtype)
        # Environments with fewer actions start later, so that all finish at the same time.
        for time in range(longest + 1):
            begins = np.flatnonzero(lengths == longest - time)
            if begins.size:
                self.observations[begins] = self._begin(begins)
            if time < longest:
                runs = np.flatnonzero(lengths >= longest - time)
                for i in runs:
                    step[i] = actions[i][time - longest + lengths[i]]
                self._step(step, runs)
        lost = [
            i
            for i, row in enumerate(self.observations)
            if self._episode[i] != state["episode"][i] or _digest(row) != state["observed"][i]
        ]
        if lost:
            _log.warning(
                "%s: replaying the actions of environments %s did not lead to the saved "
                "observations, because they are not deterministic or have changed. They start new "
                "episodes.", self._name, lost,
            )  # fmt: skip
            index = np.array(lost)
            self._episode[index] = np.array(state["episode"])[index]
            self._seeded[index] = -1
            self.observations[index] = self._begin(index)
        self.restarts, self.steps = state["restarts"], state["steps"]
        self._ended = deque(state["ended"], maxlen=100)
        return self.observations

    def close(self) -> None:
        self._backend.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _step(self, actions: np.ndarray, index: np.ndarray) -> Step:
        result = self._backend.step(actions, index)
        for i, action in zip(index.tolist(), actions[index], strict=True):
            self._log[i] += action.tobytes()
        self._since[index] += 1
        if result.failures:
            self._cut_off(result)
        self._check(result, index)
        observations, rewards, terminated, truncated, _ = result
        self._returns[index] += rewards[index]
        self._lengths[index] += 1
        returns, lengths = self._returns.copy(), self._lengths.copy()
        final = observations
        ended = index[(terminated | truncated)[index]]
        if ended.size:
            self._failed[[i for i in ended if i not in result.failures]] = 0
            observations = observations.copy()
            observations[ended] = self._begin(ended)
        if index is self._all:
            self.observations = observations
        else:
            self.observations[index] = observations[index]
        return Step(observations, rewards, terminated, truncated, final, returns, lengths)

    def _begin(self, index: np.ndarray) -> np.ndarray:
        self._episode[index] += 1
        self._returns[index] = 0.0
        self._lengths[index] = 0
        anew = (self._seeded[index] < 0) | (self._since[index] >= self._reseed_after)
        seeds = [self._seed_of(i) if seed else None for i, seed in zip(index, anew, strict=True)]
        fresh = index[anew]
        self._seeded[fresh] = self._episode[fresh]
        self._since[fresh] = 0
        for i in fresh.tolist():
            self._log[i] = bytearray()
        observations, failures = self._backend.reset(index, seeds)
        if failures:
            self._report(failures)
            again = np.array(sorted(failures))
            self._seeded[again] = -1
            observations[np.isin(index, again)] = self._begin(again)
        return observations

    def _seed_of(self, i: int) -> int:
        # Emulators accept seeds of 31 bits.
        return derive_seed(self._seed, "environment", int(i), int(self._episode[i])) >> 32

    def _cut_off(self, result: Transitions) -> None:
        self._report(result.failures)
        for i in result.failures:
            result.observations[i] = self.observations[i]
            result.rewards[i] = 0.0
            result.terminated[i], result.truncated[i] = False, True
            self._seeded[i] = -1

    def _report(self, failures: dict[int, str]) -> None:
        for i, cause in failures.items():
            self.restarts += 1
            self._failed[i] = 1 + (self._failed[i] if self._lengths[i] < _LONG else 0)
            if self._failed[i] > _MAX_RESTARTS:
                raise EnvError(
                    f"Environment {i} of {self._name} failed {self._failed[i]} times in a row.",
                    fix="correct the error in the environment that is shown below",
                    details=cause,
                )
            _log.warning(
                "Environment %d of %s failed in episode %d at step %d and is restarted: %s",
                i, self._name, self._episode[i], self._lengths[i], cause,
            )  # fmt: skip

    def _check(self, result: Transitions, index: np.ndarray) -> None:
        floats = [("a reward", result.rewards), ("an observation", result.observations)]
        for name, rows in floats[: 1 + self._floats]:
            if not np.isfinite(rows).all():
                for i in index[~np.isfinite(rows[index].reshape(len(index), -1)).all(axis=1)]:
                    raise EnvError(
                        f"Environment {i} of {self._name} must return finite numbers, but {name} "
                        "is NaN or infinite.",
                        got=f"{rows[i]} in episode {self._episode[i]} at step {self._lengths[i]}",
                        fix="correct the environment, or end the episode at this step in a wrapper",
                    )


def make_envs(
    env: str | MakeEnv | Atari,
    num_envs: int,
    *,
    seed: int,
    backend: Literal["auto", "native", "serial", "process"] = "auto",
    timeout: float = math.inf,
    reseed_after: int | None = None,
    **options: Any,
) -> VectorEnv:
    """Create environments that are stepped together.

        observations = make_envs("CartPole-v1", 8, seed=0).reset()

    Args:
        env: A Gymnasium id, a function that creates one environment, or `Atari('Pong')`. Ids of
            ale-py give the same environments as `Atari`.
        num_envs: Number of environments.
        seed: The run's seed.
        backend: 'native' is a vector environment, for CartPole and Atari. 'serial' steps one
            environment after the other in this process. 'process' uses one subprocess each, and
            recovers if an environment hangs or crashes. 'auto' is 'process' with a `timeout`, else
            the faster one of 'native' and 'serial'.
        timeout: Seconds allowed for a step or reset of an environment.
        reseed_after: See `VectorEnv`. The default is 0, and 10,000 for Atari.
        **options: Arguments of `gymnasium.make`, or of `Atari`.

    Raises:
        ConfigError: The id is unknown, observations are not arrays, or the environment does not
            support the backend.
        EnvError: An environment cannot be created.
    """
    if num_envs < 1:
        raise ConfigError(f"num_envs must be at least 1, got {num_envs}.")
    name = _name_of(env)
    make, native = _resolve(env, options)
    limited = math.isfinite(timeout)
    if backend == "auto":
        single = native is None or limited or num_envs <= _FEW
        backend = ("process" if limited else "serial") if make and single else "native"
    try:
        if backend in ("serial", "process") and make:
            processes = backend == "process"
            envs: Backend = SingleEnvs(make, num_envs, processes=processes, timeout=timeout)
        elif backend == "native" and native and not limited:
            envs = native(num_envs)
        else:
            kinds = "'serial' or 'process'" if make else "'native', without a timeout"
            raise ConfigError(
                f"The backend of {name} must be {kinds}, got {backend=} and {timeout=}.",
                fix="pass a function that creates one game: gymnasium.wrappers.AtariPreprocessing"
                if make is None
                else "pass backend='auto'",
            )
    except EnvFailure as failure:
        raise EnvError(
            f"The environment {name} cannot be created.", details=str(failure)
        ) from failure
    space = envs.observation_space
    if not isinstance(space, (Box, Discrete, MultiBinary, MultiDiscrete)):
        envs.close()
        raise ConfigError(
            f"The observation space of {name} must be Box, Discrete, MultiBinary or MultiDiscrete, "
            f"got {space}.",
            fix="pass a function that wraps the environment in FlattenObservation of "
            "gymnasium.wrappers",
        )
    if reseed_after is None:
        reseed_after = Atari.reseed_after if make is None else 0
    return VectorEnv(envs, name=name, seed=seed, reseed_after=reseed_after)


def _resolve(
    env: str | MakeEnv | Atari, options: dict[str, Any]
) -> tuple[MakeEnv | None, Callable[[int], Backend] | None]:
    """Return functions that create one environment and a vector environment. Either may be None."""
    if not isinstance(env, str):
        if options:
            raise ConfigError(
                f"Options such as {sorted(options)} need the id of a Gymnasium environment.",
                fix="pass them to Atari(…), or to the function that creates the environment",
            )
        return (None, lambda n: AtariGames(env.make(n))) if isinstance(env, Atari) else (env, None)
    try:
        if env.startswith("ALE/"):
            importlib.import_module("ale_py")  # registers its environments
        spec = gym.spec(env)
    except (gym.error.Error, ImportError) as error:
        text = f"Gymnasium has no environment {env!r}: {error}"
        raise ConfigError(text, fix="list the ids with gymnasium.pprint_registry()") from error
    if env.startswith("ALE/"):
        return _resolve(Atari(env, **options), {})

    def make() -> gym.Env[Any, Any]:
        return gym.make(env, disable_env_checker=True, **options)

    def make_all(n: int) -> Backend:
        envs = gym.make_vec(env, n, vectorization_mode="vector_entry_point", **options)
        return CartPoles(envs)

    return make, make_all if spec.vector_entry_point == CARTPOLES else None


def _name_of(env: Any) -> str:
    if isinstance(env, functools.partial):
        return _name_of(env.func)
    name = env if isinstance(env, str) else getattr(env, "name", getattr(env, "__qualname__", None))
    return str(name or type(env).__name__)


def _digest(row: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(row).tobytes())
