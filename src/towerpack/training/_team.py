"""The processes of a run, and what they must agree on so that none waits for another for ever."""

from __future__ import annotations

import math
import signal
from contextlib import suppress
from enum import IntEnum
from typing import Any, NamedTuple

from towerpack._core.errors import PeerError
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


_SIGNALS: dict[int, Ending] = {
    signal.SIGINT: Ending.INTERRUPTED,
    signal.SIGTERM: Ending.TERMINATED,
}


class Proposal(NamedTuple):
    """What a process would do next; and what all of them will.

    Attributes:
        steps: How many steps the next call can have here: of all, the smallest.
        ending: Why there is no next call.
        process: Which process's ending it is.
        numbers: Hyper-parameters; those of the chief hold.
    """

    steps: int
    ending: Ending = Ending.NOT_YET
    process: int = 0
    numbers: tuple[float, ...] = ()


class Team:
    """A run's processes: this one alone.

    Attributes:
        size: How many there are.
        index: Which one this is.
    """

    size: int = 1
    index: int = 0

    @property
    def is_chief(self) -> bool:
        """It writes the run."""
        return self.index == 0

    def share(self, data: Any) -> Any:
        """This process's part of the data."""
        return data

    def tell(self, value: Any) -> Any:
        """What the chief says, a JSON value, to all."""
        return value

    def agree(self, proposal: Proposal) -> Proposal:
        """What all will do, given what each of them can."""
        return proposal

    def name(self, index: int) -> str:
        """How messages call a process."""
        return f"process {index}"

    def lost(self, error: Exception) -> Exception | None:
        """The error that names a peer, where one is the reason for an error of TensorFlow's."""
        return None


class Agreement:
    """What this process says to the others in the course of a run, and what it hears from them.

    Once for each call of many steps, not for each step.

    Args:
        team: All processes.
        hyper_params: The chief's are taken over by all.
        interrupt: Takes signals that came to others.
    """

    def __init__(self, team: Team, hyper_params: HyperParams, interrupt: InterruptFlag) -> None:
        self._team = team
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
        if self._team.size == 1:
            return steps
        agreed = self._team.agree(Proposal(steps, numbers=self._numbers()))
        self._follow(agreed)
        names = self._hyper_params.names()
        values, held = agreed.numbers[: len(names)], agreed.numbers[len(names) :]
        for name, value, by_hand in zip(names, values, held, strict=True):
            param = self._hyper_params.get(name)
            if param.held is not None or not math.isnan(by_hand):
                param.hold(None if math.isnan(by_hand) else by_hand)
            if value != param.get():
                param.set(value)
        self._left = agreed.steps == 0
        return agreed.steps

    def leave(self, ending: Ending | None = None) -> None:
        """Tell the others that this process takes no more steps, unless that is known.

        Args:
            ending: Why; None where a signal has interrupted it.

        Raises:
            Interrupted: Another process is to end.
            PeerError: Another process has failed.
        """
        if self._left:
            return
        self._left = True
        if ending is None:
            ending = _SIGNALS.get(self._interrupt.signal, Ending.FAILED)
        agreed = self._team.agree(Proposal(0, ending, numbers=self._numbers()))
        if agreed.ending > max(ending, Ending.STOPPED):
            self._follow(agreed)

    def _numbers(self) -> tuple[float, ...]:
        """Values of the hyper-parameters, then what each is held at, NaN for not held."""
        held = self._hyper_params.held().values()
        values = self._hyper_params.values().values()
        return (*values, *(math.nan if value is None else value for value in held))

    def fail(self) -> None:
        """`leave`, where something has failed here: what others say does not count."""
        with suppress(Exception, Interrupted):
            self.leave(Ending.FAILED)

    def _follow(self, agreed: Proposal) -> None:
        if agreed.ending is Ending.NOT_YET:
            return
        self._left = True
        name = self._team.name(agreed.process)
        if agreed.ending is Ending.FAILED:
            raise PeerError(
                f"{name} has failed.",
                expected="all processes of the run to go on",
                fix="look at what that process has printed; start all of them anew, the run is "
                "continued",
            )
        if agreed.ending in _SIGNALS.values():
            number = next(n for n, ending in _SIGNALS.items() if ending is agreed.ending)
            self._interrupt.receive(number, name)
            raise Interrupted(signal.Signals(number).name)
        raise StopTraining(f"{name} has stopped it")
