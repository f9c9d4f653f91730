"""What both sides of the agents' part of `rl.py` train: settings by their names here."""

from __future__ import annotations

# Of Stable-Baselines3's Zoo; DQN's for Pong with one gradient step for 4 environment steps.
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
        "env": "ALE/Pong-v5", "epoch": 1024, "num_envs": 8, "num_steps": 128, "batch_size": 256,
        "epochs": 4, "discount": 0.99, "gae_lambda": 0.95, "learning_rate": 2.5e-4, "clip": 0.1},
    "dqn-pong": {
        "env": "ALE/Pong-v5", "epoch": 512, "num_envs": 1, "train_freq": 4, "gradient_steps": 1,
        "batch_size": 32, "buffer_size": 10_000, "learning_starts": 512, "target_update": 1000,
        "discount": 0.99, "learning_rate": 1e-4, "exploration_final": 0.01},
}  # fmt: skip
