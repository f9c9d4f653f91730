"""Program that kills the processes of a job after their launcher was killed.

The guard reads from a pipe. The launcher holds the other end, and so does each process until it
executes the user's script. When that end closes, the guard has thus read all process groups. Unlike
PR_SET_PDEATHSIG, this also reaches children of the script and works on macOS.
"""

import contextlib
import os
import signal
import sys


def guard() -> None:
    """Read process groups (12 has started, -12 has finished). At the end, kill the others."""
    groups: set[int] = set()
    for number in map(int, sys.stdin.buffer.read().split()):
        if number > 0:
            groups.add(number)
        else:
            groups.discard(-number)
    for group in groups:
        with contextlib.suppress(ProcessLookupError):  # The group has ended.
            os.killpg(group, signal.SIGKILL)


def become(fd: int, command: list[str]) -> None:
    """Send the number of this process to the guard, and replace this process by the command."""
    os.write(fd, b"%d\n" % os.getpid())
    os.close(fd)
    os.execv(command[0], command)  # noqa: S606


if __name__ == "__main__":
    if len(sys.argv) > 1:
        become(int(sys.argv[1]), sys.argv[2:])
    else:
        guard()
