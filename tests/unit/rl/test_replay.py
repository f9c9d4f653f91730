"""The replay memory draws what a plain list of transitions holds, and goes on after a restart."""

from __future__ import annotations

import itertools
import os
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from towerpack import ConfigError, NumericsError, StateError
from towerpack.rl import ReplayMemory

DISCOUNT = 0.9
FORMS: dict[str, dict[str, Any]] = {
    "plain": {"capacity": 60, "num_envs": 3},
    "one environment": {"capacity": 25, "num_envs": 1, "slack": 0},
    "frames": {"capacity": 90, "num_envs": 2, "frames": 4},
    "frames, n-step": {"capacity": 90, "num_envs": 2, "frames": 3, "n_step": 4},
    "n-step, priorities": {"capacity": 60, "num_envs": 2, "n_step": 3, "priority": 0.6},
    "frames, priorities": {"capacity": 70, "num_envs": 1, "frames": 2, "priority": 1.0},
}


class Transition(NamedTuple):
    observation: np.ndarray
    action: int
    reward: float
    discount: float
    following: np.ndarray


class Play:
    """Episodes of random length whose numbers tell environment and step; the same every time.

    Also the plain list: for each environment, its slots, in which None is no transition.
    """

    def __init__(self, *, num_envs: int, frames: int = 1, n_step: int = 1, **_: Any) -> None:
        self.rng = np.random.default_rng(7)
        self.num_envs, self.frames, self.n_step = num_envs, frames, n_step
        self.step = np.zeros(num_envs, int)
        self.slots: list[list[Transition | None]] = [[] for _ in range(num_envs)]
        self.running: list[list[tuple[np.ndarray, int, float]]] = [[] for _ in range(num_envs)]
        self.fresh = [True] * num_envs
        self.now = np.stack([self.begin(e) for e in range(num_envs)])

    def frame(self, e: int) -> np.ndarray:
        self.step[e] += 1
        return np.array([e, self.step[e]], np.float32)

    def begin(self, e: int) -> np.ndarray:
        first = np.stack([self.frame(e) for _ in range(self.frames)])
        self.slots[e] += [None] * (self.frames - 1)
        return first if self.frames > 1 else first[0]

    def after(self, e: int, observation: np.ndarray) -> np.ndarray:
        new = self.frame(e)
        return np.concatenate([observation[1:], new[None]]) if self.frames > 1 else new

    def __iter__(self) -> Iterator[tuple[np.ndarray, ...]]:
        n = self.num_envs
        while True:
            before, actions = self.now, self.rng.integers(0, 5, n)
            rewards = self.rng.normal(size=n).astype(np.float32)
            ends = self.rng.random(n)
            terminated, truncated = ends < 0.1, (ends > 0.1) & (ends < 0.2)
            final = np.stack([self.after(e, before[e]) for e in range(n)])
            self.now = final.copy()
            for e in range(n):
                self.running[e].append((before[e], int(actions[e]), float(rewards[e])))
                self.slots[e].append(None)  # known n steps later
                over = bool(terminated[e] | truncated[e])
                self.fresh[e] = over
                self.learn(e, final[e], over=over, terminated=bool(terminated[e]))
                if over:
                    self.slots[e].append(None)
                    self.now[e] = self.begin(e)
            yield before, actions, rewards, terminated, truncated, final

    def learn(self, e: int, following: np.ndarray, *, over: bool, terminated: bool) -> None:
        run = self.running[e]
        while run and (len(run) >= self.n_step or over):
            observation, action, _ = run[0]
            gains = [DISCOUNT**i * reward for i, (_, _, reward) in enumerate(run)]
            discount = 0.0 if terminated else DISCOUNT ** len(run)
            made = Transition(observation, action, sum(gains), discount, following)
            self.slots[e][len(self.slots[e]) - len(run)] = made
            run.pop(0)

    def drawable(self, memory: dict[str, Any]) -> dict[tuple[int, int], Transition]:
        """What the memory must hold, by environment and number of the slot."""
        window = -(-memory["capacity"] // self.num_envs)
        found: dict[tuple[int, int], Transition] = {}
        for e, all_slots in enumerate(self.slots):
            # Frames that an episode begins with are taken with its first step.
            head = len(all_slots) - (self.frames - 1 if self.fresh[e] else 0)
            for place in range(max(0, head - window) + self.frames - 1, head - self.n_step):
                if all_slots[place] is not None:
                    found[e, int(all_slots[place].observation.reshape(-1)[-1])] = all_slots[place]
        return found


def memory(path: Path, form: dict[str, Any]) -> ReplayMemory:
    shape = (form["frames"], 2) if form.get("frames", 1) > 1 else (2,)
    space = Box(-np.inf, np.inf, shape, np.float32)
    return ReplayMemory(
        path, observation_space=space, action_space=Discrete(5), discount=DISCOUNT, **form
    )


def same(one: Any, other: Any) -> None:
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", FORMS)
def test_what_is_drawn_is_what_a_list_holds(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    play, replay, rng = Play(**form), memory(tmp_path, form), np.random.default_rng(0)
    for count, moves in enumerate(play):
        replay.append(*moves)
        if count % 10 in (5, 6):
            expected = play.drawable(form)
            assert len(replay) == len(expected)
            if expected:
                sample = replay.sample(rng, 16 * len(expected))
                last = sample.observations.reshape(len(sample.actions), -1)[:, -2:].astype(int)
                keys = list(map(tuple, last))
                assert len(set(keys)) > 0.98 * len(expected)  # each missed with probability e^-16
                wanted = zip(*(expected[key] for key in keys), strict=True)
                for got, own in zip(sample[:5], wanted, strict=True):
                    np.testing.assert_allclose(got, np.stack(own), rtol=1e-5, atol=1e-6)
        if count == 120:
            return


@pytest.mark.parametrize("name", FORMS)
def test_a_killed_process_is_gone_on_from_its_last_state(name: str, tmp_path: Path) -> None:
    form = {"slack": 60, **FORMS[name]}
    moves = list(itertools.islice(Play(**form), 110))
    at, more = 100, 10 if form["slack"] else 0
    if not os.fork():  # it needs no TensorFlow, which a new process would import
        replay = memory(tmp_path / "killed", form)
        for step in moves[: at + more]:
            replay.append(*step)
            if step is moves[at - 1]:
                (tmp_path / "state").write_bytes(pickle.dumps(replay.state()))
        os.kill(os.getpid(), signal.SIGKILL)
    os.wait()
    resumed, whole = memory(tmp_path / "killed", form), memory(tmp_path / "whole", form)
    for step in moves[:at]:
        whole.append(*step)
    resumed.restore(pickle.loads((tmp_path / "state").read_bytes()))
    for step in moves[at:]:
        one, other = (each.sample(np.random.default_rng(5), 50) for each in (resumed, whole))
        same(one, other)
        for each in (resumed, whole):
            if "priority" in form:
                each.update_priorities(one.indices, one.rewards)
            each.append(*step)


def test_priorities_decide_how_often_and_weights_make_up_for_it(tmp_path: Path) -> None:
    form = FORMS["n-step, priorities"]
    replay, rng = memory(tmp_path, form), np.random.default_rng(0)
    for step in itertools.islice(Play(**form), 100):
        replay.append(*step)
    slots = np.unique(replay.sample(rng, 4000).indices)
    errors = rng.exponential(size=len(slots))
    replay.update_priorities(slots, -errors)
    sample = replay.sample(rng, 200_000, beta=1.0)
    shares = (errors + 1e-6) ** 0.6 / ((errors + 1e-6) ** 0.6).sum()
    places = np.searchsorted(slots, sample.indices)
    counts = np.bincount(places, minlength=len(slots))
    np.testing.assert_allclose(counts / 200_000, shares, atol=1e-4)
    np.testing.assert_allclose(sample.weights, shares.min() / shares[places], rtol=1e-4)
    replay.append(*step)
    replay.update_priorities(sample.indices, np.ones(200_000))  # also of what has gone
    assert len(np.unique(replay.sample(rng, 4000).indices)) == len(replay)


def test_a_new_row_is_drawn_as_often_as_the_most_surprising_one(tmp_path: Path) -> None:
    form = {"capacity": 60, "num_envs": 1, "priority": 1.0}
    replay, rng, steps = memory(tmp_path, form), np.random.default_rng(0), iter(Play(num_envs=1))
    for step in itertools.islice(steps, 20):
        replay.append(*step)
    slots = np.unique(replay.sample(rng, 4000).indices)
    replay.update_priorities(slots, np.where(slots == slots[3], 8.0, 1.0))
    replay.append(*next(steps))  # which makes the one before it whole
    counts = np.unique_counts(replay.sample(rng, 20_000).indices)
    [new] = np.flatnonzero(~np.isin(counts.values, slots))
    largest = counts.counts[counts.values == slots[3]][0]
    assert 0.85 < counts.counts[new] / largest < 1.15


def test_a_state_that_the_files_no_longer_hold_is_refused(tmp_path: Path) -> None:
    form = {**FORMS["plain"], "slack": 30}
    replay, moves = memory(tmp_path, form), list(itertools.islice(Play(**form), 80))
    with pytest.raises(StateError, match=r"needs more than .* slots to draw"):
        replay.sample(np.random.default_rng(0), 1)
    for step in moves[:60]:
        replay.append(*step)
    state = replay.state()
    for step in moves[60:]:
        late = replay.state()
        replay.append(*step)
    with pytest.raises(StateError, match="larger slack"):
        replay.restore(state)
    with pytest.raises(StateError, match="do not contain the data of this state"):
        memory(tmp_path / "empty", form).restore(state)
    with pytest.raises(StateError, match="must be the same as in the saved state"):
        memory(tmp_path / "more", {**form, "priority": 1.0}).restore(state)
    with pytest.raises(ConfigError, match="belong to a replay memory with other settings"):
        memory(tmp_path, {**form, "capacity": 300})
    # The files keep their size: what was written after a state may be more now.
    smaller = memory(tmp_path, {**form, "capacity": 9, "slack": 0})
    smaller.restore(late)
    assert len(smaller.sample(np.random.default_rng(0), 8).rewards) == 8
    with pytest.raises(NumericsError, match="1 of 2"):
        memory(tmp_path / "nan", {**form, "priority": 1.0}).update_priorities(
            np.arange(2), np.array([1.0, np.nan])
        )
    with pytest.raises(ConfigError, match="GB free"):
        memory(tmp_path / "large", {**form, "capacity": 10**14})
    with pytest.raises(ConfigError, match="must have 2 frames on the first axis"):
        ReplayMemory(
            tmp_path / "stacks",
            observation_space=Box(0, 1, (3,)),
            action_space=Discrete(2),
            **{**form, "frames": 2},
        )
    with pytest.raises(ConfigError, match="capacity of at least 9"):
        memory(tmp_path / "small", {**form, "capacity": 8})


def test_observations_that_are_no_stack_of_frames_are_refused(tmp_path: Path) -> None:
    form = FORMS["frames"]
    replay, moves = memory(tmp_path, form), list(itertools.islice(Play(**form), 2))
    with pytest.raises(ConfigError, match="frames=1 to store"):
        for observations, *rest in moves * 4:
            replay.append(observations[:, ::-1], *rest)
