"""Replay memory in memory-mapped files, to which a checkpoint only adds counters."""

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
"""Bits of a slot: an action was taken, and ended its episode by termination or truncation."""
_CHECKED = 16
_EPSILON = 1e-6


class Sample(NamedTuple):
    """Transitions drawn from a replay memory. Rows are transitions.

    Attributes:
        observations: Observations before the actions.
        actions: Actions taken.
        rewards: float32 discounted sums over n steps, or fewer at the end of an episode.
        discounts: float32 factors of the value of `next_observations`: discount^n, or 0 where the
            episode terminated.
        next_observations: Observations n steps later, or the last ones of their episodes.
        weights: float32 importance-sampling weights, at most 1; all 1 without priorities.
        indices: Slots, for `update_priorities`.
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

    Each observation takes one slot, the last one of an episode too. Of stacked frames only the
    newest is stored: stacks are assembled when drawn, and the frames of an episode's first stack
    take a slot each. The newest `n_step` slots are not drawn yet.

    A checkpoint holds `state()`: counters, and priorities; the data stay in the files. These have
    `slack` slots beyond `capacity`: a checkpoint can be restored until more than that has been
    written after it. The files survive a killed process, but not a power failure.

    Args:
        path: Directory of the files. Existing ones of the same form are used again, with the slots
            that they have; they count as empty until `restore`.
        capacity: Slots to draw from, all environments together.
        num_envs: Number of environments.
        observation_space: Space of one environment.
        action_space: Space of one environment.
        frames: Frames stacked on the first axis of an observation, oldest first. 1: store whole
            observations.
        n_step: Steps of a transition.
        discount: Discount factor for each step.
        priority: Exponent of priorities, such as 0.6 (Schaul et al. 2016). 0: draw uniformly.
        slack: Least number of slots beyond `capacity`; by default a tenth of it.

    Raises:
        ConfigError: Sizes out of range, files of another form, or a disk that is too small.
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
                "Invalid arguments of a replay memory.",
                got=f"{capacity=}, {num_envs=}, {frames=}, {n_step=}, {discount=}",
                expected=f"counts of at least 1, a discount in [0, 1], a capacity of {least}",
            )
        if frames > 1 and shape[:1] != (frames,):
            raise ConfigError(
                f"Observations of shape {shape} are not stacks of {frames} frames.",
                expected="frames on the first axis, as Atari and FrameStackObservation give them",
                fix="frames=1 stores whole observations",
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
        self._kept, self._actions, self._rewards, self._bits, self._written = arrays
        self._spare, rows = self._slots - self._window, num_envs * self._slots
        self._base = np.arange(num_envs) * self._slots
        self._head = np.zeros(num_envs, np.int64)  # slots taken so far
        self._fresh = np.ones(num_envs, bool)  # an episode begins next
        self._began = False
        self._tree = SumTree(rows) if priority else None
        self._largest = 1.0
        self._spans: Any = None  # of what can be drawn, until something is appended
        self._runs: dict[int, np.ndarray] = {}  # by length: the slots from each one on
        bits = np.arange(_TRUNCATED * 2)
        self._discounts = np.where(bits & _TERMINATED, np.float32(0), self._gains[1])

    def __len__(self) -> int:
        """Number of transitions that can be drawn."""
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
        """Store one step of all environments.

        Args:
            observations: Observations before the step.
            actions: Actions taken.
            rewards: Rewards; these and the following ones as in `Step`.
            terminated: Whether the episode terminated.
            truncated: Whether the episode was truncated.
            final: Observations after the step; used where an episode ended.

        Raises:
            ConfigError: The frames of an observation do not continue those of the one before.
        """
        if not self._began:  # what existing files hold is of another run
            self._written[:] = 0
            self._began = True
        old = None if self._tree is None else self._range()
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
        if self._tree is not None and old is not None:
            self._update_tree(self._tree, *old)

    def sample(self, rng: np.random.Generator, batch: int, *, beta: float = 0.4) -> Sample:
        """Draw transitions, with replacement.

        Args:
            rng: Random generator.
            batch: Number of transitions.
            beta: Exponent of the importance-sampling weights; 1 corrects for priorities fully.

        Raises:
            StateError: There are no transitions yet.
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
            indices: Indices of a sample; those that can no longer be drawn are ignored.
            errors: Temporal differences, of either sign.
        """
        if self._tree is None:
            raise ConfigError("This replay memory has no priorities.", fix="priority=0.6")
        if not np.isfinite(errors).all():
            raise NumericsError(
                "Priorities cannot be set from temporal differences that are not finite.",
                got=f"{np.count_nonzero(~np.isfinite(errors))} of {np.size(errors)}",
                fix="a smaller learning rate, or rewards of another scale",
            )
        values = (np.abs(errors) + _EPSILON).astype(np.float32) ** np.float32(self._priority)
        current = self._tree.leaves[indices] > 0
        self._tree[indices[current]] = values[current]
        self._largest = max(self._largest, float(values.max(initial=0.0)))

    def state(self) -> dict[str, Any]:
        """State: counters, and priorities."""
        return {
            "head": self._head.copy(),
            "fresh": self._fresh,
            "check": self._digest(self._head),
            "largest": self._largest,
            "priorities": None if self._tree is None else self._tree.leaves.copy(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Restore a state; what was written after it is discarded.

        Raises:
            StateError: The files do not hold the data of this state, or no longer do.
        """
        head = np.array(state["head"])
        leaves = () if self._tree is None else self._tree.leaves.shape
        if head.shape != self._head.shape or np.shape(state["priorities"]) != leaves:
            raise StateError(
                "This state is of a replay memory of another form.",
                got=f"{len(head)} environments, priorities of {np.shape(state['priorities'])}",
                expected=f"{len(self._head)} environments, priorities of {leaves}",
                fix="resume with the same num_envs= and the same choice of priority= or none, or "
                "train in another directory",
            )
        beyond = int((self._written - head).max())
        if beyond > self._spare:
            raise StateError(
                "The data of this state have been overwritten in the replay memory.",
                got=f"{beyond} more slots for one environment",
                expected=f"at most {self._spare}",
                fix="resume from a later checkpoint; save more often, or give a larger slack=",
            )
        if self._digest(head) != state["check"]:
            raise StateError(
                f"The files in {self._path} are not those of this state.",
                fix="put back the files of the run, or train anew with resume='never'",
            )
        self._began, self._spans = True, None
        self._head, self._fresh = head, np.array(state["fresh"])
        self._largest = state["largest"]
        if self._tree is not None:
            self._tree.fill(state["priorities"])

    def _open(
        self, num_envs: int, least: int, **forms: tuple[tuple[int, ...], Any]
    ) -> tuple[int, list[np.ndarray]]:
        """Open existing files or make new ones; returns slots for each environment, and arrays."""
        files = [self._path / f"{name}.npy" for name in (*forms, "written")]
        expected = [(shape, np.dtype(dtype)) for shape, dtype in forms.values()]
        if all(file.exists() for file in files):
            opened = [open_memmap(file, "r+") for file in files]
            found = [(part.shape[1:], part.dtype) for part in opened[:-1]]
            envs, slots = len(opened[-1]), len(opened[0]) // len(opened[-1])
            if (envs, found) != (num_envs, expected) or slots < least:
                raise ConfigError(
                    f"{self._path} holds a replay memory of another form, or too small a one.",
                    got=f"{envs} environments, {slots} slots for each, {found}",
                    expected=f"{num_envs}, at least {least} (of capacity and slack), {expected}",
                    fix="resume with the same environments, and no larger buffer_size= or "
                    "epoch_steps=; or use another directory (run_dir=)",
                )
            return slots, [np.asarray(part) for part in opened]
        needed = num_envs * least * sum(math.prod(s) * d.itemsize for s, d in expected)
        self._path.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._path).free
        # A full disk would kill the process at some later step. Files take room as they fill.
        if needed > free:
            raise ConfigError(
                f"The disk of {self._path} is too small for this replay memory.",
                got=f"{free / 1e9:.2f} GB free",
                expected=f"{needed / 1e9:.2f} GB",
                fix="a smaller capacity=, or another directory",
            )
        sizes = [*((num_envs * least, *s) for s, _ in expected), (num_envs,)]
        types = [*(d for _, d in expected), np.int64]
        made = [open_memmap(*a) for a in zip(files, ["w+"] * len(files), types, sizes, strict=True)]
        return least, [np.asarray(part) for part in made]

    def _range(self) -> tuple[np.ndarray, np.ndarray]:
        """First slot of each ring that can be drawn, and the end, counted since the beginning."""
        low = np.maximum(0, self._head - self._window) + (self._frames - 1)
        return low, np.maximum(low, self._head - self._n_step)

    def _take(self, envs: Any) -> np.ndarray:
        """Advance some rings; returns their next slots."""
        at = self._base[envs] + self._head[envs] % self._slots
        self._head[envs] += 1
        self._spans = None
        # Before data are written: the process may be killed in between.
        np.maximum(self._written, self._head, out=self._written)
        return at

    def _put(self, e: np.intp, frame: np.ndarray) -> None:
        """Store a frame after which no action was taken."""
        at = self._take(e)
        self._kept[at] = frame
        self._actions[at] = self._rewards[at] = self._bits[at] = 0

    def _check_stack(self, observations: np.ndarray) -> None:
        """Compare one environment's stack with the stored frames; another environment each time."""
        e = int(self._head[0]) % len(self._head)
        last = (self._head[e] - np.arange(self._frames - 1, 0, -1)) % self._slots
        if not np.array_equal(self._kept[self._base[e] + last], observations[e][:-1]):
            raise ConfigError(
                f"The frames of an observation of environment {e} do not continue the one before.",
                expected="the frames of the one before without the oldest, and a new one",
                fix="frames=1 stores whole observations",
            )

    def _update_tree(self, tree: SumTree, low: np.ndarray, high: np.ndarray) -> None:
        """Set new slots to the largest priority, and those that are out of range to 0."""
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
        # Slots of all rings, one after the other; those without an action are drawn again.
        place = (rng.random(batch) * ends[-1]).astype(np.int64)
        e = ends.searchsorted(place, "right")
        index = self._base[e] + (place + offsets[e]) % self._slots
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
            places = self._run(index, 0, n)
            bits = self._bits[places]
            over = bits > _ACTED
            runs = np.cumsum(over, axis=1) - over == 0  # until the episode ends
            rewards = (self._rewards[places] * self._gains[:n] * runs).sum(axis=1)
            steps = runs.sum(axis=1, keepdims=True)
            terminated = ((bits & _TERMINATED > 0) & runs).any(axis=1)
            discounts = np.where(terminated, np.float32(0), self._gains[steps[:, 0]])
            after = self._run(index, steps - 1, 1)[:, 0]
        if k > 1 and n == 1:  # both stacks at once: they share all frames but one
            window = self._slots_from(index, 1 - k, k + 1)
            observations, following = window[:, :-1], window[:, 1:]
        else:
            stacks = self._slots_from(index, 1 - k, k), self._slots_from(after, 2 - k, k)
            observations, following = (s if k > 1 else s[:, 0] for s in stacks)
        actions = self._actions[index]
        return Sample(observations, actions, rewards, discounts, following, weights, index)

    def _slots_from(self, index: np.ndarray, start: int, count: int) -> np.ndarray:
        """Frames of `count` consecutive slots, from `start` after each one of `index`."""
        kept = self._kept
        first = index % self._slots + start
        # As unsigned numbers, those below 0 are large.
        if np.count_nonzero(first.view(np.uint64) > self._slots - count):
            return kept.take(self._run(index, start, count), axis=0)
        if count not in self._runs:  # each run of slots as one item: copied at once
            size = kept.strides[0]
            form = len(kept) - count + 1, f"V{count * size}", kept, 0, (size,)
            self._runs[count] = np.ndarray(*form)
        found = self._runs[count][index + start].view(kept.dtype)
        return found.reshape(len(index), count, *kept.shape[1:])

    def _run(self, index: np.ndarray, start: Any, count: int) -> np.ndarray:
        """Numbers of `count` consecutive slots, from `start` after each one of `index`."""
        at = (index % self._slots)[:, None]
        return (index[:, None] - at) + (at + (start + np.arange(count))) % self._slots

    def _empty(self) -> StateError:
        return StateError(
            "The replay memory has no transitions yet.",
            got=f"{int(self._head.sum())} slots taken",
            expected=f"more than {self._frames + self._n_step} of one environment",
        )

    def _digest(self, head: np.ndarray) -> int:
        """Checksum of the last slots before `head`."""
        value = 0
        for base, end in zip(self._base, head, strict=True):
            last = base + np.arange(max(0, end - _CHECKED), end) % self._slots
            for part in (self._kept, self._actions, self._rewards, self._bits):
                value = zlib.crc32(part[last].tobytes(), value)
        return value
