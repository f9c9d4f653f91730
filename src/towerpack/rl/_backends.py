"""Backends that step environments: in this process, in subprocesses, or as vector environments."""

from __future__ import annotations

import math
import os
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
from towerpack._core.worker_gpus import hidden_gpus
from towerpack.rl._env_worker import EnvCommands

MakeEnv = Callable[[], gym.Env[Any, Any]]
CARTPOLES = "gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv"
_START_S = 60.0
"""Seconds allowed for a process to start, in addition to `timeout`."""


class Transitions(NamedTuple):
    """Results of one step, with a row per environment, and error messages by environment index."""

    observations: np.ndarray
    rewards: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    failures: dict[int, str]


class Backend(Protocol):
    """Environments that are reset individually and stepped together."""

    num_envs: int
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]

    def reset(self, index: np.ndarray, seeds: Sequence[int | None]) -> tuple[Any, dict[int, str]]:
        """Start an episode in the environments `index`. With seed None, keep the random state.

        Return the first observations, and error messages by environment. Observations of failed
        environments are undefined.
        """
        ...

    def step(self, actions: np.ndarray, index: np.ndarray) -> Transitions:
        """Step at least the environments `index`. Other rows of the results are undefined."""
        ...

    def close(self) -> None: ...


class EnvFailure(Exception):  # noqa: N818 - becomes a warning or an EnvError
    """Error if an environment raises an exception, dies or hangs. Its text is the cause."""


class LocalEnv(EnvCommands):
    def __init__(self, make: MakeEnv) -> None:
        self._make = make

    def ask(self, name: str, argument: Any = None) -> None:
        self._asked = name, self._make if name == "make" else argument

    def answer(self, deadline: float) -> Any:
        try:
            return self.do(*self._asked)
        except Exception as error:
            raise EnvFailure(traceback.format_exc().rstrip()) from error

    def end(self) -> None:
        env, self.env = self.env, None
        if env is not None:
            env.close()


class ProcessEnv:
    def __init__(self, make: MakeEnv) -> None:
        self._code = cloudpickle.dumps(make)
        self._process: Any = None
        self._connection: Any = None

    def ask(self, name: str, argument: Any = None) -> None:
        if name == "make":
            self._start()
            argument = self._code
        try:
            self._connection.send((name, argument))
        except OSError:
            return  # the process died: `answer` reports the error

    def answer(self, deadline: float) -> Any:
        left = deadline - time.monotonic()
        try:
            if not self._connection.poll(None if left == math.inf else max(0.0, left)):
                raise EnvFailure("it did not answer in time")
            good, answer = self._connection.recv()
        except (EOFError, OSError) as error:
            code = self._process.wait()  # no other process has this end of the socket
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
                env={**os.environ, **hidden_gpus()},
            )
        self._connection = Connection(ours.detach())


class SingleEnvs:
    """Single environments in this process, or in a subprocess each, which enforces `timeout`."""

    def __init__(self, make: MakeEnv, num_envs: int, *, processes: bool, timeout: float) -> None:
        self.num_envs = num_envs
        self._timeout = timeout
        self._start_s = _START_S if processes else 0.0
        self._envs = [(ProcessEnv if processes else LocalEnv)(make) for _ in range(num_envs)]
        self._lost: set[int] = set()
        spaces, failures = self._ask(range(num_envs), "make", [None] * num_envs, self._start_s)
        if failures:
            self.close()
            raise EnvFailure(next(iter(failures.values())))
        self.observation_space, self.action_space = spaces[0]
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

    def step(self, actions: np.ndarray, index: np.ndarray) -> Transitions:
        rows = np.zeros((self.num_envs, *self._shape), self.observation_space.dtype)
        rewards = np.zeros(self.num_envs, np.float32)
        terminated, truncated = np.zeros((2, self.num_envs), bool)
        # Convert to Python integers: spaces check them much faster than NumPy integers.
        plain = actions.ndim == 1 and actions.dtype.kind in "iu"
        arguments = actions[index].tolist() if plain else actions[index]
        answers, failures = self._ask(index, "step", arguments)
        for i, answer in answers.items():
            observation, rewards[i], terminated[i], truncated[i] = answer
            rows[i] = self._checked(i, observation)
        return Transitions(rows, rewards, terminated, truncated, failures)

    def _checked(self, i: int, observation: Any) -> Any:
        if np.shape(observation) != self._shape:  # NumPy would broadcast a smaller shape
            raise EnvError(
                f"The observation of environment {i} must have the shape {self._shape} of the "
                f"observation space, got {np.shape(observation)}.",
                fix="correct the environment's observation_space or its observations",
            )
        return observation

    def close(self) -> None:
        for env in self._envs:
            env.end()

    def _ask(
        self, index: Any, name: str, arguments: Any, more_s: float = 0.0
    ) -> tuple[dict[int, Any], dict[int, str]]:
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


class NativeEnvs:
    def __init__(self, env: Any) -> None:
        self._env = env
        self.num_envs = env.num_envs
        self.observation_space = env.single_observation_space
        self.action_space = env.single_action_space
        self._last, _ = env.reset(seed=0)

    def close(self) -> None:
        self._env.close()


class CartPoles(NativeEnvs):
    """Backend for `CartPoleVectorEnv`, with the same initial states as `CartPole-v1`."""

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

    def step(self, actions: np.ndarray, index: np.ndarray) -> Transitions:
        observations, rewards, terminated, truncated, _ = self._env.step(actions)
        self._env.unwrapped.prev_done[:] = False  # otherwise the next step would reset
        return Transitions(observations, rewards, terminated, truncated, {})


class AtariGames(NativeEnvs):
    def __init__(self, env: Any) -> None:
        super().__init__(env)
        options = env.unwrapped.spec.kwargs
        self._by_lives, self.frames = options["life_loss_info"], options["stack_num"]
        self._goes_on = np.zeros(self.num_envs, bool)  # the game continues after a lost life

    def reset(self, index: np.ndarray, seeds: Sequence[int | None]) -> tuple[Any, dict[int, str]]:
        numbers = np.full(self.num_envs, -1)
        numbers[index] = [-1 if seed is None else seed for seed in seeds]
        mask = np.isin(np.arange(self.num_envs), index) & ~(self._goes_on & (numbers < 0))
        if mask.any():
            options = {"reset_mask": mask}
            self._last, _ = self._env.reset(seed=numbers[mask], options=options)
        return self._last[index], {}

    def step(self, actions: np.ndarray, index: np.ndarray) -> Transitions:
        self._last, rewards, terminated, truncated, info = self._env.step(actions)
        if self._by_lives:
            self._goes_on = terminated & ~truncated & (info["lives"] > 0)
        return Transitions(self._last, rewards.astype(np.float32), terminated, truncated, {})
