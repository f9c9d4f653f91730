"""PPO plays Pong from pictures.

    python examples/rl/pong.py [--steps 10000000] [--seed 0] [--out runs/pong]

The settings are those of Schulman et al. 2017 for Atari: 8 games, 10 million steps (40 million
frames), after which the paper has a mean of 20.7 points; the best is 21. That is a training for a
GPU. Some minutes show that the games run and what the returns do: `curve.png` in the run. The same
command continues a run that was ended; `--steps` may grow.
On 2026-11-23, two cores shared with other work (load 4 to 12): 81,920 steps in 17 minutes, 350 s
of processor time; the mean return stays at -20.5, as is usual for so few steps. 16,384 steps were
ended by a signal and continued. The full training has not been run.
"""

import argparse
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from towerpack.rl import PPO, Atari


def draw(history, path):
    """Draw returns over environment steps as a PNG."""
    figure, axes = plt.subplots(figsize=(6, 3.5), layout="constrained")
    axes.plot([x for x, _ in history], [y for _, y in history], marker="o", markersize=3)
    axes.set(xlabel="environment steps", ylabel="return, mean of 100 episodes", title="Pong")
    axes.set_ylim(-21.5, 21.5)
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=110)


def main(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10_000_000)
    parser.add_argument("--epoch", type=int, default=20_000, help="steps between two points")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", default="runs/pong")
    args = parser.parse_args(argv)
    agent = PPO(
        Atari("Pong", repeat_action_probability=0.0), num_envs=8, num_steps=128, batch_size=256,
        epochs=4, learning_rate=2.5e-4, discount=0.99, gae_lambda=0.95, clip=0.1,
        entropy_weight=0.01, anneal=True)  # fmt: skip
    trainer = agent.train(
        total_steps=args.steps, epoch_steps=min(args.epoch, args.steps), run_dir=args.out,
        seed=args.seed)  # fmt: skip
    played = "episode/return" in trainer.monitors.names()  # A game takes about 900 steps.
    history = trainer.monitors.history("episode/return") if played else []
    steps = dict(trainer.monitors.history("env_steps"))
    draw([(steps[at], value) for at, value in history], Path(trainer.run_dir) / "curve.png")
    print(f"mean return of the last episodes: {history[-1][1] if history else float('nan'):.1f}")
    return steps[trainer.global_step]


if __name__ == "__main__":
    main()
