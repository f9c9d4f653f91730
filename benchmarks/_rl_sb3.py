"""Stable-Baselines3 in `rl.py`: `python _rl_sb3.py CASE`."""

from __future__ import annotations

import sys

import torch
from _measure import Gate
from _rl_settings import CASES
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_atari_env, make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack

torch.set_num_threads(1)  # with more it is three times slower


class Turns(BaseCallback):
    """A turn ends with so many steps."""

    def __init__(self, gate: Gate, epoch: int) -> None:
        super().__init__()
        self._gate, self._epoch = gate, epoch

    def _on_training_start(self) -> None:
        self._gate.open()

    def _on_step(self) -> bool:
        if self.num_timesteps % self._epoch:
            return True
        returns = [episode["r"] for episode in self.model.ep_info_buffer]
        return self._gate.epoch_done(lambda: sum(returns) / max(1, len(returns)))


def main(case: str) -> None:
    of = CASES[case]
    pong = "Pong" in of["env"]
    if pong:
        env = VecFrameStack(make_atari_env(of["env"], of["num_envs"], seed=0), 4)
    else:
        env = make_vec_env(of["env"], of["num_envs"], seed=0)
    shared = {"batch_size": of["batch_size"], "gamma": of["discount"], "seed": 0}
    shared |= {"learning_rate": of["learning_rate"]}
    policy = "CnnPolicy" if pong else "MlpPolicy"
    if case.startswith("ppo"):
        agent = PPO(
            policy, env, n_steps=of["num_steps"], n_epochs=of["epochs"], clip_range=of["clip"],
            gae_lambda=of["gae_lambda"], **shared)  # fmt: skip
    else:
        agent = DQN(
            policy, env, buffer_size=of["buffer_size"], learning_starts=of["learning_starts"],
            train_freq=of["train_freq"], gradient_steps=of["gradient_steps"],
            target_update_interval=of["target_update"],
            exploration_final_eps=of["exploration_final"], exploration_fraction=1e-5,
            policy_kwargs={} if pong else {"net_arch": [256, 256]}, **shared)  # fmt: skip
    agent.learn(10**9, callback=Turns(Gate(of["epoch"]), of["epoch"]))


if __name__ == "__main__":
    main(*sys.argv[1:])
