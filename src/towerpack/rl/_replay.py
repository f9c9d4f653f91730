from __future__ import annotations

import math
import shutil
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.lib.format import open_memmap

from towerpack._core.errors import ConfigError, NumericsError, StateError
from towerpack.rl._sum_tree import SumTree

_ACTED, _TERMINATED, _TRUNCATED = 1, 2, 4
"""Bit flags of a slot: an action was taken, the episode terminated, the episode was truncated."""
_CHECKED = 16
_EPSILON = 1e-6


class Sample(NamedTuple):
    """Transitions drawn from a replay memory, with one row per transition.

    Attributes:
        observations: Observations before the actions.
        actions: Actions taken.
        rewards: Discounted sums of rewards over n steps, or fewer if the episode ended; float32.
        discounts: Factors for the value of `next_observations`: discount^n, or 0 if the episode
            terminated; float32.
        next_observations: Observations n steps later, or the last observations of the episodes.
        weights: Importance-sampling weights, at most 1; all 1 without priorities; float32.
        indices: Indices of the transitions, for `update_priorities`.
    """

    observations: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    discounts: np.ndarray
    next_observations: np.ndarray
    weights: np.ndarray
    indices: np.ndarray


class ReplayMemory:
    """Replay memory: a ring buffer of transitions for each environment, in memory-mapped files.

    Each observation occupies one slot, including the last observation of an episode. Of stacked
    frames, only the newest is stored, except at the start of an episode. Stacks are assembled
    when they are drawn. The newest `n_step` slots are not drawn.

    A checkpoint contains counters and priorities, but not the data. It can be restored until more
    than `slack` newer slots have been written. The files may not survive a power failure.

    Args:
        path: Directory of the files. Existing files with the same layout are reused, but their
            data are ignored until `restore` is called.
        capacity: Number of slots to draw from, summed over all environments.
        num_envs: Number of environments.
        observation_space, action_space: Spaces of one environment.
        frames: Number of frames stacked on the first axis of an observation, oldest first. With 1,
            whole observations are stored.
        n_step: Number of steps of a transition.
        discount: Discount factor of each step.
        priority: Exponent of priorities, such as 0.6 (Schaul et al. 2016); 0 to draw uniformly.
        slack: Minimum number of slots beyond `capacity`; by default a tenth of `capacity`.

    Raises:
        ConfigError: A size is out of range, existing files do not match, or the disk is too small.
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
                "ReplayMemory must get num_envs, frames and n_step of at least 1, a discount from "
                f"0 to 1, and a capacity of at least {least}.",
                got=f"{capacity=}, {num_envs=}, {frames=}, {n_step=}, {discount=}",
            )
        if frames > 1 and shape[:1] != (frames,):
            raise ConfigError(
                f"Observations must have {frames} frames on the first axis, got the shape {shape}.",
                fix="pass frames=1 to store whole observations",
            )
        self._window = -(-capacity // num_envs)
        self._path = Path(path)
        self._frames, self._n_step, self._priority = frames, n_step, priority
        self._gains = np.float32(discount) ** np.arange(n_step + 1, dtype=np.float32)
        self._slots, arrays = self._open(
            num_envs,
            self._window - (-(capacity // 10 if slack is None else slack) // num_envs),
            frames=(shape[1:] if frames > 1 else shape, observation_space.dtype),
            actions=(action_space.shape or (), action_space.dtype),
            rewards=((), np.float32),
            bits=((), np.uint8),
        )
        self._stored, self._actions, self._rewards, self._bits, self._written = arrays
        self._spare, rows = self._slots - self._window, num_envs * self._slots
        self._base = np.arange(num_envs) * self._slots
        self._head = np.zeros(num_envs, np.int64)  # number of slots written so far
        self._fresh = np.ones(num_envs, bool)  # whether the next slot starts an episode
        self._began = False
        self._tree = SumTree(rows) if priority else None
        self._largest = 1.0
        self._spans: Any = None  # cached ranges that can be drawn
        self._runs: dict[int, np.ndarray] = {}  # views of consecutive slots, by number of slots
        bits = np.arange(_TRUNCATED * 2)
        self._discounts = np.where(bits & _TERMINATED, np.float32(0), self._gains[1])

    def __len__(self) -> int:
        """Return the number of transitions that can be drawn."""
        ranges = zip(self._base, *self._range(), strict=True)
        slots = [base + np.arange(low, high) % self._slots for base, low, high in ranges]
        return int(np.count_nonzero(self._bits[np.concatenate(slots)] & _ACTED))

    def append(
        self,
        observations: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
        final: np.ndarray,
    ) -> None:
        """Store one step of all environments.

        Args:
            observations, actions: Observations before the step, and actions taken.
            rewards, terminated, truncated, final: Results of the step; see `Step`.

        Raises:
            ConfigError: The frames of an observation do not continue the previous observation.
        """
        if not self._began:  # existing files contain data of another run
            self._written[:] = 0
            self._began = True
        old = None if self._tree is None else self._range()
        if self._frames > 1:
            for e in np.flatnonzero(self._fresh):
                for frame in observations[e][:-1]:
                    self._put(e, frame)
            self._check_stack(observations)
        slots = self._take(slice(None))
        self._stored[slots] = observations[:, -1] if self._frames > 1 else observations
        self._actions[slots] = actions
        self._rewards[slots] = rewards
        self._bits[slots] = _ACTED + _TERMINATED * terminated + _TRUNCATED * truncated
        self._fresh = terminated | truncated
        for e in np.flatnonzero(self._fresh):
            self._put(e, final[e][-1] if self._frames > 1 else final[e])
        if self._tree is not None and old is not None:
            self._update_tree(self._tree, *old)

    def sample(self, rng: np.random.Generator, batch: int, *, beta: float = 0.4) -> Sample:
        """Draw transitions with replacement.

        Args:
            rng: Random generator.
            batch: Number of transitions.
            beta: Exponent of the importance-sampling weights; 1 fully corrects for priorities.

        Raises:
            StateError: The memory is empty.
        """
        weights = np.ones(batch, np.float32)
        if self._tree is None:
            index = self._draw(rng, batch)
        else:
            if not self._tree.total:
                raise self._empty()
            # One from each of `batch` equal parts of the sum: Schaul et al. 2016, appendix B.2.1
            index = self._tree.find((np.arange(batch) + rng.random(batch)) / batch)
            weights = self._tree.leaves[index] ** np.float32(-beta)
            weights /= weights.max()
        return self._gather(index, weights)

    def update_priorities(self, indices: np.ndarray, errors: np.ndarray) -> None:
        """Set priorities from temporal-difference errors.

        Args:
            indices: `Sample.indices`. Transitions that can no longer be drawn are ignored.
            errors: Temporal-difference errors, positive or negative.

        Raises:
            ConfigError: The memory has no priorities.
            NumericsError: An error is NaN or infinite.
        """
        if self._tree is None:
            what = "update_priorities needs a replay memory with a positive priority, got 0."
            raise ConfigError(what, fix="pass priority=0.6 to ReplayMemory")
        if not np.isfinite(errors).all():
            count = np.count_nonzero(~np.isfinite(errors))
            raise NumericsError(
                f"Temporal-difference errors must be finite, but {count} of {np.size(errors)} are "
                "NaN or infinite.",
                fix="use a smaller learning rate, or scale the rewards",
            )
        values = (np.abs(errors) + _EPSILON).astype(np.float32) ** np.float32(self._priority)
        current = self._tree.leaves[indices] > 0
        self._tree[indices[current]] = values[current]
        self._largest = max(self._largest, float(values.max(initial=0.0)))

    def state(self) -> dict[str, Any]:
        """Return counters and priorities, for `restore`."""
        return {
            "head": self._head.copy(),
            "fresh": self._fresh,
            "check": self._digest(self._head),
            "largest": self._largest,
            "priorities": None if self._tree is None else self._tree.leaves.copy(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a saved state. Data written after the state was saved are discarded.

        Args:
            state: Result of `state`.

        Raises:
            StateError: The files do not contain the data of this state.
        """
        head = np.array(state["head"])
        leaves = () if self._tree is None else self._tree.leaves.shape
        if head.shape != self._head.shape or np.shape(state["priorities"]) != leaves:
            raise StateError(
                "The settings of the replay memory must be the same as in the saved state.",
                got=f"{len(self._head)} environments, priorities of shape {leaves}",
                expected=f"{len(head)} environments, priorities of shape "
                f"{np.shape(state['priorities'])}",
                fix="resume with the same num_envs and priority, or use a different directory",
            )
        newer = int((self._written - head).max())
        if newer > self._spare:
            raise StateError(
                "The replay memory no longer has the data of this state: an environment wrote "
                f"{newer} newer slots, but at most {self._spare} are allowed.",
                fix="resume from a later checkpoint; save more often, or pass a larger slack",
            )
        if self._digest(head) != state["check"]:
            raise StateError(
                f"The files in {self._path} do not contain the data of this state.",
                fix="restore the files of the run, or start training again with resume='never'",
            )
        self._began, self._spans = True, None
        self._head, self._fresh = head, np.array(state["fresh"])
        self._largest = state["largest"]
        if self._tree is not None:
            self._tree.fill(state["priorities"])

    def _open(
        self, num_envs: int, least: int, **forms: tuple[tuple[int, ...], Any]
    ) -> tuple[int, list[np.ndarray]]:
        """Open or create the files. Return the number of slots per environment, and the arrays."""
        files = [self._path / f"{name}.npy" for name in (*forms, "written")]
        expected = [(shape, np.dtype(dtype)) for shape, dtype in forms.values()]
        if all(file.exists() for file in files):
            arrays = [open_memmap(file, "r+") for file in files]
            stored = [(part.shape[1:], part.dtype) for part in arrays[:-1]]
            envs, slots = len(arrays[-1]), len(arrays[0]) // len(arrays[-1])
            if (envs, stored) != (num_envs, expected) or slots < least:
                raise ConfigError(
                    f"The files in {self._path} belong to a replay memory with other settings.",
                    got=f"{num_envs} environments, {least} slots for each (from capacity and "
                    f"slack), {expected}",
                    expected=f"{envs} environments, at most {slots} slots for each, {stored}",
                    fix="resume with the same environments, and no larger buffer_size= or "
                    "epoch_steps=; or use a different directory (run_dir=)",
                )
            return slots, [np.asarray(part) for part in arrays]
        needed = num_envs * least * sum(math.prod(s) * d.itemsize for s, d in expected)
        self._path.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._path).free
        # Files grow as they are filled. A full disk would kill the process at a later step.
        if needed > free:
            raise ConfigError(
                f"The replay memory needs {needed / 1e9:.2f} GB of disk space, but the disk of "
                f"{self._path} has only {free / 1e9:.2f} GB free.",
                fix="pass a smaller capacity, or use a directory on another disk",
            )
        sizes = [*((num_envs * least, *s) for s, _ in expected), (num_envs,)]
        types = [*(d for _, d in expected), np.int64]
        columns = zip(files, ["w+"] * len(files), types, sizes, strict=True)
        return least, [np.asarray(open_memmap(*column)) for column in columns]

    def _range(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the first drawable slot of each environment and the end, as unwrapped numbers."""
        low = np.maximum(0, self._head - self._window) + (self._frames - 1)
        return low, np.maximum(low, self._head - self._n_step)

    def _take(self, envs: Any) -> np.ndarray:
        """Reserve the next slot of some environments. Return the indices of these slots."""
        slots = self._base[envs] + self._head[envs] % self._slots
        self._head[envs] += 1
        self._spans = None
        # Update before data are written, because the process may be killed in between.
        np.maximum(self._written, self._head, out=self._written)
        return slots

    def _put(self, e: np.intp, frame: np.ndarray) -> None:
        """Store a frame without an action, reward or flags."""
        slot = self._take(e)
        self._stored[slot] = frame
        self._actions[slot] = self._rewards[slot] = self._bits[slot] = 0

    def _check_stack(self, observations: np.ndarray) -> None:
        """Compare stacked frames with stored frames. Each call checks another environment."""
        e = int(self._head[0]) % len(self._head)
        last = (self._head[e] - np.arange(self._frames - 1, 0, -1)) % self._slots
        if not np.array_equal(self._stored[self._base[e] + last], observations[e][:-1]):
            raise ConfigError(
                f"Stacked frames of environment {e} must be the frames of the previous observation "
                "without the oldest one, followed by a new frame.",
                fix="pass frames=1 to store whole observations",
            )

    def _update_tree(self, tree: SumTree, low: np.ndarray, high: np.ndarray) -> None:
        """Set the priority of new slots to the maximum, and that of overwritten ones to 0."""
        rows = zip(self._base, low, high, *self._range(), strict=True)
        for base, old_low, old_high, new_low, new_high in rows:
            gone = base + np.arange(old_low, new_low) % self._slots
            come = base + np.arange(max(old_high, new_low), new_high) % self._slots
            come = come[self._bits[come] & _ACTED > 0]
            if gone.size + come.size:
                values = np.repeat([0.0, self._largest], [gone.size, come.size])
                tree[np.concatenate([gone, come])] = values

    def _draw(self, rng: np.random.Generator, batch: int) -> np.ndarray:
        if self._spans is None:
            low, high = self._range()
            ends = np.cumsum(high - low)
            if not ends[-1] or (ends[-1] < self._window and not len(self)):
                raise self._empty()
            self._spans = ends, high - ends
        ends, offsets = self._spans
        # Positions in the concatenated rings. Slots without an action are drawn again.
        position = (rng.random(batch) * ends[-1]).astype(np.int64)
        e = ends.searchsorted(position, "right")
        index = self._base[e] + (position + offsets[e]) % self._slots
        bits = self._bits[index]
        if np.count_nonzero(bits) == batch:
            return index
        index = index[bits > 0]
        return np.concatenate([index, self._draw(rng, batch - len(index))])

    def _gather(self, index: np.ndarray, weights: np.ndarray) -> Sample:
        n, k = self._n_step, self._frames
        after = index
        if n == 1:
            rewards, discounts = self._rewards[index], self._discounts[self._bits[index]]
        else:
            slots = self._run(index, 0, n)
            bits = self._bits[slots]
            over = bits > _ACTED
            runs = np.cumsum(over, axis=1) - over == 0  # until the episode ends
            rewards = (self._rewards[slots] * self._gains[:n] * runs).sum(axis=1)
            steps = runs.sum(axis=1, keepdims=True)
            terminated = ((bits & _TERMINATED > 0) & runs).any(axis=1)
            discounts = np.where(terminated, np.float32(0), self._gains[steps[:, 0]])
            after = self._run(index, steps - 1, 1)[:, 0]
        if k > 1 and n == 1:  # the stacks share all frames but one
            window = self._slots_from(index, 1 - k, k + 1)
            observations, following = window[:, :-1], window[:, 1:]
        else:
            stacks = self._slots_from(index, 1 - k, k), self._slots_from(after, 2 - k, k)
            observations, following = (s if k > 1 else s[:, 0] for s in stacks)
        actions = self._actions[index]
        return Sample(observations, actions, rewards, discounts, following, weights, index)

    def _slots_from(self, index: np.ndarray, start: int, count: int) -> np.ndarray:
        """Return the frames in `count` consecutive slots for each index, with an offset."""
        stored = self._stored
        first = index % self._slots + start
        # Negative numbers are large when they are read as unsigned numbers.
        if np.count_nonzero(first.view(np.uint64) > self._slots - count):
            return stored.take(self._run(index, start, count), axis=0)
        if count not in self._runs:  # a view with several slots per item is copied in one piece
            size = stored.strides[0]
            form = len(stored) - count + 1, f"V{count * size}", stored, 0, (size,)
            self._runs[count] = np.ndarray(*form)
        frames = self._runs[count][index + start].view(stored.dtype)
        return frames.reshape(len(index), count, *stored.shape[1:])

    def _run(self, index: np.ndarray, start: Any, count: int) -> np.ndarray:
        """Return the indices of `count` consecutive slots for each index, with an offset."""
        slots = (index % self._slots)[:, None]
        return (index[:, None] - slots) + (slots + (start + np.arange(count))) % self._slots

    def _empty(self) -> StateError:
        least = self._frames + self._n_step
        return StateError(
            f"An environment needs more than {least} slots to draw transitions, but all "
            f"environments together have only {int(self._head.sum())}.",
            fix="append more steps before you sample",
        )

    def _digest(self, head: np.ndarray) -> int:
        """Return a checksum of the last slots before the positions `head`."""
        value = 0
        for base, end in zip(self._base, head, strict=True):
            last = base + np.arange(max(0, end - _CHECKED), end) % self._slots
            for part in (self._stored, self._actions, self._rewards, self._bits):
                value = zlib.crc32(part[last].tobytes(), value)
        return value
