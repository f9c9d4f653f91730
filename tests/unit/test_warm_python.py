import os
import signal
import subprocess
import threading
from pathlib import Path

from warm_python import warm_python

LOCK = """
import fcntl, os, sys, time
file = open(sys.argv[1], "w")
try:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit("another program holds the lock")
print(os.getppid(), flush=True)
time.sleep(60)
"""


def test_a_program_whose_stand_in_was_killed_has_ended_before_the_next_starts(tmp_path: Path):
    command = [*warm_python(), "-c", LOCK, f"{tmp_path}/lock"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        keeper = int(program.stdout.readline())
        os.kill(keeper, signal.SIGSTOP)  # so that it cannot kill the program yet
        program.kill()
    threading.Timer(1, os.kill, (keeper, signal.SIGCONT)).start()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() != ""
        program.kill()
