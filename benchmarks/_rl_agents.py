"""Our side of the agents in `rl.py`: `python _rl_agents.py CASE`."""

from __future__ import annotations

import sys
import tempfile

from _measure import Gate
from _rl_settings import CASES

from towerpack.callbacks import Callback
from towerpack.rl import DQN, PPO
from towerpack.training import StopTraining


class Turns(Callback):
    """A turn ends with an epoch."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    def before_train(self) -> None:
        self._gate.open()

    def trigger(self) -> None:
        monitors = self.trainer.monitors
        seen = "episode/return" in monitors.names()
        if not self._gate.epoch_done(lambda: monitors.latest("episode/return") if seen else 0.0):
            raise StopTraining


def main(case: str) -> None:
    settings: dict = dict(CASES[case])
    env, epoch = settings.pop("env"), settings.pop("epoch")
    if case.startswith("dqn"):
        settings |= {"double": False, "exploration_fraction": 1e-5}  # as there
    agent = (PPO if case.startswith("ppo") else DQN)(env, **settings)
    with tempfile.TemporaryDirectory() as directory:
        agent.train(
            total_steps=10**9, epoch_steps=epoch, run_dir=directory, seed=0, monitors=[],
            extra_callbacks=[], callbacks=[Turns(Gate(epoch))])  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
