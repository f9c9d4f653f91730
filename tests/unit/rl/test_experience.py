"""What agents learn from, against a plain loop over the same steps."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf

from scaling import sample
from small_envs import Walk
from towerpack._core.errors import ConfigError
from towerpack._core.randomness import derive_seed
from towerpack.inference import Predictor
from towerpack.rl import A2C, DQN, MLP, PPO, DQNConfig, Evaluator, Experience, PPOConfig, make_envs

N, T, GAMMA, LAMBDA = 3, 8, 0.9, 0.7


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """An agent that has played two rollouts and learnt nothing, its trainer and its run."""
    run_dir = tmp_path_factory.mktemp("run")
    agent = PPO(
        Walk, network=MLP((8,)), num_envs=N, num_steps=T, batch_size=6, epochs=2, discount=GAMMA,
        gae_lambda=LAMBDA, learning_rate=0.0,
    )  # fmt: skip
    trainer = agent.train(
        total_steps=2 * N * T, epoch_steps=N * T, run_dir=run_dir, seed=3, monitors=[],
        callbacks=[Evaluator(Walk, 7, num_envs=3)],
    )  # fmt: skip
    return agent, trainer, run_dir


def test_the_old_name_of_reported_settings_works() -> None:
    class Source(Experience):
        told = {"agent.game": "chess"}  # noqa: RUF012

        def gather(self, poll: Any) -> None: ...

    source = Source(lambda seed: None, MLP(), "policy", output="q", batches=1, room=[1])  # type: ignore[arg-type,return-value]
    assert source.settings() == {"agent.game": "chess"}
    del Source.told
    assert source.settings() == {}


def test_rollouts_hold_advantages_of_what_was_played(trained: Any) -> None:
    agent, trainer, run_dir = trained
    assert trainer.global_step == 2 * 2 * (N * T // 6)
    observed, acted, advantages, returns, old = trainer.source.remaining(1)
    predict = Predictor(agent.model, run_dir, outputs=["policy/parameters", "value"])
    logits, values = predict(observed)
    shifted = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    np.testing.assert_allclose(old, shifted[np.arange(N * T), acted], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(returns, advantages + values, rtol=1e-5, atol=1e-6)

    # The same actions once more, in environments of the same seed, by the second rollout's steps.
    with make_envs(Walk, N, seed=derive_seed(3, "environments")) as envs:
        now = envs.reset()
        rng = np.random.default_rng(0)
        for _ in range(T):  # actions mean nothing here
            now = envs.step(rng.integers(2, size=N)).observations
        steps = []
        for t in range(T):
            np.testing.assert_array_equal(observed[t * N : (t + 1) * N], now)
            steps.append(envs.step(acted[t * N : (t + 1) * N]))
            now = steps[-1].observations
    expected = np.zeros([T, N])
    following = np.zeros(N)
    ends = {"terminated": 0, "truncated": 0}
    for t in reversed(range(T)):
        step = steps[t]
        reached = predict(step.final)[1] * ~step.terminated
        error = step.rewards + GAMMA * reached - values[t * N : (t + 1) * N]
        following = error + GAMMA * LAMBDA * ~(step.terminated | step.truncated) * following
        expected[t] = following
        ends = {name: ends[name] + getattr(step, name).sum() for name in ends}
    assert min(ends.values()) > 0
    np.testing.assert_allclose(advantages, expected.ravel(), rtol=1e-4, atol=1e-5)


def test_evaluation_counts_the_first_episodes_begun_however_long(trained: Any) -> None:
    _, trainer, _ = trained
    found = []
    seed = derive_seed(3, "Evaluator", "eval")
    for i, episodes in enumerate((3, 2, 2)):
        for episode in range(episodes):
            walk = Walk()
            walk.reset(seed=derive_seed(seed, "environment", i, episode) >> 32)
            found.append(walk.length * (walk.length + 1) / 2)
    for name, value in {"mean": np.mean(found), "std": np.std(found), "max": max(found)}.items():
        np.testing.assert_allclose(trainer.monitors.latest(f"eval/{name}"), value, rtol=1e-6)


class Scaled(MLP):
    def __call__(self, observation: tf.Tensor) -> tf.Tensor:
        return super().__call__(observation * 1e-3)


@pytest.mark.parametrize(
    ("space", "network"),
    [(gym.spaces.Box(-1.0, 1.0, (2,), np.float32), MLP((8,))), (None, Scaled((8, 8)))],
)
def test_the_host_computes_what_the_tower_does(space: Any, network: MLP, tmp_path: Path) -> None:
    agent = A2C(functools.partial(Walk, space), network=network, num_envs=2)
    trainer: Any = agent.train(total_steps=10, epoch_steps=10, run_dir=tmp_path, monitors=[])
    observations = np.array([[1.0, 0.5], [7.0, 0.1], [3.0, 0.9]], np.float32)
    tower = Predictor(agent.model, tmp_path, outputs="policy/parameters")(observations)
    np.testing.assert_allclose(trainer.source.policy()(observations), tower, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("epochs", sample([4, 1, 2]))
def test_a_finished_phase_stays_so_with_another_number_of_batches(
    epochs: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    common: dict[str, Any] = {
        "network": MLP((8,)), "num_envs": 2, "num_steps": 8, "batch_size": 8
    }  # fmt: skip
    run: dict[str, Any] = {"run_dir": tmp_path, "monitors": []}
    PPO(Walk, epochs=2, **common).train(total_steps=16, epoch_steps=16, **run)
    assert "in effect" not in caplog.text
    agent = PPO(Walk, epochs=epochs, clip=0.3, discount=0.9, **common)
    # In epochs of another length: what counts are steps.
    trainer: Any = agent.train(total_steps=64, epoch_steps=48, **run)
    assert trainer.complete and trainer.source.envs.steps == 64
    rows = [line.split() for line in caplog.text.partition("in effect\n")[2].splitlines()]
    told = {row[0]: row[1:3] for row in rows if len(row) > 3 and row[3] == "new"}
    expected = {"agent.discount": ["0.99", "0.9"], "clip": ["0.2", "0.3"]}
    if epochs != 2:
        expected["agent.epochs"] = ["2", str(epochs)]
    steps = {"steps_per_epoch": ["4", str(6 * epochs)]}
    assert told == {**expected, **steps}


def rewarded(factor: float) -> gym.Env[Any, Any]:
    return gym.wrappers.TransformReward(Walk(), lambda reward: reward * factor)


def test_another_environment_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    common: dict[str, Any] = {"network": MLP((8,)), "num_envs": 2, "num_steps": 8}
    for starts, (env, names) in enumerate(
        [
            (functools.partial(rewarded, 1.0), set()),
            (functools.partial(rewarded, 1.0), set()),
            (functools.partial(rewarded, 5.0), {"agent.env"}),
            (lambda: rewarded(5.0), {"agent.env"}),
            (lambda: Walk(), {"agent.env"}),
        ],
        start=1,
    ):
        caplog.clear()
        A2C(env, **common).train(
            total_steps=16 * starts, epoch_steps=16, run_dir=tmp_path, monitors=[]
        )
        rows = [line.split() for line in caplog.text.partition("in effect\n")[2].splitlines()]
        assert {row[0] for row in rows if row and row[-1] == "new"} == names


class Pictures(Walk):
    """Of three colours, which are no frames."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space: Any = gym.spaces.Box(0, 255, (3, 4, 5), np.uint8)

    def _observation(self) -> np.ndarray:
        return np.random.default_rng(self._time).integers(0, 255, (3, 4, 5), np.uint8)


def test_pictures_are_kept_whole_and_steps_before_learning_are_of_the_total(tmp_path: Path) -> None:
    agent = DQN(
        Pictures, network=MLP((8,)), num_envs=2, train_freq=4, learning_starts=40, buffer_size=200
    )
    trainer: Any = agent.train(total_steps=96, epoch_steps=32, run_dir=tmp_path, monitors=[])
    assert trainer.source.envs.steps == 96
    assert agent.frames == 1 and DQN("ALE/Pong-v5").frames == 4


@pytest.mark.parametrize("kind", [DQNConfig, PPOConfig, A2C.Config])
def test_settings_that_make_no_sense_are_refused(kind: Any) -> None:
    wrong: dict[type, list[Any]] = {
        bool: [1, "yes", None],
        int: [-1, 1.5, "1", True],
        float: [-0.1, np.nan, np.inf, "1", None],
        type(None): [1, "yes"],
    }
    for field in dataclasses.fields(kind):
        values = wrong[type(field.default)]
        if field.name in ("discount", "gae_lambda", "exploration_fraction", "exploration_final"):
            values = [*values, 1.1]
        if isinstance(field.default, int) and field.name not in ("frames", "learning_starts"):
            values = [*values, 0]
        for value in values:
            with pytest.raises(ConfigError, match=field.name):
                kind(**{field.name: value})
        kind(**{field.name: field.default})
    with pytest.raises(ConfigError, match=r"batch_size must be at most buffer_size .*, got 64"):
        DQNConfig(batch_size=64, buffer_size=32)
    with pytest.raises(ConfigError, match="total_steps and epoch_steps must be at least 1, got 0"):
        PPO(Walk).trainer(total_steps=0)
