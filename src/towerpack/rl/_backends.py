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

MakeEnv = Callable[[], gym.Env[Any, Any]]


class Moves(NamedTuple):
    """What came of one step of some environments; see `Backend.step`."""

    observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    failures: dict[int, str]


class Backend(Protocol):
    """Environments that are reset one by one and stepped together."""

    num_envs: int
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]

    def reset(self, index: np.ndarray, seeds: Sequence[int | None]) -> tuple[Any, dict[int, str]]:
        """Begin an episode in some environments.

        Args:
            index: Which.
            seeds: For each of them; None goes on with its random state.

        Returns:
            Their first observations, and what went wrong, by environment: its observation is zero.
        """
        ...

    def step(self, actions: np.ndarray, index: np.ndarray) -> Moves:
        """Step the environments of `index`, or more than those: what others do means nothing.

        Returns:
            Rows for all environments, in memory of its own. Rows of failures mean nothing.
        """
        ...

    def close(self) -> None: ...


class EnvFailure(Exception):  # noqa: N818 - becomes a warning or an EnvError
    """An environment that raised, died or did not answer. Its text is the cause."""


class Local:
    """An environment in this process."""

    def __init__(self, make: MakeEnv) -> None:
        self._make = make
        self._env: gym.Env[Any, Any] | None = None
        self._asked: tuple[str, Any] = ("make", None)

    def ask(self, name: str, argument: Any = None) -> None:
        self._asked = (name, argument)

    def answer(self, deadline: float) -> Any:
        name, argument = self._asked
        try:
            if self._env is None:
                self._env = self._make()
            if name == "step":
                return self._env.step(argument)[:4]
            if name == "reset":
                return self._env.reset(seed=argument)[0]
            return self._env.observation_space, self._env.action_space
        except Exception as error:
            raise EnvFailure("".join(traceback.format_exception(error)).rstrip()) from error

    def end(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()


class Remote:
    """An environment in a process of its own, which can be ended whatever it does."""

    def __init__(self, make: MakeEnv) -> None:
        # By value: importing this package would load TensorFlow in each process.
        module = sys.modules.get("towerpack.rl._wrappers")
        if module is not None:
            cloudpickle.register_pickle_by_value(module)
        try:
            self._code = cloudpickle.dumps(make)
        finally:
            if module is not None:
                cloudpickle.unregister_pickle_by_value(module)
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    def ask(self, name: str, argument: Any = None) -> None:
        try:
            if self._connection is None:
                self._start()
            if name != "make":
                self._connected().send((name, argument))
        except OSError:  # it has died: `answer` says how
            return

    def answer(self, deadline: float) -> Any:
        connection = self._connected()
        left = deadline - time.monotonic()
        try:
            if not connection.poll(None if left == math.inf else max(0.0, left)):
                raise EnvFailure("it did not answer in time")
            good, answer = connection.recv()
        except (EOFError, OSError) as error:
            raise EnvFailure(f"its process died with exit code {self._exit_code()}") from error
        if not good:
            raise EnvFailure(answer.rstrip())
        return answer

    def end(self) -> None:
        process, connection = self._process, self._connection
        self._process = self._connection = None
        if connection is not None:
            connection.close()
        if process is not None:
            process.kill()
            process.wait()

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
        self._connection.send(("make", self._code))

    def _connected(self) -> Connection:
        if self._connection is None:
            raise EnvFailure("it has no process")
        return self._connection

    def _exit_code(self) -> int | None:
        if self._process is None:
            return None
        try:
            return self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            return None


class Single:
    """Single environments, in this process or in processes of their own.

    Args:
        make: Makes one.
        num_envs: How many.
        processes: One process for each.
        timeout: Seconds that one may take for a step or reset; noticed in processes only. Starting
            one may take a minute more.

    Raises:
        EnvFailure: The first one cannot be made.
    """

    def __init__(self, make: MakeEnv, num_envs: int, *, processes: bool, timeout: float) -> None:
        self.num_envs = num_envs
        self._timeout = timeout
        self._envs = [(Remote if processes else Local)(make) for _ in range(num_envs)]
        self._made = np.zeros(num_envs, bool)
        try:
            self._make(np.arange(num_envs))
            spaces = [env.answer(self._deadline(60.0)) for env in self._envs]
        except BaseException:
            self.close()
            raise
        self._made[:] = True
        self.observation_space, self.action_space = spaces[0]
        self._shape = self.observation_space.shape or ()
        self._dtype = self.observation_space.dtype

    def reset(self, index: np.ndarray, seeds: Sequence[int | None]) -> tuple[Any, dict[int, str]]:
        failures: dict[int, str] = {}
        fresh = [int(i) for i in index if not self._made[i]]
        self._make(np.array(fresh, int))
        for i in fresh:
            self._answer(i, failures, 60.0)
        self._made[fresh] = True
        ready = [i not in failures for i in index]
        observations = np.zeros((len(index), *self._shape), self._dtype)
        for i, seed, good in zip(index, seeds, ready, strict=True):
            if good:
                self._envs[i].ask("reset", seed)
        deadline = self._deadline()
        for row, (i, good) in enumerate(zip(index, ready, strict=True)):
            if good:
                answer = self._answer(int(i), failures, deadline=deadline)
                if answer is not None:
                    observations[row] = answer
        return observations, failures

    def step(self, actions: np.ndarray, index: np.ndarray) -> Moves:
        n = self.num_envs
        observations = np.zeros((n, *self._shape), self._dtype)
        moves = Moves(
            observations, np.zeros(n, np.float32), np.zeros(n, bool), np.zeros(n, bool), {}
        )
        for i in index:
            self._envs[i].ask("step", actions[i])
        deadline = self._deadline()
        for i in index:
            answer = self._answer(int(i), moves.failures, deadline=deadline)
            if answer is not None:
                observations[i], moves.rewards[i], moves.terminated[i], moves.truncated[i] = answer
        return moves

    def close(self) -> None:
        for env in self._envs:
            env.end()

    def _make(self, index: np.ndarray) -> None:
        for i in index:
            self._envs[i].ask("make")

    def _answer(
        self, i: int, failures: dict[int, str], more: float = 0.0, deadline: float | None = None
    ) -> Any:
        try:
            return self._envs[i].answer(self._deadline(more) if deadline is None else deadline)
        except EnvFailure as failure:
            failures[i] = str(failure)
            self._envs[i].end()  # the next reset makes it anew
            self._made[i] = False
            return None

    def _deadline(self, more: float = 0.0) -> float:
        return time.monotonic() + self._timeout + more


class CartPoles:
    """`CartPoleVectorEnv`, its episodes begun one by one, as those of `CartPole-v1`."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.num_envs = env.num_envs
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        self._random = [np.random.default_rng() for _ in range(self.num_envs)]
        env.reset()

    def reset(self, index: np.ndarray, seeds: Sequence[int | None]) -> tuple[Any, dict[int, str]]:
        env = self._env
        for i, seed in zip(index, seeds, strict=True):
            if seed is not None:
                self._random[i] = np.random.default_rng(seed)
            env.state[:, i] = self._random[i].uniform(env.low, env.high, 4)
        env.steps[index] = 0
        env.prev_done[index] = False
        return env.state.T[index].astype(np.float32), {}

    def step(self, actions: np.ndarray, index: np.ndarray) -> Moves:
        observations, rewards, terminated, truncated, _ = self._env.step(actions)
        self._env.prev_done[:] = False  # its own new episodes would begin with the next step
        return Moves(observations, rewards, terminated, truncated, {})

    def close(self) -> None:
        self._env.close()


class Ataris:
    """ale-py's `AtariVectorEnv`: emulators, frames and their preprocessing in C++ threads."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self.num_envs = env.num_envs
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        env.reset(seed=0)

    def reset(self, index: np.ndarray, seeds: Sequence[int | None]) -> tuple[Any, dict[int, str]]:
        mask = np.zeros(self.num_envs, bool)
        mask[index] = True
        numbers = np.full(self.num_envs, -1)
        numbers[index] = [-1 if seed is None else seed for seed in seeds]
        observations, _ = self._env.reset(seed=numbers[mask], options={"reset_mask": mask})
        return observations[index], {}

    def step(self, actions: np.ndarray, index: np.ndarray) -> Moves:
        observations, rewards, terminated, truncated, _ = self._env.step(actions)
        return Moves(observations, rewards.astype(np.float32), terminated, truncated, {})

    def close(self) -> None:
        self._env.close()


NATIVE: dict[str, Callable[[Any], Backend]] = {
    "ale_py.vector_env:AtariVectorEnv": Ataris,
    "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv": CartPoles,
}
"""Vector environments whose episodes can be begun one by one, by entry point."""
