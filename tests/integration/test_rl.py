"""Agents are ordinary runs: they learn, and go on exactly after whatever ends them."""

from __future__ import annotations

import functools
import gc
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from scaling import SCALE, sample
from small_envs import Walk
from small_training import Do, assert_same
from towerpack._core.errors import ConfigError, EnvError
from towerpack.rl import A2C, DQN, MLP, PPO, PPOConfig

EXAMPLES = Path(__file__).parents[2] / "examples" / "rl"
BOX = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)


@pytest.fixture(autouse=True, scope="module")
def nothing_is_left() -> Iterator[None]:
    yield
    gc.collect()  # Whole models and environments, which else a thread of a later test would free.


def ppo(**faults: Any) -> PPO:
    env = functools.partial(Walk, BOX, faults.get("faults"))
    return PPO(env, network=MLP((8,)), num_envs=2, num_steps=8, batch_size=4, epochs=2, anneal=True)


def dqn(**faults: Any) -> DQN:
    return DQN(
        functools.partial(Walk, None, faults.get("faults")),
        network=MLP((8,)), num_envs=2,
        train_freq=4, gradient_steps=5, batch_size=8, buffer_size=120, n_step=2,
        learning_starts=24, target_update=16, priority=0.6, dueling=True,
    )  # fmt: skip


def train(agent: Any, run_dir: Path, *callbacks: Any) -> Any:
    return agent.train(
        total_steps=96, epoch_steps=32, run_dir=run_dir, seed=11, monitors=[], callbacks=callbacks
    )


def outcome(trainer: Any) -> dict[str, np.ndarray]:
    """Weights, and where the environments stand."""
    envs = trainer.source.envs
    return {**trainer.get_weights(), "observations": envs.observations,
            "steps": np.array(envs.steps), **_memory(trainer.source)}  # fmt: skip


def _memory(source: Any) -> dict[str, np.ndarray]:
    memory = getattr(source, "replay", None)
    if memory is None:
        return {}
    return memory.sample(np.random.default_rng(0), 64)._asdict()


@pytest.mark.parametrize("make", [ppo, dqn], ids=["ppo", "dqn"])
def test_ended_anywhere_it_goes_on_bit_equal(make: Any, tmp_path: Path) -> None:
    undisturbed = outcome(train(make(), tmp_path / "undisturbed"))
    run_dir = tmp_path / "run"

    if make is ppo or SCALE == 1:
        # While an environment is stepped, in the middle of a rollout: saved as it was before that.
        with pytest.raises(SystemExit):
            train(make(faults={21: "signal"}), run_dir)
    if make is dqn or SCALE == 1:
        # In the hooks of a step: what came since the last checkpoint is lost, and done again.
        with pytest.raises(ZeroDivisionError):
            train(make(), run_dir, Do("after_step", lambda _: 1 / 0, 21))
    if make is ppo or SCALE == 1:
        # Between two steps of a phase: it is saved with what is left of its batches.
        stop = Do("trigger_step", lambda callback: callback.trainer.request_stop("enough"), 27)
        stop.next_stop = lambda step: 27 if step < 27 else None
        assert train(make(), run_dir, stop).global_step == 27
    assert_same(undisturbed, outcome(train(make(), run_dir)))


# The last number: a mean return, which a policy that has learnt nothing has not; Pong's are steps.
SHORT = [
    ("ppo_cartpole", 15_000, 100.0),
    ("pong", 8_192, 8_192.0),
    ("dqn_cartpole", 1_100, 8.0),
    ("ppo_pendulum", 2_048, -1900.0),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "steps", "lowest"), sample(SHORT))
def test_examples_run(name: str, steps: int, lowest: float, tmp_path: Path) -> None:
    main = runpy.run_path(str(EXAMPLES / f"{name}.py"))["main"]
    assert main(["--steps", str(steps), "--out", str(tmp_path)]) >= lowest
    if name == "pong":
        assert (tmp_path / "curve.png").stat().st_size > 5_000


def test_a_reward_that_is_not_finite_ends_the_run_and_loses_nothing(tmp_path: Path) -> None:
    small: Any = {"network": MLP((8,)), "num_envs": 2}
    agent = A2C(functools.partial(Walk, None, {40: "nan"}), **small)
    with pytest.raises(EnvError, match="must return finite numbers") as caught:
        train(agent, tmp_path)
    assert "episode" in str(caught.value)
    again = train(A2C(Walk, **small), tmp_path)
    assert again.complete and again.source.envs.steps >= 96


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: DQN(functools.partial(Walk, BOX)),
            "for DQN must be of type Discrete, got Box",
        ),
        (
            lambda: PPO(functools.partial(Walk, gym.spaces.MultiBinary(2))),
            "for PPO must be of type Discrete or Box, got Multi",
        ),
        (lambda: DQN(Walk, PPOConfig()), "config of DQN must be a DQNConfig, got PPOConfig"),
        (lambda: train(DQN(Walk), "s3://bucket/run"), "replay memory is not uploaded"),
        (lambda: A2C(Walk, num_step=3), "no setting 'num_step'"),
        (lambda: PPO(Walk, num_steps=100, batch_size=256), "batch_size must divide the 800 rows"),
        (lambda: PPO("CartPole-v7"), "CartPole-v7"),
    ],
)
def test_what_cannot_be_is_refused_at_once(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        make()
    assert caught.value.fix
