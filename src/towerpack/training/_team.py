"""The processes of a run, and what they must agree on so that none waits for another for ever."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from enum import IntEnum
from typing import Any, NamedTuple

from towerpack._core.errors import PeerError, TowerpackError, text_of
from towerpack.training._hyper_params import HyperParams
from towerpack.training._interrupt import Interrupted, InterruptFlag, StopTraining


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

    def compare(self, settings: Mapping[str, Any]) -> None:
        """Refuse settings that are not those of all processes.

        Raises:
            ConfigError: Some differ; it names the process and the settings.
        """

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


class Agreement:
    """What this process says to the others in the course of a run, and what it hears from them.

    Once for each call of many steps, not for each step.

    Args:
        team: All processes.
        hyper_params: The chief's are taken over by all.
        interrupt: Takes signals that came to others.
    """

    def __init__(self, team: Team, hyper_params: HyperParams, interrupt: InterruptFlag) -> None:
        self.team = team
        self._hyper_params = hyper_params
        self._interrupt = interrupt
        self._left = team.size == 1

    def steps(self, steps: int) -> int:
        """How many steps all of the processes run next, if this one can run so many.

        Raises:
            StopTraining: A callback of another process has stopped training.
            Interrupted: Another process is to end.
            PeerError: Another process has failed.
        """
        if self.team.size == 1:
            return steps
        agreed = self.team.agree(Proposal(steps, self._numbers()))
        self._follow(agreed)
        for name, (value, held) in agreed.numbers.items():
            param = self._hyper_params.get(name)
            if held is not None or param.held is not None:
                param.hold(held)
            if value != param.get():
                param.set(value)
        self._left = agreed.steps == 0
        return agreed.steps

    def leave(self, ending: Ending | None = None, reason: str = "") -> None:
        """Tell the others that this process takes no more steps, unless that is known.

        Args:
            ending: Why; None where a signal has interrupted it.
            reason: Error message, if this process has failed.

        Raises:
            Interrupted: Another process is to end.
            PeerError: Another process has failed.
        """
        if self._left:
            return
        self._left = True
        if ending is None:
            ending = ENDINGS_BY_SIGNAL.get(self._interrupt.signal, Ending.FAILED)
        agreed = self.team.agree(Proposal(0, self._numbers(), ending, reason=reason))
        if agreed.ending > max(ending, Ending.STOPPED):
            self._follow(agreed)

    def _numbers(self) -> dict[str, tuple[float, float | None]]:
        held = self._hyper_params.held()
        return {name: (value, held[name]) for name, value in self._hyper_params.values().items()}

    def fail(self, error: Exception) -> None:
        """Tell the others between two calls about an error that ends this process."""
        if not self.team.broken:
            with suppress(Exception, Interrupted):
                self.leave(Ending.FAILED, _reason(error))

    @contextmanager
    def until_the_end(self) -> Iterator[None]:
        """Tell the others about an error in the block, also where they do not ask."""
        try:
            yield
        except Exception as error:
            if self._left or isinstance(error, PeerError):
                raise
            lost = self.team.lost(error)
            if lost is not None:
                raise lost from None
            self.team.abort(_reason(error))
            raise

    def _follow(self, agreed: Proposal) -> None:
        if agreed.ending is Ending.NOT_YET:
            return
        self._left = True
        name = self.team.name(agreed.process)
        if agreed.ending is Ending.FAILED:
            raise peer_error(name, "has failed", agreed.reason)
        if agreed.ending in ENDINGS_BY_SIGNAL.values():
            number = next(n for n, ending in ENDINGS_BY_SIGNAL.items() if ending is agreed.ending)
            self._interrupt.receive(number, name)
            raise Interrupted(signal.Signals(number).name)
        raise StopTraining(f"{name} has stopped it")


def peer_error(names: str, what: str, got: str | None = None) -> PeerError:
    """Error about other processes: 'worker 1 (10.0.0.2:2222)' 'has failed'."""
    return PeerError(
        f"{names} {what}.",
        got=got,
        expected="every process of the run, reachable from this one, until the run ends",
        fix="look at the log of that process; start all of them anew, the run is continued",
    )


def _reason(error: Exception) -> str:
    """An error in a few lines: `Team.abort` passes on about 1 KiB."""
    if isinstance(error, TowerpackError):
        fix = f" To fix: {error.fix}." if error.fix else ""
        return f"{error.what}{fix} {(error.got or '')[:250]}".rstrip()
    return f"{type(error).__name__}: {text_of(error)[:500]}"
