"""The process of one environment: a script of its own, that imports nothing of Towerpack.

`python -P _env_worker.py FD SYS_PATH...`; over the connection come a pickled function that makes
the environment, and then commands. Whatever the environment raises is answered with its traceback.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection


def _end_with_parent(parent: int) -> None:
    # An environment that hangs does not notice that its connection is closed.
    while os.getppid() == parent:
        time.sleep(1.0)
    os._exit(1)


def main() -> None:
    """Serve until the connection is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent ends its environments
        signal.signal(number, signal.SIG_IGN)
    sys.path[:] = sys.argv[2:]
    watch = threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True)
    watch.start()
    connection = Connection(int(sys.argv[1]))
    env = None
    try:
        while True:
            name, argument = connection.recv()
            try:
                if name == "make":
                    env = pickle.loads(argument)()  # noqa: S301  comes from the parent
                    answer = (env.observation_space, env.action_space)
                elif name == "reset":
                    answer = env.reset(seed=argument)[0]
                else:
                    answer = env.step(argument)[:4]
                connection.send((True, answer))
            except Exception:  # noqa: BLE001
                connection.send((False, traceback.format_exc()))
    except (EOFError, OSError):
        os._exit(0)  # an environment's own threads would keep the process


if __name__ == "__main__":
    main()
