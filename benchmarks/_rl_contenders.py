"""Contenders of `rl.py`: `python _rl_contenders.py PART ours|sb3 [--quick]`.

Each builds a function that does some units of work, which is called again and again between "go"
and the answer. Neither library is imported by the other's process.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from _measure import Gate

FRAMES, BATCH = 40_000, 32
QUICK = "--quick" in sys.argv
Work = tuple[int, Callable[[], Any]]
"""Units in one call, and the call."""


def repeat(work: Callable[[], Any]) -> Callable[[], None]:
    def many() -> None:
        for _ in range(100):
            work()

    return many


def random_actions(count: int, num_envs: int) -> Iterator[np.ndarray]:
    return cycle(np.random.default_rng(0).integers(0, count, (1000, num_envs)))


def our_envs(name: str, num_envs: int, **options: Any) -> Work:
    from towerpack.rl import make_envs

    envs = make_envs(name, num_envs, seed=0, **options)
    actions = random_actions(envs.action_space.n, num_envs)
    envs.reset()
    return 100 * num_envs, repeat(lambda: envs.step(next(actions)))


def their_envs(name: str, num_envs: int) -> Work:
    from stable_baselines3.common.env_util import make_atari_env, make_vec_env
    from stable_baselines3.common.vec_env import VecFrameStack

    if "Pong" in name:
        import ale_py
        import gymnasium

        gymnasium.register_envs(ale_py)
        envs: Any = VecFrameStack(make_atari_env(name, num_envs), 4, channels_order="first")
    else:
        envs = make_vec_env(name, num_envs)
    actions = random_actions(envs.action_space.n, num_envs)
    envs.reset()
    return 100 * num_envs, repeat(lambda: envs.step(next(actions)))


def spaces(kind: str) -> tuple[Any, Any]:
    from gymnasium.spaces import Box, Discrete

    if kind == "atari":
        return Box(0, 255, (4, 84, 84), np.uint8), Discrete(6)
    return Box(-1, 1, (4,), np.float32), Discrete(2)


def filled(kind: str, slots: int, directory: str, num_envs: int = 4) -> Any:
    """A memory of ours whose ring, a tenth longer than its slots, has gone round."""
    from towerpack.rl import ReplayMemory

    space, actions = spaces(kind)
    memory = ReplayMemory(
        directory,
        capacity=slots,
        num_envs=num_envs,
        observation_space=space,
        action_space=actions,
        frames=4 if kind == "atari" else 1,
    )
    now = np.zeros((num_envs, *space.shape), space.dtype)
    none, rewards = np.zeros(num_envs, bool), np.ones(num_envs)
    for count in range(int(slots * 1.1) // num_envs + 10):
        if kind == "atari":
            now = np.concatenate([now[:, 1:], np.full_like(now[:, :1], count % 251)], axis=1)
        memory.append(now, rewards, rewards, none, none, now)
    return memory


def our_replay(kind: str, batch: int) -> Work:
    slots = 2000 if QUICK else FRAMES
    memory = filled(kind, slots, tempfile.mkdtemp(dir=os.environ["RL_SCRATCH"]))
    rng = np.random.default_rng(0)
    return 100, repeat(lambda: memory.sample(rng, batch))


def their_replay(kind: str, batch: int) -> Work:
    from stable_baselines3.common.buffers import ReplayBuffer

    num_envs, slots = 4, 2000 if QUICK else FRAMES
    space, actions = spaces(kind)
    memory = ReplayBuffer(slots, space, actions, device="cpu", n_envs=num_envs)
    now = np.ones((num_envs, *space.shape), space.dtype)
    none, rewards = np.zeros(num_envs, bool), np.ones(num_envs)
    for _ in range(slots // num_envs + 10):
        memory.add(now, now, rewards, rewards, none, [{}] * num_envs)
    return 100, repeat(lambda: memory.sample(batch))


def million() -> None:
    """Fill a memory of 1 M frames, and print what it takes."""
    import json
    import time

    slots = 20_000 if QUICK else 1_000_000
    directory = tempfile.mkdtemp(dir=os.environ["RL_SCRATCH"])
    filled("atari", 2000, tempfile.mkdtemp(dir=os.environ["RL_SCRATCH"]))  # all is imported
    before, began = anonymous(), time.perf_counter()
    memory = filled("atari", slots, directory)
    append_s, after = time.perf_counter() - began, anonymous()
    rng = np.random.default_rng(0)
    for _ in range(100):
        memory.sample(rng, BATCH)
    began = time.perf_counter()
    for _ in range(1000):
        memory.sample(rng, BATCH)
    sample_s = (time.perf_counter() - began) / 1000
    taken = sum(file.stat().st_blocks * 512 for file in Path(directory).iterdir())
    figures = {"frames": slots, "disk_gb": taken / 1e9, "append_us": append_s / slots * 1e6}
    print(json.dumps({**figures, "grown_mb": (after - before) / 1e6, "sample_us": sample_s * 1e6}))


def anonymous() -> int:
    """Memory of this process that is no file's, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


PARTS: dict[str, dict[str, Callable[[], Work]]] = {
    "envs-cartpole": {
        "ours": lambda: our_envs("CartPole-v1", 8),
        "sb3": lambda: their_envs("CartPole-v1", 8),
    },
    "envs-pong": {
        "ours": lambda: our_envs("ALE/Pong-v5", 4, repeat_action_probability=0.0),
        "sb3": lambda: their_envs("PongNoFrameskip-v4", 4),
    },
    "replay-atari": {
        "ours": lambda: our_replay("atari", BATCH),
        "sb3": lambda: their_replay("atari", BATCH),
    },
    "replay-atari-256": {
        "ours": lambda: our_replay("atari", 8 * BATCH),
        "sb3": lambda: their_replay("atari", 8 * BATCH),
    },
    "replay-cartpole": {
        "ours": lambda: our_replay("vectors", 64),
        "sb3": lambda: their_replay("vectors", 64),
    },
}


def main() -> None:
    part, who = sys.argv[1:3]
    if part == "million":
        million()
        return
    if who == "sb3":
        import torch

        torch.set_num_threads(1)  # its fast setting for small networks
    units, work = PARTS[part][who]()
    gate = Gate(units)
    going = gate.open()
    while going:
        work()
        going = gate.epoch_done(lambda: 0.0)


if __name__ == "__main__":
    main()
