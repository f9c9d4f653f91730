"""The process of one environment: a script of its own, that imports nothing of Towerpack.

`python -P _env_worker.py FD SYS_PATH...`; over the connection come a pickled function that makes
the environment, and then commands. What the environment raises is answered with its traceback.
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


def end_with(parent: int) -> None:
    """Watch over the parent: an environment that hangs does not notice a closed connection."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def serve(connection: Connection) -> None:
    """Answer commands until the connection is closed."""
    env: Any = None
    while True:
        name, argument = connection.recv()
        try:
            if name == "make":
                env = pickle.loads(argument)()  # noqa: S301 - from the parent
                answer = (env.observation_space, env.action_space)
            elif name == "reset":
                answer, _ = env.reset(seed=argument)
            else:
                *answer, _ = env.step(argument)
                if len(answer) != 4:
                    raise ValueError(f"step gave {len(answer) + 1} values, and not 5")
            connection.send((True, answer))
        except Exception:  # noqa: BLE001
            connection.send((False, traceback.format_exc()))


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent ends its environments
        signal.signal(number, signal.SIG_IGN)
    sys.path[:] = sys.argv[2:]
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()
    try:
        serve(Connection(int(sys.argv[1])))
    except (EOFError, OSError):
        os._exit(0)  # an environment's own threads would keep the process
