"""Transitions to learn from again, in files that a checkpoint only points into."""

from __future__ import annotations

import json
import shutil
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from towerpack._core.errors import ConfigError, StateError
from towerpack.rl._sum_tree import SumTree

_TAKEN, _TERMINATED, _TRUNCATED = 1, 2, 4
"""Bits of a slot: an action was taken there, and how its episode ended by it."""
_CHECKED = 16
_EPSILON = 1e-6


class Sample(NamedTuple):
    """Transitions drawn from a memory. Rows are transitions.

    Attributes:
        observations: What was acted on.
        actions: What was done.
        rewards: float32: the discounted sum of the rewards of the n steps, or of those to the end
            of the episode.
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

    An observation takes one slot; so does the last one of an episode, in which no action was taken.
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
        if frames < 1 or n_step < 1 or num_envs < 1 or not 0 <= discount <= 1 or priority < 0:
            raise ConfigError(
                "A replay memory cannot be made so.",
                got=f"{num_envs=}, {frames=}, {n_step=}, {discount=}, {priority=}",
                expected="counts of at least 1, a discount in [0, 1], a priority of at least 0",
            )
        if frames > 1 and shape[:1] != (frames,):
            raise ConfigError(
                f"Observations of shape {shape} are no stacks of {frames} frames.",
                expected="frames on the first axis, as Atari and FrameStackObservation give them",
                fix="frames=1 keeps observations whole",
            )
        self._window = -(-capacity // num_envs)
        if self._window < frames + n_step + 1:
            raise ConfigError(
                f"capacity={capacity} holds no transition of each of {num_envs} environments.",
                expected=f"at least {num_envs * (frames + n_step + 1)}",
            )
        spare = -(-(capacity // 10 if slack is None else slack) // num_envs)
        self._slots = self._window + spare
        self._frames, self._n_step, self._priority = frames, n_step, priority
        self._gains = np.float32(discount) ** np.arange(n_step + 1, dtype=np.float32)
        self._envs = np.arange(num_envs)
        ring = (num_envs, self._slots)
        self._open(
            Path(path),
            {
                "frames": (
                    (*ring, *(shape[1:] if frames > 1 else shape)),
                    np.dtype(observation_space.dtype),
                ),
                "actions": ((*ring, *(action_space.shape or ())), np.dtype(action_space.dtype)),
                "rewards": (ring, np.dtype(np.float32)),
                "ends": (ring, np.dtype(np.uint8)),
                "written": ((num_envs,), np.dtype(np.int64)),
            },
        )
        self._head = np.zeros(num_envs, np.int64)  # slots taken so far
        self._fresh = np.ones(num_envs, bool)  # an episode begins next
        self._began = False
        self._tree = SumTree(num_envs * self._slots) if priority else None
        self._largest = 1.0

    def __len__(self) -> int:
        """Transitions that can be drawn."""
        low, high = self._range()
        return sum(
            int(np.count_nonzero(self._ends[e, np.arange(low[e], high[e]) % self._slots] & _TAKEN))
            for e in self._envs
        )

    @property
    def nbytes(self) -> int:
        """Size of the files when they are full."""
        return sum(part.nbytes for part in self._parts.values())

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
        stacked = self._frames > 1
        if stacked:
            for e in np.flatnonzero(self._fresh):
                for frame in observations[e][:-1]:
                    self._put(e, frame)
            self._check_stack(observations)
        at = self._take(self._envs)
        self._kept[self._envs, at] = observations[:, -1] if stacked else observations
        self._actions[self._envs, at] = actions
        self._rewards[self._envs, at] = rewards
        self._ends[self._envs, at] = _TAKEN + _TERMINATED * terminated + _TRUNCATED * truncated
        self._fresh = terminated | truncated
        for e in np.flatnonzero(self._fresh):
            self._put(e, final[e][-1] if stacked else final[e])
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
            envs, at = self._draw(rng, batch)
        else:
            if not self._tree.total:
                raise self._empty()
            # One of each of `batch` equal parts of the sum, as in Schaul et al., appendix B.2.1.
            leaves = self._tree.find((np.arange(batch) + rng.random(batch)) / batch)
            envs, at = np.divmod(leaves, self._slots)
            weights = self._tree.leaves[leaves] ** np.float32(-beta)
            weights /= weights.max()
        return self._gather(envs, at, weights)

    def update_priorities(self, indices: np.ndarray, errors: np.ndarray) -> None:
        """Set priorities from temporal differences.

        Args:
            indices: Of a sample; those that have been overwritten since are passed over.
            errors: Temporal differences, of either sign.
        """
        if self._tree is None:
            raise ConfigError("This memory has no priorities.", fix="priority=0.6")
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
        head = np.asarray(state["head"])
        if head.shape != self._head.shape or (state["priorities"] is None) != (self._tree is None):
            raise StateError(
                "This state is of a replay memory of another form.",
                got=f"{len(head)} environments, priorities: {state['priorities'] is not None}",
                expected=f"{len(self._head)} environments, priorities: {self._tree is not None}",
            )
        beyond = int((self._written - head).max())
        spare = self._slots - self._window
        if beyond > spare:
            raise StateError(
                "The replay memory has been written on since this state, over what it needs.",
                got=f"{beyond} slots more for one environment",
                expected=f"at most {spare}",
                fix="resume from a later checkpoint; save more often, or give a larger slack=",
            )
        if self._digest(head) != state["check"]:
            raise StateError(
                f"The files in {self._path} are not those that this state counts in.",
                fix="put back the files of the run, or train anew with resume='never'",
            )
        self._began = True
        self._head = head.copy()
        self._fresh = np.array(state["fresh"])
        self._largest = state["largest"]
        if self._tree is not None:
            self._tree.fill(state["priorities"])

    # ------------------------------------------------------------------------ slots

    def _open(self, path: Path, parts: dict[str, tuple[tuple[int, ...], np.dtype[Any]]]) -> None:
        self._path = path
        form = {name: [list(shape), dtype.str] for name, (shape, dtype) in parts.items()}
        sizes = {
            name: int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            for name, (shape, dtype) in parts.items()
        }
        path.mkdir(parents=True, exist_ok=True)
        index = path / "layout.json"
        if index.exists():
            found = json.loads(index.read_text())
            if found != form:
                raise ConfigError(
                    f"{path} holds a replay memory of another form.",
                    got=json.dumps(found),
                    expected=json.dumps(form),
                    fix="give another directory, or remove this one",
                )
        else:
            free = shutil.disk_usage(path).free
            if sum(sizes.values()) > free:  # or a full disk would kill the process at some step
                raise ConfigError(
                    f"The disk of {path} is too small for this replay memory.",
                    got=f"{free / 1e9:.1f} GB free",
                    expected=f"{sum(sizes.values()) / 1e9:.1f} GB",
                    fix="a smaller capacity=, or another directory",
                )
            for name, size in sizes.items():
                with (path / f"{name}.bin").open("wb") as file:
                    file.truncate(size)  # sparse: takes room as it is written
            index.write_text(json.dumps(form))
        self._parts = {
            name: np.asarray(np.memmap(path / f"{name}.bin", dtype, "r+", 0, shape))
            for name, (shape, dtype) in parts.items()
        }
        self._kept, self._actions, self._rewards, self._ends, self._written = self._parts.values()
        self._flat = {
            name: part.reshape(-1, *part.shape[2:])
            for name, part in self._parts.items()
            if name != "written"
        }

    def _range(self) -> tuple[np.ndarray, np.ndarray]:
        """Of each ring, the first place that can be drawn, and the end; counted from its start."""
        low = np.maximum(0, self._head - self._window) + self._frames - 1
        return low, np.maximum(low, self._head - self._n_step)

    def _take(self, envs: np.ndarray) -> np.ndarray:
        """The next slot of some rings."""
        at = self._head[envs] % self._slots
        self._head[envs] += 1
        # Said first: a process killed in between has overwritten less than it said.
        self._written[envs] = np.maximum(self._written[envs], self._head[envs])
        return at

    def _put(self, e: int, frame: np.ndarray) -> None:
        """Keep a frame in which no action was taken."""
        (at,) = self._take(np.array([e]))
        self._kept[e, at] = frame
        for part in (self._actions, self._rewards, self._ends):
            part[e, at] = 0

    def _check_stack(self, observations: np.ndarray) -> None:
        """Compare one environment's stack with the frames that were kept; another one each time."""
        e = int(self._head[0] % len(self._envs))
        last = (self._head[e] - np.arange(self._frames - 1, 0, -1)) % self._slots
        if not np.array_equal(self._kept[e, last], observations[e][:-1]):
            raise ConfigError(
                f"Frames of an observation of environment {e} are not those of the one before.",
                expected="each observation: the one before without its oldest frame, and a new one",
                fix="frames=1 keeps observations whole",
            )

    def _move_priorities(self, tree: SumTree, low: np.ndarray, high: np.ndarray) -> None:
        """After appending: the largest priority for what can be drawn now, 0 for what cannot."""
        new_low, new_high = self._range()
        for e in self._envs:
            base = e * self._slots
            gone = np.arange(low[e], new_low[e]) % self._slots
            come = np.arange(max(high[e], new_low[e]), new_high[e]) % self._slots
            come = come[self._ends[e, come] & _TAKEN > 0]
            index = np.concatenate([gone, come]) + base
            if index.size:
                tree[index] = np.repeat([0.0, self._largest], [gone.size, come.size])

    # ------------------------------------------------------------------------ drawing

    def _draw(self, rng: np.random.Generator, batch: int) -> tuple[np.ndarray, np.ndarray]:
        low, high = self._range()
        ends = np.cumsum(high - low)
        if not ends[-1]:
            raise self._empty()
        found: list[np.ndarray] = []
        missing = batch
        while missing:
            # Places in all rings, one after the other; those without an action are drawn again.
            place = rng.integers(0, ends[-1], missing)
            if len(ends) > 1:
                e = np.searchsorted(ends, place, side="right")
                at = (place - ends[e] + high[e]) % self._slots + e * self._slots
            else:
                at = (place + low[0]) % self._slots
            at = at[(self._flat["ends"][at] & _TAKEN) > 0]
            if not at.size and not len(self):
                raise self._empty()
            found.append(at)
            missing -= len(at)
        return np.divmod(found[0] if len(found) == 1 else np.concatenate(found), self._slots)

    def _gather(self, envs: np.ndarray, at: np.ndarray, weights: np.ndarray) -> Sample:
        n, k, slots = self._n_step, self._frames, self._slots
        base = envs * slots
        indices = base + at
        if n == 1:
            ends = self._flat["ends"][indices]
            rewards = self._flat["rewards"][indices]
            discounts = np.where(ends & _TERMINATED, np.float32(0), self._gains[1])
            steps: Any = 1
        else:
            places = base[:, None] + (at[:, None] + np.arange(n)) % slots
            ends = self._flat["ends"][places]
            over = (ends & (_TERMINATED | _TRUNCATED)) > 0
            runs = np.cumsum(over, axis=1) - over == 0  # no end before it
            rewards = (self._flat["rewards"][places] * self._gains[:n] * runs).sum(axis=1)
            steps = runs.sum(axis=1)
            terminated = (ends & _TERMINATED > 0) & runs
            discounts = np.where(terminated.any(axis=1), np.float32(0), self._gains[steps])
        if k > 1 and n == 1:  # both stacks at once: they share all frames but one
            window = self._stacks(base, at + 1, k + 1)
            observations, following = window[:, :-1], window[:, 1:]
        else:
            observations = self._stacks(base, at, k)
            following = self._stacks(base, at + steps, k)
            if k == 1:
                observations, following = observations[:, 0], following[:, 0]
        actions = self._flat["actions"][indices]
        return Sample(observations, actions, rewards, discounts, following, weights, indices)

    def _stacks(self, base: np.ndarray, at: np.ndarray, frames: int) -> np.ndarray:
        """Frames up to and with a slot: [batch, frames, ...]."""
        places = base[:, None] + (at[:, None] + np.arange(1 - frames, 1)) % self._slots
        return self._flat["frames"].take(places, axis=0)

    def _empty(self) -> StateError:
        return StateError(
            "There is nothing to draw from the replay memory yet.",
            got=f"{int(self._head.sum())} slots taken",
            expected=f"more than {self._frames + self._n_step} of one environment",
        )

    def _digest(self, head: np.ndarray) -> int:
        """Of the last slots before `head`."""
        value = 0
        for e in self._envs:
            last = np.arange(max(0, head[e] - _CHECKED), head[e]) % self._slots
            for part in (self._kept, self._actions, self._rewards, self._ends):
                value = zlib.crc32(part[e, last].tobytes(), value)
        return value
