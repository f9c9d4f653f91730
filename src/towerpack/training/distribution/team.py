"""Processes of a run, and their communication."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

from towerpack._core.errors import PeerError


class Ending(IntEnum):
    """Reason why a process runs no more steps. The greatest reason of all processes counts."""

    NOT_YET = 0
    DONE = 1
    STOPPED = 2
    """A callback stopped training."""
    INTERRUPTED = 3
    """Ctrl-C."""
    TERMINATED = 4
    """SIGTERM."""
    FAILED = 5


ENDINGS_BY_SIGNAL: dict[int, Ending] = {
    signal.SIGINT: Ending.INTERRUPTED,
    signal.SIGTERM: Ending.TERMINATED,
}


class Proposal(NamedTuple):
    """Next action of one process, or the agreed action of all processes.

    Attributes:
        steps: Number of steps of the next call; processes agree on the smallest.
        numbers: Value of each hyper-parameter, and the value at which it is held, or None. All
            processes use the chief's numbers.
        process: Index of the process that ends the run.
        reason: Error message of the process that failed.
    """

    steps: int
    numbers: Mapping[str, tuple[float, float | None]]
    ending: Ending = Ending.NOT_YET
    process: int = 0
    reason: str = ""


class Team:
    """Processes of a run. This base class stands for a single process.

    Attributes:
        size: Number of processes.
        index: Index of this process.
        broken: Whether a collective operation failed in this process, so that no other can succeed.
        divides_flows: Whether each process reads its own part of a DataFlow.
    """

    size: int = 1
    index: int = 0
    broken: bool = False
    divides_flows: bool = False

    @property
    def is_chief(self) -> bool:
        """Whether this process writes the run directory."""
        return self.index == 0

    def share(self, data: Any) -> Any:
        return data

    def exchange(self, value: Any) -> list[Any]:
        """Send a JSON value to all processes. Return the values of all processes, by index."""
        return [value]

    def broadcast(self, value: Any) -> Any:
        """Return the chief's JSON value in all processes."""
        return self.exchange(value)[0]

    def send_files(self, directory: Path) -> None:
        """Send the files of a directory of the chief to the other processes."""

    def receive_files(self, directory: Path) -> None:
        """Write the files that the chief sends to a directory."""

    def agree(self, proposal: Proposal) -> Proposal:
        return proposal

    def name(self, index: int) -> str:
        return f"process {index}"

    def lost(self, error: Exception) -> Exception | None:
        """Return the error that names the peer which caused an error of TensorFlow, if any."""
        return None

    def collective(self) -> AbstractContextManager[None]:
        """Return a context manager for code that may wait for other processes."""
        return nullcontext()

    def abort(self, reason: str) -> None:
        """Make collective operations of all processes fail with an error that states the reason."""

    def ended_by_sigterm(self) -> AbstractContextManager[None]:
        """Return a context manager in which SIGTERM ends this process even while it waits."""
        return nullcontext()


def peer_error(names: str, what: str, got: str | None = None) -> PeerError:
    """Create an error about processes. `names` and `what` are subject and predicate."""
    return PeerError(
        f"{names} {what}.",
        got=got,
        expected="all processes of the run to be running and reachable until the run ends",
        fix="check the log of that process, then restart all processes to continue the run",
    )
