"""Ends the processes of a job when their launcher has been killed. Run as a program by its path.

The guard holds the reading end of a pipe. The launcher, and each process until it becomes the
user's script, hold the writing one: when it is closed, no process can be missing in what was
written. Unlike PR_SET_PDEATHSIG this reaches the children of the script, and works on macOS.
"""

import contextlib
import os
import signal
import sys


def guard() -> None:
    """Read process groups that began (`12`) and that ended (`-12`); at the end kill the others."""
    groups: set[int] = set()
    for number in map(int, sys.stdin.buffer.read().split()):
        if number > 0:
            groups.add(number)
        else:
            groups.discard(-number)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.killpg(group, signal.SIGKILL)


def become(fd: int, command: list[str]) -> None:
    """Tell the guard of this process group, and become the command."""
    os.write(fd, b"%d\n" % os.getpid())
    os.close(fd)
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    if len(sys.argv) > 1:
        become(int(sys.argv[1]), sys.argv[2:])
    else:
        guard()
