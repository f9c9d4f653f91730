"""The processes of a run, and what they must agree on so that none waits for another for ever."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from typing import Any, NamedTuple

from towerpack._core.errors import PeerError


class Ending(IntEnum):
    """Why a process takes no more steps. Of several, the greatest holds for all."""

    NOT_YET = 0
    DONE = 1
    STOPPED = 2
    """A callback has stopped training."""
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
    """What a process would do next; and what all of them will.

    Attributes:
        steps: How many steps the next call can have here: of all, the smallest.
        numbers: Value of each hyper-parameter and the value that it is held at, or None. Those of
            the chief hold.
        ending: Why there is no next call.
        process: Which process's ending it is.
        reason: Error message of the process that has failed.
    """

    steps: int
    numbers: Mapping[str, tuple[float, float | None]]
    ending: Ending = Ending.NOT_YET
    process: int = 0
    reason: str = ""


class Team:
    """A run's processes: this one alone.

    Attributes:
        size: How many there are.
        index: Which one this is.
        broken: Whether a collective has failed here, after which none can be joined.
    """

    size: int = 1
    index: int = 0
    broken: bool = False

    @property
    def is_chief(self) -> bool:
        """It writes the run."""
        return self.index == 0

    def share(self, data: Any) -> Any:
        """This process's part of the data."""
        return data

    def exchange(self, value: Any) -> list[Any]:
        """What each process says, a JSON value, to all."""
        return [value]

    def tell(self, value: Any) -> Any:
        """What the chief says, a JSON value, to all."""
        return self.exchange(value)[0]

    def agree(self, proposal: Proposal) -> Proposal:
        """What all will do, given what each of them can."""
        return proposal

    def name(self, index: int) -> str:
        """How messages call a process."""
        return f"process {index}"

    def lost(self, error: Exception) -> Exception | None:
        """The error that names a peer, where one is the reason for an error of TensorFlow's."""
        return None

    def collective(self) -> AbstractContextManager[None]:
        """Mark a block in which this process may wait for the others."""
        return nullcontext()

    def abort(self, reason: str) -> None:
        """End the collectives of all processes with an error that tells them the reason."""

    def ended_by_sigterm(self) -> AbstractContextManager[None]:
        """End this process after SIGTERM even if it waits for the others."""
        return nullcontext()


def peer_error(names: str, what: str, got: str | None = None) -> PeerError:
    """Error about other processes: 'worker 1 (10.0.0.2:2222)' 'has failed'."""
    return PeerError(
        f"{names} {what}.",
        got=got,
        expected="every process of the run, reachable from this one, until the run ends",
        fix="look at the log of that process; start all of them anew, the run is continued",
    )
