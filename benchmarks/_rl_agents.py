"""Agents in `rl.py`: `python _rl_agents.py CASE ours|sb3`; a step is one of an environment.

`python _rl_agents.py solve ours|sb3 SEED` trains PPO on CartPole until it is solved.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from _measure import Gate

PONG = "PongNoFrameskip-v4"  # whose frames its own wrappers skip
# Of Stable-Baselines3's Zoo, by our names; its DQN is not double, and explores as little as ours.
CASES: dict[str, dict] = {
    "ppo-cartpole": {
        "env": "CartPole-v1", "epoch": 8192, "num_envs": 8, "num_steps": 32, "batch_size": 256,
        "epochs": 20, "discount": 0.98, "gae_lambda": 0.8, "learning_rate": 1e-3, "clip": 0.2},
    "dqn-cartpole": {
        "env": "CartPole-v1", "epoch": 2048, "num_envs": 1, "train_freq": 256,
        "gradient_steps": 128, "batch_size": 64, "buffer_size": 100_000, "learning_starts": 1000,
        "target_update": 10, "discount": 0.99, "learning_rate": 2.3e-3,
        "exploration_final": 0.04},
    "ppo-pong": {
        "env": PONG, "epoch": 1024, "num_envs": 8, "num_steps": 128, "batch_size": 256,
        "epochs": 4, "discount": 0.99, "gae_lambda": 0.95, "learning_rate": 2.5e-4, "clip": 0.1},
    "dqn-pong": {
        "env": PONG, "epoch": 512, "num_envs": 1, "train_freq": 4, "gradient_steps": 1,
        "batch_size": 32, "buffer_size": 10_000, "learning_starts": 512, "target_update": 1000,
        "discount": 0.99, "learning_rate": 1e-4, "exploration_final": 0.01},
}  # fmt: skip
CASES["solve"] = {**CASES["ppo-cartpole"], "epoch": 2048}


class Solve:
    """Ends a training once the last hundred episodes have a mean of 475, and prints when."""

    def __init__(self, steps: int) -> None:
        self._steps, self._epochs = steps, 0
        self._began = time.perf_counter()

    def open(self) -> None:
        pass

    def epoch_done(self, mean: Callable[[], float]) -> bool:
        self._epochs += 1
        seconds, steps = time.perf_counter() - self._began, self._epochs * self._steps
        if mean() < 475 and steps < 500_000:
            return True
        print(json.dumps({"seconds": seconds, "steps": steps, "mean": mean()}))
        return False


def ours(case: str, settings: dict[str, Any], seed: int) -> None:
    from towerpack.callbacks import Callback
    from towerpack.rl import DQN, PPO, Atari
    from towerpack.training import StopTraining

    class Turns(Callback):
        """A turn ends with an epoch."""

        def before_train(self) -> None:
            gate.open()

        def trigger(self) -> None:
            monitors = self.trainer.monitors
            seen = "episode/return" in monitors.names()
            if not gate.epoch_done(lambda: monitors.latest("episode/return") if seen else 0.0):
                raise StopTraining

    env, epoch = settings.pop("env"), settings.pop("epoch")
    if env == PONG:
        env = Atari("Pong", repeat_action_probability=0.0)
    if case.startswith("dqn"):
        settings |= {"double": False, "exploration_fraction": 1e-5}
    gate = (Solve if case == "solve" else Gate)(epoch)
    agent = (DQN if case.startswith("dqn") else PPO)(env, **settings)
    with tempfile.TemporaryDirectory() as directory:
        agent.train(
            total_steps=10**9, epoch_steps=epoch, run_dir=directory, seed=seed, monitors=[],
            callbacks=[Turns()])  # fmt: skip


def sb3(case: str, of: dict[str, Any], seed: int) -> None:
    import ale_py
    import gymnasium
    import torch
    from stable_baselines3 import DQN, PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.vec_env import VecFrameStack

    gymnasium.register_envs(ale_py)
    torch.set_num_threads(1)  # with more it is three times slower

    class Turns(BaseCallback):
        """A turn ends with so many steps."""

        def _on_training_start(self) -> None:
            gate.open()

        def _on_step(self) -> bool:
            if self.num_timesteps % of["epoch"]:
                return True
            returns = [episode["r"] for episode in self.model.ep_info_buffer]
            return gate.epoch_done(lambda: sum(returns) / max(1, len(returns)))

    gate = (Solve if case == "solve" else Gate)(of["epoch"])
    pong = of["env"] == PONG
    make = make_atari_env if pong else make_vec_env
    env = make(of["env"], of["num_envs"], seed=seed)
    policy = "CnnPolicy" if pong else "MlpPolicy"
    shared = {"batch_size": of["batch_size"], "gamma": of["discount"], "seed": seed}
    shared |= {"learning_rate": of["learning_rate"], "env": VecFrameStack(env, 4) if pong else env}
    if not case.startswith("dqn"):
        agent: Any = PPO(
            policy, n_steps=of["num_steps"], n_epochs=of["epochs"], clip_range=of["clip"],
            gae_lambda=of["gae_lambda"], **shared)  # fmt: skip
    else:
        agent = DQN(
            policy, buffer_size=of["buffer_size"], learning_starts=of["learning_starts"],
            train_freq=of["train_freq"], gradient_steps=of["gradient_steps"],
            target_update_interval=of["target_update"], exploration_fraction=1e-5,
            exploration_final_eps=of["exploration_final"],
            policy_kwargs={} if pong else {"net_arch": [256, 256]}, **shared)  # fmt: skip
    agent.learn(10**9, callback=Turns())


def main(case: str, who: str, seed: str = "0", *_: str) -> None:
    {"ours": ours, "sb3": sb3}[who](case, dict(CASES[case]), int(seed) if case == "solve" else 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
