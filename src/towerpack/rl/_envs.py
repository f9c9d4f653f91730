"""Environments stepped together: restarted when they fail, saved and restored exactly."""

from __future__ import annotations

import importlib
import math
import zlib
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any, Literal, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

from towerpack._core.errors import ConfigError, EnvError, StateError
from towerpack._core.logs import get_logger
from towerpack._core.randomness import derive_seed
from towerpack.rl._backends import NATIVE, Backend, EnvFailure, MakeEnv, Moves, Single
from towerpack.rl._wrappers import Atari

_log = get_logger(__name__)

_FEW = 4
"""Up to so many environments, one after the other is faster than a vector environment's call."""
_LONG = 1000


class Step(NamedTuple):
    """One step of all environments. Rows are environments.

    Attributes:
        observations: What to act on next: where an episode ended, the first one of the next.
        rewards: float32.
        terminated: The episode ended in a state from which nothing follows.
        truncated: It was cut off; what would have followed is to be estimated from `final`.
        final: What the actions led to: as `observations`, but for the last ones of episodes that
            ended. The same array if none ended.
        returns: The sum of rewards of the episode so far, this step included; float64.
        lengths: Its steps so far.
    """

    observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    final: np.ndarray
    returns: np.ndarray
    lengths: np.ndarray


class VectorEnv:
    """Environments of one kind that are stepped together; see `make_envs`.

    An episode is begun with a seed that is a function of the run's seed, the environment and the
    number of the episode. So its state is small: those numbers and the actions since, which
    `restore` plays again.

    An environment that raises, dies or hangs is made anew. Its episode counts as truncated, with no
    reward, in the last observation that there was; `restarts` counts and a warning tells the cause.

    Attributes:
        num_envs: How many.
        observation_space: Of one environment.
        action_space: Of one environment.
        observations: The last ones.
        restarts: Environments that failed so far.

    Args:
        backend: Steps the environments.
        name: For messages.
        seed: The run's seed.
        reseed_after: Steps since its last seed, from which on the next episode of an environment is
            given a seed again. More than 0 where that takes long, as for Atari; what has been
            played since is then played again by `restore`.
        max_restarts: So many failures of one environment are allowed with no whole episode, and no
            1,000 steps, between them.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        name: str,
        seed: int,
        reseed_after: int = 0,
        max_restarts: int = 3,
    ) -> None:
        self._backend = backend
        self._name = name
        self._seed = seed
        self._reseed_after = reseed_after
        self._max_restarts = max_restarts
        self.num_envs = n = backend.num_envs
        self.observation_space = backend.observation_space
        self.action_space = backend.action_space
        self.restarts = 0
        self._floats = np.issubdtype(self.observation_space.dtype, np.floating)
        self._logged: Any = self.action_space.dtype
        if isinstance(self.action_space, Discrete):
            first = int(self.action_space.start)
            ends = first, first + int(self.action_space.n) - 1
            self._logged = np.result_type(*map(np.min_scalar_type, ends))
        self._all = np.arange(n)
        self._episode = np.full(n, -1)
        self._seeded = np.full(n, -1)  # the episode of the last seed
        self._since = np.zeros(n, int)  # rows of the log before that
        # As an array: a snapshot of it is taken in every phase of a training.
        self._history = np.zeros((64, n, *(self.action_space.shape or ())), self._logged)
        self._played = 0  # rows of it
        self._failed = np.zeros(n, int)
        self._returns = np.zeros(n)
        self._lengths = np.zeros(n, int)

    def reset(self) -> np.ndarray:
        """Begin new episodes everywhere; gives their observations."""
        self._seeded[:] = -1
        self.observations = self._begin(self._all)
        return self.observations

    def step(self, actions: np.ndarray) -> Step:
        """Take one step in every environment; where an episode ends, the next one is begun.

        Args:
            actions: A row for each environment.

        Raises:
            EnvError: A number that is not finite; or an environment that only fails.
        """
        actions = np.asarray(actions, self.action_space.dtype)
        if actions.shape != (self.num_envs, *(self.action_space.shape or ())):
            raise ConfigError(
                f"The actions for {self._name} have the wrong shape.",
                got=str(actions.shape),
                expected=f"{(self.num_envs, *(self.action_space.shape or ()))}",
            )
        return self._step(actions, self._all)

    def state(self) -> dict[str, Any]:
        """Where every environment stands: numbers, and the actions that lead there."""
        actions = [self._history[s : self._played, i].copy() for i, s in enumerate(self._since)]
        return {
            "seed": self._seed,
            "restarts": self.restarts,
            "episode": self._episode.copy(),
            "seeded": self._seeded.copy(),
            "actions": actions,
            "observed": [_digest(row) for row in self.observations],
        }

    def restore(self, state: dict[str, Any]) -> np.ndarray:
        """Play again what led to a state; gives the observations there.

        An environment that does not come to the same observation goes on with a new episode, and a
        warning says so.

        Raises:
            StateError: The state is of another number of environments.
        """
        actions = state["actions"]
        if len(actions) != self.num_envs:
            raise StateError(
                f"A state of {len(actions)} environments does not fit {self.num_envs}.",
                fix="resume with the number of environments that the run was begun with",
            )
        self._seed = state["seed"]
        lengths = np.array([len(own) for own in actions])
        longest = int(lengths.max())
        self._episode = np.array(state["seeded"]) - 1
        self._seeded[:] = -1
        self._played = 0
        shape = (self.num_envs, *(self.observation_space.shape or ()))
        self.observations = np.zeros(shape, self.observation_space.dtype)
        step = np.zeros((self.num_envs, *(self.action_space.shape or ())), self.action_space.dtype)
        # The shorter ones begin later, so that all arrive at the same time.
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
                "%s: played again, environments %s do not come to where they were: they are not "
                "deterministic, or have changed. They go on with new episodes.",
                self._name,
                lost,
            )
            index = np.array(lost)
            self._episode[index] = np.array(state["episode"])[index]
            self._seeded[index] = -1
            self.observations[index] = self._begin(index)
        self.restarts = state["restarts"]
        return self.observations

    def close(self) -> None:
        """End the environments and their processes."""
        self._backend.close()

    def __enter__(self) -> VectorEnv:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _step(self, actions: np.ndarray, index: np.ndarray) -> Step:
        moves = self._backend.step(actions, index)
        if self._played == len(self._history):
            self._history = np.concatenate([self._history, np.zeros_like(self._history)])
        self._history[self._played] = actions
        self._played += 1
        if moves.failures:
            self._cut_off(moves)
        self._check(moves, index)
        observations, rewards, terminated, truncated, _ = moves
        self._returns[index] += rewards[index]
        self._lengths[index] += 1
        returns, lengths = self._returns.copy(), self._lengths.copy()
        final = observations
        ended = index[(terminated | truncated)[index]]
        if ended.size:
            self._failed[[i for i in ended if i not in moves.failures]] = 0
            observations = observations.copy()
            observations[ended] = self._begin(ended)
        if index is self._all:
            self.observations = observations
        else:
            self.observations[index] = observations[index]
        return Step(observations, rewards, terminated, truncated, final, returns, lengths)

    def _begin(self, index: np.ndarray) -> np.ndarray:
        """Begin an episode in some environments; gives their observations."""
        now = self._played
        self._episode[index] += 1
        self._returns[index] = 0.0
        self._lengths[index] = 0
        anew = (self._seeded[index] < 0) | (now - self._since[index] >= self._reseed_after)
        seeds = [self._seed_of(i) if seed else None for i, seed in zip(index, anew, strict=True)]
        fresh = index[anew]
        self._seeded[fresh] = self._episode[fresh]
        self._since[fresh] = now
        unused = int(self._since.min())
        if unused > now // 2:  # More seldom than that would be room, more often time.
            self._history[: now - unused] = self._history[unused:now]
            self._played -= unused
            self._since -= unused
        observations, failures = self._backend.reset(index, seeds)
        if failures:
            self._report(failures)
            again = np.array(sorted(failures))
            self._seeded[again] = -1
            observations[np.isin(index, again)] = self._begin(again)
        return observations

    def _seed_of(self, i: int) -> int:
        # 31 bits: what emulators take.
        return derive_seed(self._seed, "environment", int(i), int(self._episode[i])) >> 32

    def _cut_off(self, moves: Moves) -> None:
        self._report(moves.failures)
        for i in moves.failures:
            moves.observations[i] = self.observations[i]
            moves.rewards[i] = 0.0
            moves.terminated[i], moves.truncated[i] = False, True
            self._seeded[i] = -1

    def _report(self, failures: dict[int, str]) -> None:
        for i, cause in failures.items():
            self.restarts += 1
            self._failed[i] = 1 + (self._failed[i] if self._lengths[i] < _LONG else 0)
            if self._failed[i] > self._max_restarts:
                raise EnvError(
                    f"Environment {i} of {self._name} failed {self._failed[i]} times in a row.",
                    fix="see the cause below; max_restarts= allows more",
                    details=cause,
                )
            _log.warning(
                "Environment %d of %s failed in episode %d at step %d and is started anew: %s",
                i,
                self._name,
                self._episode[i],
                self._lengths[i],
                cause,
            )

    def _check(self, moves: Moves, index: np.ndarray) -> None:
        for what, rows in (("reward", moves.rewards), ("observation", moves.observations)):
            if (what == "reward" or self._floats) and not np.isfinite(rows).all():
                for i in index[~np.isfinite(rows[index].reshape(len(index), -1)).all(axis=1)]:
                    raise EnvError(
                        f"Environment {i} of {self._name} gave a {what} that is not finite.",
                        got=f"{rows[i]} in episode {self._episode[i]} at step {self._lengths[i]}",
                        expected="finite numbers",
                        fix="correct the environment, or wrap it to end the episode there",
                    )


def make_envs(
    env: str | MakeEnv,
    num_envs: int,
    *,
    seed: int,
    backend: Literal["auto", "native", "serial", "process"] = "auto",
    wrappers: Sequence[Callable[[gym.Env[Any, Any]], gym.Env[Any, Any]]] = (),
    timeout: float = math.inf,
    reseed_after: int | None = None,
    max_restarts: int = 3,
    **options: Any,
) -> VectorEnv:
    """Environments that are stepped together.

    Args:
        env: Gymnasium's id, or a function that makes one environment, such as `Atari('Pong')`. An
            id of ale-py means `Atari(id)`: frames of 84×84 in stacks of 4.
        num_envs: How many.
        seed: The run's seed.
        backend: 'native' is a vector environment made for this id (CartPole and all of Atari have
            one); 'serial' steps one after the other in this process; 'process' has a process for
            each, which alone notices hanging and survives a crash of the interpreter. 'auto' takes
            a native one where there is one that is faster, else 'serial'; with a `timeout`,
            'process'.
        wrappers: Applied to each environment, in this order; none with a native one.
        timeout: Seconds that an environment may take for one step or reset.
        reseed_after: See `VectorEnv`; by default 0, and 10,000 for Atari.
        max_restarts: Failures of one environment in a row that are an error.
        **options: For `gymnasium.make`, or `Atari`.

    Raises:
        ConfigError: An unknown id, a space that is no array, or a backend that the environment does
            not have.
        EnvError: The first environment cannot be made.
    """
    if num_envs < 1:
        raise ConfigError("There must be at least one environment.", got=f"num_envs={num_envs}")
    if backend not in ("auto", "native", "serial", "process"):
        raise ConfigError(
            f"There is no backend {backend!r}.",
            expected="'auto', 'native', 'serial' or 'process'",
        )
    name = env if isinstance(env, str) else getattr(env, "name", type(env).__name__)
    make, native = _resolve(env, options)
    if backend == "auto":
        if math.isfinite(timeout):
            backend = "process"
        elif native is None or wrappers or (num_envs <= _FEW and not hasattr(make, "native")):
            backend = "serial"
        else:
            backend = "native"
    if backend == "native":
        if native is None or wrappers:
            raise ConfigError(
                f"{name} has no vector environment whose episodes can be begun one by one"
                + (" and that takes wrappers." if wrappers else "."),
                fix="backend='serial' or 'process'",
            )
        made: Backend = native(num_envs)
    else:
        try:
            made = Single(
                _wrapped(make, wrappers), num_envs, processes=backend == "process", timeout=timeout
            )
        except EnvFailure as failure:
            raise EnvError(f"{name} cannot be made.", details=str(failure)) from failure
    space = made.observation_space
    if not isinstance(space, (Box, Discrete, MultiBinary, MultiDiscrete)):
        made.close()
        raise ConfigError(
            f"{name} has observations that are no arrays.",
            got=str(space),
            expected="Box, Discrete, MultiBinary or MultiDiscrete",
            fix="wrappers=[gymnasium.wrappers.FlattenObservation]",
        )
    own = getattr(make, "reseed_after", 0)
    return VectorEnv(
        made,
        name=str(name),
        seed=seed,
        reseed_after=own if reseed_after is None else reseed_after,
        max_restarts=max_restarts,
    )


def _resolve(
    env: str | MakeEnv, options: dict[str, Any]
) -> tuple[MakeEnv, Callable[[int], Backend] | None]:
    """How to make one, and how to make a native vector environment if there is one."""
    if callable(env):
        if options:
            raise ConfigError(
                f"{sorted(options)} go to gymnasium.make, which is not called for a function.",
                fix="give them to the function that makes the environment",
            )
        own: Any = getattr(env, "native", None)
        return env, None if own is None else lambda n: _native(own(n))
    try:
        if env.startswith("ALE/"):
            importlib.import_module("ale_py")  # registers its environments
        spec = gym.spec(env)
        if env.startswith("ALE/"):
            return _resolve(Atari(env, **options), {})
    except (gym.error.Error, ImportError) as error:
        raise ConfigError(
            f"There is no environment {env!r}: {error}", fix="see gymnasium.pprint_registry()"
        ) from error

    def make() -> gym.Env[Any, Any]:
        return gym.make(env, disable_env_checker=True, **options)

    def make_all(n: int) -> Backend:
        return _native(gym.make_vec(env, n, vectorization_mode="vector_entry_point", **options))

    return make, make_all if spec.vector_entry_point in NATIVE else None


def _wrapped(make: MakeEnv, wrappers: Sequence[Callable[[Any], Any]]) -> MakeEnv:
    return (lambda: reduce(lambda env, wrap: wrap(env), wrappers, make())) if wrappers else make


def _native(env: Any) -> Backend:
    kind = type(env.unwrapped)
    return NATIVE[f"{kind.__module__}:{kind.__qualname__}"](env)


def _digest(row: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(row).tobytes())
