"""Script of a subprocess that runs one environment. It does not import Towerpack.

`python -P _env_worker.py FD SYS_PATH...` receives commands over the socket FD, and sends back
results or tracebacks.
"""

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any


def exit_with_parent(parent: int) -> None:
    # A hanging environment would not notice that the connection is closed.
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


class EnvCommands:
    env: Any = None

    def do(self, name: str, argument: Any) -> Any:
        """Run 'make' with a function, 'reset' with a seed, or 'step' with an action."""
        if name == "make":
            self.env = argument()
            return self.env.observation_space, self.env.action_space
        if name == "reset":
            observation, _ = self.env.reset(seed=argument)
            return observation
        observation, reward, terminated, truncated, _ = self.env.step(argument)
        return observation, reward, terminated, truncated


def serve(connection: Connection) -> None:
    commands = EnvCommands()
    while True:
        name, argument = connection.recv()
        try:
            argument = pickle.loads(argument) if name == "make" else argument  # noqa: S301 - from the parent
            connection.send((True, commands.do(name, argument)))
        except Exception:  # noqa: BLE001
            connection.send((False, traceback.format_exc()))


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent closes its environments
        signal.signal(number, signal.SIG_IGN)
    sys.path[:] = sys.argv[2:]
    threading.Thread(target=exit_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        serve(Connection(int(sys.argv[1])))
    except (EOFError, OSError):
        os._exit(0)  # threads of the environment would keep the process alive
