"""Restart of a chief's program in the same process, after the variables of a server were lost."""

import os
import socket
import sys
from contextlib import suppress
from typing import Final

from towerpack._core.errors import InternalError, PeerError
from towerpack._core.logs import get_logger
from towerpack.training.state.ledger import RESTART

_LOG = get_logger(__name__)
_STATE: Final = "TOWERPACK_LOST_SERVERS"
"""Environment variable of a restarted program: step, restarts at this step, held socket."""
_MOST_RESTARTS: Final = 3


def restart_program(lost: PeerError, step: int, port: int) -> None:
    """Replace this process by a new start of its program, which continues at a checkpoint.

    Return if the program is not a file, or if three restarts in a row made no new checkpoint.

    Args:
        lost: The reason.
        step: Step of the newest checkpoint.
        port: Port at which this process listens. Until `release_port`, it accepts connections
            without answering, which tells other processes that the chief has not ended.
    """
    before, number, _ = _state()
    number = number + 1 if before == step else 1
    if number > _MOST_RESTARTS or not hasattr(sys.modules["__main__"], "__file__"):
        return
    text = "%s The chief starts its program again and continues from step %d (try %d of %d)."
    _LOG.warning(text, lost.what, step, number, _MOST_RESTARTS)
    held = _listening_at(port)
    os.set_inheritable(held, True)
    os.environ[_STATE] = f"{step} {number} {held}"
    os.environ[RESTART] = str(int(os.environ.get(RESTART, "0")) + 1)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606


def release_port() -> None:
    """Close the socket that the program before a restart held, so that TensorFlow can listen."""
    step, number, held = _state()
    if held >= 0:
        os.close(held)
        os.environ[_STATE] = f"{step} {number} -1"


def _state() -> list[int]:
    return [int(field) for field in os.environ.get(_STATE, "-1 0 -1").split()]


def _listening_at(port: int) -> int:
    """Return a file descriptor of the socket at which this process listens."""
    for number in os.listdir("/dev/fd"):
        with suppress(OSError, IndexError):
            other = socket.socket(fileno=os.dup(int(number)))
            listens = other.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
            if listens and other.getsockname()[1] == port:
                return other.detach()
            other.close()
    raise InternalError(f"No socket of this process listens at port {port}.")
