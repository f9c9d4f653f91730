"""Costs of agents by value, against NumPy: a sign or a factor that is wrong shows here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from small_envs import Walk
from towerpack.rl import A2C, DQN, MLP, PPO
from towerpack.tower import TowerFunction

CLIP, VALUE, ENTROPY = 0.2, 0.7, 0.3


@pytest.mark.parametrize("kind", [PPO, A2C])
@pytest.mark.parametrize("normalize", [True, False])
def test_the_cost_of_a_fixed_batch(kind: Any, normalize: bool) -> None:
    own: dict[str, Any] = {"batch_size": 6, "clip": CLIP} if kind is PPO else {}
    agent = kind(
        Walk, network=MLP((8,)), num_envs=2, num_steps=3, normalize=normalize, value_weight=VALUE,
        entropy_weight=ENTROPY, **own,
    )  # fmt: skip
    tower = TowerFunction(agent.model.build_graph, agent.model.inputs())
    trace = tower.trace(is_training=True)
    rng = np.random.default_rng(4)
    observation = rng.normal(size=(6, 2)).astype(np.float32)
    action = np.array([0, 1, 1, 0, 1, 0])
    advantage = np.array([2.0, -1.0, 1.5, -1.2, 0.3, -0.4], np.float32)
    returns = rng.normal(size=6).astype(np.float32)
    outputs = ["policy/parameters", "value"]
    look, names = trace.function(outputs)
    assert names == ["observation"]
    logits, value = (np.asarray(x) for x in look(observation))
    log_probs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    log_prob = log_probs[range(6), action]
    # Ratios on both sides of the clip, with advantages of both signs.
    old = (log_prob - np.array([0.5, 0.5, -0.5, -0.5, 0.1, -0.1])).astype(np.float32)
    used = (advantage - advantage.mean()) / advantage.std() if normalize else advantage
    assert {*np.sign(used[:2])} == {*np.sign(used[2:4])} == {-1.0, 1.0}
    ratio = np.exp(log_prob - old)
    clipped = np.minimum(ratio * used, np.clip(ratio, 1 - CLIP, 1 + CLIP) * used)
    policy = -np.mean(clipped if kind is PPO else log_prob * used)
    entropy = -np.mean((np.exp(log_probs) * log_probs).sum(1))
    expected = policy + VALUE * np.mean((returns - value) ** 2) - ENTROPY * entropy
    cost, order = trace.function(["cost"])
    given = {
        "observation": observation, "action": action, "advantage": advantage, "return": returns,
        "old_log_prob": old,
    }  # fmt: skip
    found = cost(*(given[name] for name in order))[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4)


class Blind(Walk):
    """All observations are equal, so the greedy action is always the same. Notes the actions."""

    taken: list[int]

    def __init__(self) -> None:
        super().__init__(gym.spaces.Discrete(1000))

    def _observation(self) -> np.ndarray:
        return np.zeros(2, np.float32)

    def step(self, action: Any) -> Any:
        Blind.taken.append(int(action))
        return super().step(action)


def test_exploration_falls_with_the_steps_of_the_environment(tmp_path: Path) -> None:
    Blind.taken = []
    agent = DQN(
        Blind, network=MLP((4,)), num_envs=1, learning_starts=64, batch_size=8, buffer_size=64,
        train_freq=50, learning_rate=0.0, exploration_fraction=0.5, exploration_final=0.2,
    )  # fmt: skip
    agent.train(total_steps=4000, epoch_steps=4000, run_dir=tmp_path, monitors=[], seed=1)
    taken = np.array(Blind.taken[:4000])
    greedy = np.bincount(taken).argmax()
    random = (taken != greedy).reshape(8, 500).mean(1)
    np.testing.assert_allclose(random, [0.9, 0.7, 0.5, 0.3, *[0.2] * 4], atol=0.06)
