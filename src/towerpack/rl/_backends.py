"""What steps many environments at once: ready-made vector environments, this process, processes."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import cloudpickle
import gymnasium as gym
import numpy as np

from towerpack._core.errors import EnvError

MakeEnv = Callable[[], gym.Env[Any, Any]]
_START_S = 60.0
"""What a process may take to start, before the time for its environment counts."""


class Moves(NamedTuple):
    """What came of one step; `failures` tells what went wrong, by environment."""

    observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    failures: dict[int, str]


class Backend(Protocol):
    """Environments whose episodes are begun one by one, and that are stepped together."""

    num_envs: int
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]

    def reset(self, index: np.ndarray, seeds: Sequence[int | None]) -> tuple[Any, dict[int, str]]:
        """Begin an episode in some environments.

        Args:
            index: Which.
            seeds: For each of them; None goes on with its random state.

        Returns:
            Their first observations; what went wrong, by environment: its row means nothing.
        """
        ...

    def step(self, actions: np.ndarray, index: np.ndarray) -> Moves:
        """Step those of `index`, or all. Only rows of `index` without failures mean something."""
        ...

    def close(self) -> None: ...


class EnvFailure(Exception):  # noqa: N818 - becomes a warning or an EnvError
    """An environment that raised, died or did not answer. Its text is the cause."""


class Local:
    """An environment in this process."""

    def __init__(self, make: MakeEnv) -> None:
        self._make = make
        self._env: Any = None

    def ask(self, name: str, argument: Any = None) -> None:
        self._asked = name, argument

    def answer(self, deadline: float) -> Any:
        name, argument = self._asked
        try:
            if name == "step":
                observation, reward, terminated, truncated, _ = self._env.step(argument)
                return observation, reward, terminated, truncated
            if name == "reset":
                observation, _ = self._env.reset(seed=argument)
                return observation
            self._env = self._make()
            return self._env.observation_space, self._env.action_space
        except Exception as error:
            raise EnvFailure(traceback.format_exc().rstrip()) from error

    def end(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()


class Remote:
    """An environment in a process of its own, which can be ended whatever it does."""

    def __init__(self, make: MakeEnv) -> None:
        # By value: to import this package would load TensorFlow in each process.
        module = sys.modules["towerpack.rl._wrappers"]
        cloudpickle.register_pickle_by_value(module)
        try:
            self._code = cloudpickle.dumps(make)
        finally:
            cloudpickle.unregister_pickle_by_value(module)
        self._process: Any = None
        self._connection: Any = None

    def ask(self, name: str, argument: Any = None) -> None:
        if name == "make":
            self._start()
            argument = self._code
        try:
            self._connection.send((name, argument))
        except OSError:
            return  # it has died: `answer` says how

    def answer(self, deadline: float) -> Any:
        left = deadline - time.monotonic()
        try:
            if not self._connection.poll(None if left == math.inf else max(0.0, left)):
                raise EnvFailure("it did not answer in time")
            good, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            code = self._process.wait()  # it alone held the other end
            raise EnvFailure(f"its process died with exit code {code}") from error
        if not good:
            raise EnvFailure(answer.rstrip())
        return answer

    def end(self) -> None:
        if self._process is not None:
            self._connection.close()
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            worker = str(Path(__file__).with_name("_env_worker.py"))
            self._process = subprocess.Popen(
                [sys.executable, "-P", worker, str(theirs.fileno()), *sys.path],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._connection = Connection(ours.detach())


class Single:
    """Single environments, in this process or in processes of their own.

    Args:
        make: Makes one.
        num_envs: How many.
        processes: One process for each.
        timeout: Seconds that one may take for a step or reset; noticed in processes only.

    Raises:
        EnvFailure: One cannot be made.
    """

    def __init__(self, make: MakeEnv, num_envs: int, *, processes: bool, timeout: float) -> None:
        self.num_envs = num_envs
        self._timeout = timeout
        self._start_s = _START_S if processes else 0.0
        self._envs = [(Remote if processes else Local)(make) for _ in range(num_envs)]
        self._lost: set[int] = set()
        made, failures = self._ask(range(num_envs), "make", [None] * num_envs, self._start_s)
        if failures:
            self.close()
            raise EnvFailure(next(iter(failures.values())))
        self.observation_space, self.action_space = made[0]
        self._shape: tuple[int, ...] = self.observation_space.shape or ()

    def reset(self, index: np.ndarray, seeds: Sequence[int | None]) -> tuple[Any, dict[int, str]]:
        lost = [int(i) for i in index if i in self._lost]
        _, failures = self._ask(lost, "make", [None] * len(lost), self._start_s)
        good = [(int(i), seed) for i, seed in zip(index, seeds, strict=True) if i not in failures]
        answers, more = self._ask([i for i, _ in good], "reset", [seed for _, seed in good])
        rows = np.zeros((self.num_envs, *self._shape), self.observation_space.dtype)
        for i, observation in answers.items():
            rows[i] = self._checked(i, observation)
        return rows[index], failures | more

    def step(self, actions: np.ndarray, index: np.ndarray) -> Moves:
        n = self.num_envs
        rows = np.zeros((n, *self._shape), self.observation_space.dtype)
        rewards, terminated, truncated = (
            np.zeros(n, np.float32),
            np.zeros(n, bool),
            np.zeros(n, bool),
        )
        # Plain integers: spaces check those much faster than NumPy's.
        plain = actions.ndim == 1 and actions.dtype.kind in "iu"
        arguments = actions[index].tolist() if plain else actions[index]
        answers, failures = self._ask(index, "step", arguments)
        for i, answer in answers.items():
            observation, rewards[i], terminated[i], truncated[i] = answer
            rows[i] = self._checked(i, observation)
        return Moves(rows, rewards, terminated, truncated, failures)

    def _checked(self, i: int, observation: Any) -> Any:
        if np.shape(observation) != self._shape:  # NumPy would repeat a smaller one
            raise EnvError(
                f"Environment {i} gave an observation of another shape than its space.",
                got=f"{np.shape(observation)}",
                expected=f"{self._shape}",
                fix="correct the environment's observation_space, or what it returns",
            )
        return observation

    def close(self) -> None:
        for env in self._envs:
            env.end()

    def _ask(
        self, index: Any, name: str, arguments: Any, more_s: float = 0.0
    ) -> tuple[dict[int, Any], dict[int, str]]:
        """The answers of some environments, and what went wrong in others, which are ended."""
        answers: dict[int, Any] = {}
        failures: dict[int, str] = {}
        for i, argument in zip(index, arguments, strict=True):
            self._envs[i].ask(name, argument)
        deadline = time.monotonic() + self._timeout + more_s
        for i in map(int, index):
            try:
                answers[i] = self._envs[i].answer(deadline)
                self._lost.discard(i)
            except EnvFailure as failure:
                failures[i] = str(failure)
                self._envs[i].end()
                self._lost.add(i)
        return answers, failures


class Native:
    """A vector environment whose episodes are begun one by one."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.num_envs = env.num_envs
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        self._last, _ = env.reset(seed=0)

    def close(self) -> None:
        self._env.close()


class CartPoles(Native):
    """`CartPoleVectorEnv`, its states set as `CartPole-v1` begins."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._random: dict[int, np.random.Generator] = {}

    def reset(self, index: np.ndarray, seeds: Sequence[int | None]) -> tuple[Any, dict[int, str]]:
        env = self._env.unwrapped
        for i, seed in zip(index, seeds, strict=True):
            if seed is not None:
                self._random[i] = np.random.default_rng(seed)
            env.state[:, i] = self._random[i].uniform(env.low, env.high, 4)
        env.steps[index] = 0
        return env.state.T[index].astype(np.float32), {}

    def step(self, actions: np.ndarray, index: np.ndarray) -> Moves:
        observations, rewards, terminated, truncated, _ = self._env.step(actions)
        self._env.unwrapped.prev_done[:] = False  # or the next step would begin episodes
        return Moves(observations, rewards, terminated, truncated, {})


class Ataris(Native):
    """ale-py's `AtariVectorEnv`: emulators, and what is made of their frames, in C++ threads."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self._by_lives = env.unwrapped.spec.kwargs.get("life_loss_info", False)
        self._goes_on = np.zeros(self.num_envs, bool)  # a life was lost, and not the game

    def reset(self, index: np.ndarray, seeds: Sequence[int | None]) -> tuple[Any, dict[int, str]]:
        numbers = np.full(self.num_envs, -1)
        numbers[index] = [-1 if seed is None else seed for seed in seeds]
        mask = np.isin(np.arange(self.num_envs), index) & ~(self._goes_on & (numbers < 0))
        if mask.any():
            options = {"reset_mask": mask}
            self._last, _ = self._env.reset(seed=numbers[mask], options=options)
        return self._last[index], {}

    def step(self, actions: np.ndarray, index: np.ndarray) -> Moves:
        self._last, rewards, terminated, truncated, info = self._env.step(actions)
        if self._by_lives:
            self._goes_on = terminated & ~truncated & (info["lives"] > 0)
        return Moves(self._last, rewards.astype(np.float32), terminated, truncated, {})


NATIVE: dict[str, Callable[[Any], Backend]] = {
    "ale_py.vector_env:AtariVectorEnv": Ataris,
    "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv": CartPoles,
}
"""By entry point."""
