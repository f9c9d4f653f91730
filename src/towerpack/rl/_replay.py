"""Transitions to learn from again, in files that a checkpoint only points into."""

from __future__ import annotations

import math
import shutil
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.lib.format import open_memmap

from towerpack._core.errors import ConfigError, StateError
from towerpack.rl._sum_tree import SumTree

_ACTED, _TERMINATED, _TRUNCATED = 1, 2, 4
"""Bits of a slot: an action was taken in it, and how its episode ended by that."""
_CHECKED = 16
_EPSILON = 1e-6


class Sample(NamedTuple):
    """Transitions drawn from a memory. Rows are transitions.

    Attributes:
        observations: What was acted on.
        actions: What was done.
        rewards: float32: the discounted sum over the n steps, or over those to the episode's end.
        discounts: float32: what the value of `next_observations` counts: discount^n, and 0 where
            the episode terminated.
        next_observations: What n steps led to, or the last observation of the episode.
        weights: float32: of importance, at most 1; all 1 without priorities.
        indices: For `update_priorities`.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    discounts: np.ndarray
    next_observations: np.ndarray
    weights: np.ndarray
    indices: np.ndarray


class ReplayMemory:
    """A ring of transitions for each environment, in memory-mapped files.

    An observation takes one slot; so does the last one of an episode, in which nothing was done.
    Of stacked frames only the newest is kept: stacks are put together when drawn, and those that
    an episode begins with take slots of their own. The newest `n_step` slots are not drawn yet.

    A checkpoint holds `state()`: counters, and priorities. What they count stays in the files, of
    which `slack` slots are more than `capacity`: so much may be written after a checkpoint that can
    be restored. The files outlive a killed process, but not a power failure.

    Args:
        path: Directory of the files. Those of a memory of the same form are used again: empty,
            unless `restore` follows.
        capacity: Slots that are drawn from, over all environments.
        num_envs: Environments that `append` is given transitions of.
        observation_space: Of one environment.
        action_space: Of one environment.
        frames: Frames of an observation: its first axis, oldest first. 1: keep them whole.
        n_step: Steps of a transition.
        discount: Of rewards, for each step.
        priority: The exponent of priorities, as 0.6 (Schaul et al. 2016). 0: all are equally
            likely.
        slack: By default a tenth of the capacity.

    Raises:
        ConfigError: Sizes that make no sense, files of another form, or a disk that is too small.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        capacity: int,
        num_envs: int,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        frames: int = 1,
        n_step: int = 1,
        discount: float = 0.99,
        priority: float = 0.0,
        slack: int | None = None,
    ) -> None:
        shape = observation_space.shape or ()
        least = num_envs * (frames + n_step + 1)
        if min(frames, n_step, num_envs) < 1 or capacity < least or not 0 <= discount <= 1:
            raise ConfigError(
                "A replay memory cannot be made so.",
                got=f"{capacity=}, {num_envs=}, {frames=}, {n_step=}, {discount=}",
                expected=f"counts of at least 1, a discount in [0, 1], a capacity of {least}",
            )
        if frames > 1 and shape[:1] != (frames,):
            raise ConfigError(
                f"Observations of shape {shape} are no stacks of {frames} frames.",
                expected="frames on the first axis, as Atari and FrameStackObservation give them",
                fix="frames=1 keeps observations whole",
            )
        self._window = -(-capacity // num_envs)
        self._spare = -(-(capacity // 10 if slack is None else slack) // num_envs)
        self._slots = self._window + self._spare
        self._frames, self._n_step, self._priority = frames, n_step, priority
        self._gains = np.float32(discount) ** np.arange(n_step + 1, dtype=np.float32)
        kept = shape[1:] if frames > 1 else shape
        rows = num_envs * self._slots
        self._path = Path(path)
        self._kept, self._actions, self._rewards, self._bits, self._written = self._open(
            frames=((rows, *kept), observation_space.dtype),
            actions=((rows, *(action_space.shape or ())), action_space.dtype),
            rewards=((rows,), np.float32),
            bits=((rows,), np.uint8),
            written=((num_envs,), np.int64),
        )
        self._base = np.arange(num_envs) * self._slots
        self._head = np.zeros(num_envs, np.int64)  # slots taken so far
        self._fresh = np.ones(num_envs, bool)  # an episode begins next
        self._began = False
        self._tree = SumTree(rows) if priority else None
        self._largest = 1.0

    def __len__(self) -> int:
        """Transitions that can be drawn."""
        places = [
            base + np.arange(low, high) % self._slots
            for base, low, high in zip(self._base, *self._range(), strict=True)
        ]
        return int(np.count_nonzero(self._bits[np.concatenate(places)] & _ACTED))

    def append(
        self,
        observations: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        final: np.ndarray,
    ) -> None:
        """Keep one step of all environments.

        Args:
            observations: What was acted on: those of the step before, or of `reset`.
            actions: What was done.
            rewards: As the following ones, of `Step`.
            terminated: See there.
            truncated: See there.
            final: Used where an episode ended.

        Raises:
            ConfigError: An observation that does not go on with the frames of the one before.
        """
        if not self._began:  # files of before hold nothing for this run
            self._written[:] = 0
            self._began = True
        old = self._range()
        if self._frames > 1:
            for e in np.flatnonzero(self._fresh):
                for frame in observations[e][:-1]:
                    self._put(e, frame)
            self._check_stack(observations)
        at = self._take(slice(None))
        self._kept[at] = observations[:, -1] if self._frames > 1 else observations
        self._actions[at] = actions
        self._rewards[at] = rewards
        self._bits[at] = _ACTED + _TERMINATED * terminated + _TRUNCATED * truncated
        self._fresh = terminated | truncated
        for e in np.flatnonzero(self._fresh):
            self._put(e, final[e][-1] if self._frames > 1 else final[e])
        if self._tree is not None:
            self._move_priorities(self._tree, *old)

    def sample(self, rng: np.random.Generator, batch: int, *, beta: float = 0.4) -> Sample:
        """Draw transitions, with replacement.

        Args:
            rng: Decides which.
            batch: How many.
            beta: How far weights make up for priorities: 1, altogether.

        Raises:
            StateError: There are none.
        """
        weights = np.ones(batch, np.float32)
        if self._tree is None:
            index = self._draw(rng, batch)
        else:
            if not self._tree.total:
                raise self._empty()
            # One of each of `batch` equal parts of the sum: Schaul et al. 2016, appendix B.2.1.
            index = self._tree.find((np.arange(batch) + rng.random(batch)) / batch)
            weights = self._tree.leaves[index] ** np.float32(-beta)
            weights /= weights.max()
        return self._gather(index, weights)

    def update_priorities(self, indices: np.ndarray, errors: np.ndarray) -> None:
        """Set priorities from temporal differences.

        Args:
            indices: Of a sample; those that can no longer be drawn are passed over.
            errors: Temporal differences, of either sign.
        """
        if self._tree is None:
            raise ConfigError("This replay memory has no priorities.", fix="priority=0.6")
        values = (np.abs(errors) + _EPSILON).astype(np.float32) ** np.float32(self._priority)
        current = self._tree.leaves[indices] > 0
        self._tree[indices[current]] = values[current]
        self._largest = max(self._largest, float(values.max(initial=0.0)))

    def state(self) -> dict[str, Any]:
        """Counters, and priorities."""
        return {
            "head": self._head.copy(),
            "fresh": self._fresh.copy(),
            "check": self._digest(self._head),
            "largest": self._largest,
            "priorities": None if self._tree is None else self._tree.leaves.copy(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to a state; what was written after it is forgotten.

        Raises:
            StateError: The files do not hold it (any more).
        """
        head = np.array(state["head"])
        leaves = None if self._tree is None else self._tree.leaves.shape
        if head.shape != self._head.shape or np.shape(state["priorities"]) != (leaves or ()):
            raise StateError(
                "This state is of a replay memory of another form.",
                got=f"{len(head)} environments, priorities of {np.shape(state['priorities'])}",
                expected=f"{len(self._head)} environments, priorities of {leaves or ()}",
            )
        beyond = int((self._written - head).max())
        if beyond > self._spare:
            raise StateError(
                "The replay memory has been written on since this state, over what it needs.",
                got=f"{beyond} more slots for one environment",
                expected=f"at most {self._spare}",
                fix="resume from a later checkpoint; save more often, or give a larger slack=",
            )
        if self._digest(head) != state["check"]:
            raise StateError(
                f"The files in {self._path} are not those that this state counts in.",
                fix="put back the files of the run, or train anew with resume='never'",
            )
        self._began = True
        self._head, self._fresh = head, np.array(state["fresh"])
        self._largest = state["largest"]
        if self._tree is not None:
            self._tree.fill(state["priorities"])

    def _open(self, **parts: tuple[tuple[int, ...], Any]) -> list[np.ndarray]:
        needed = sum(math.prod(shape) * np.dtype(dtype).itemsize for shape, dtype in parts.values())
        self._path.mkdir(parents=True, exist_ok=True)
        files = {name: self._path / f"{name}.npy" for name in parts}
        free = shutil.disk_usage(self._path).free
        # A full disk would kill the process at some later step. Files take room as they fill.
        if not all(file.exists() for file in files.values()) and needed > free:
            raise ConfigError(
                f"The disk of {self._path} is too small for this replay memory.",
                got=f"{free / 1e9:.2f} GB free",
                expected=f"{needed / 1e9:.2f} GB",
                fix="a smaller capacity=, or another directory",
            )
        opened: list[np.ndarray] = []
        for name, (shape, dtype) in parts.items():
            if files[name].exists():
                part = open_memmap(files[name], "r+")
                if part.shape != shape or part.dtype != dtype:
                    raise ConfigError(
                        f"{self._path} holds a replay memory of another form.",
                        got=f"{name} {part.dtype} {part.shape}",
                        expected=f"{np.dtype(dtype)} {shape}",
                        fix="another directory, or remove this one",
                    )
            else:
                part = open_memmap(files[name], "w+", dtype, shape)
            opened.append(np.asarray(part))
        return opened

    def _range(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each ring, the first place that can be drawn, and the end; counted from its start."""
        low = np.maximum(0, self._head - self._window) + (self._frames - 1)
        return low, np.maximum(low, self._head - self._n_step)

    def _take(self, envs: Any) -> np.ndarray:
        """The next slot of some rings."""
        at = self._base[envs] + self._head[envs] % self._slots
        self._head[envs] += 1
        # Before anything is written: a process may be killed in between.
        np.maximum(self._written, self._head, out=self._written)
        return at

    def _put(self, e: np.intp, frame: np.ndarray) -> None:
        """Keep a frame in which no action was taken."""
        at = self._take(e)
        self._kept[at] = frame
        self._actions[at] = self._rewards[at] = self._bits[at] = 0

    def _check_stack(self, observations: np.ndarray) -> None:
        """Compare one environment's stack with the frames that were kept; another one each time."""
        e = int(self._head[0]) % len(self._head)
        last = (self._head[e] - np.arange(self._frames - 1, 0, -1)) % self._slots
        if not np.array_equal(self._kept[self._base[e] + last], observations[e][:-1]):
            raise ConfigError(
                f"Frames of an observation of environment {e} are not those of the one before.",
                expected="each observation: the one before without its oldest frame, and a new one",
                fix="frames=1 keeps observations whole",
            )

    def _move_priorities(self, tree: SumTree, low: np.ndarray, high: np.ndarray) -> None:
        """After appending: the largest priority for what can be drawn now, 0 for what cannot."""
        rows = zip(self._base, low, high, *self._range(), strict=True)
        for base, old_low, old_high, new_low, new_high in rows:
            gone = base + np.arange(old_low, new_low) % self._slots
            come = base + np.arange(max(old_high, new_low), new_high) % self._slots
            come = come[self._bits[come] & _ACTED > 0]
            if gone.size + come.size:
                values = np.repeat([0.0, self._largest], [gone.size, come.size])
                tree[np.concatenate([gone, come])] = values

    def _draw(self, rng: np.random.Generator, batch: int) -> np.ndarray:
        low, high = self._range()
        ends = np.cumsum(high - low)
        if not ends[-1] or (ends[-1] < self._window and not len(self)):
            raise self._empty()
        found = np.empty(0, np.int64)
        while len(found) < batch:
            # Places in all rings, one after the other; those without an action are drawn again.
            place = rng.integers(0, ends[-1], batch - len(found))
            e = np.searchsorted(ends, place, side="right")
            index = self._base[e] + (place + (high - ends)[e]) % self._slots
            index = index[self._bits[index] & _ACTED > 0]
            found = np.concatenate([found, index]) if len(found) else index
        return found

    def _gather(self, index: np.ndarray, weights: np.ndarray) -> Sample:
        n, k = self._n_step, self._frames
        steps: Any = 1
        if n == 1:
            rewards = self._rewards[index]
            discounts = np.where(self._bits[index] & _TERMINATED, np.float32(0), self._gains[1])
        else:
            places = self._run(index, 0, n)
            bits = self._bits[places]
            over = bits > _ACTED
            runs = np.cumsum(over, axis=1) - over == 0  # until the episode ends
            rewards = (self._rewards[places] * self._gains[:n] * runs).sum(axis=1)
            steps = runs.sum(axis=1, keepdims=True)
            terminated = (bits & _TERMINATED > 0) & runs
            left = self._gains[steps[:, 0]]
            discounts = np.where(terminated.any(axis=1), np.float32(0), left)
        if k > 1 and n == 1:  # both stacks at once: they share all frames but one
            window = self._kept.take(self._run(index, 1 - k, k + 1), axis=0)
            observations, following = window[:, :-1], window[:, 1:]
        else:
            after = self._run(index, steps, 1)[:, 0]
            stacks = [self._kept.take(self._run(at, 1 - k, k), axis=0) for at in (index, after)]
            observations, following = (s if k > 1 else s[:, 0] for s in stacks)
        actions = self._actions[index]
        return Sample(observations, actions, rewards, discounts, following, weights, index)

    def _run(self, index: np.ndarray, start: Any, count: int) -> np.ndarray:
        """Rows of slots one after the other, from `start` after each one of `index`."""
        at = (index % self._slots)[:, None]
        return (index[:, None] - at) + (at + (start + np.arange(count))) % self._slots

    def _empty(self) -> StateError:
        return StateError(
            "There is nothing to draw from the replay memory yet.",
            got=f"{int(self._head.sum())} slots taken",
            expected=f"more than {self._frames + self._n_step} of one environment",
        )

    def _digest(self, head: np.ndarray) -> int:
        """Of the last slots before `head`."""
        value = 0
        for base, end in zip(self._base, head, strict=True):
            last = base + np.arange(max(0, end - _CHECKED), end) % self._slots
            for part in (self._kept, self._actions, self._rewards, self._bits):
                value = zlib.crc32(part[last].tobytes(), value)
        return value
