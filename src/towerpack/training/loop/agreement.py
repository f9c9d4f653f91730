"""What the processes of a run agree on in its course, so that none waits for another for ever."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from towerpack._core.errors import ConfigError, PeerError, TowerpackError, text_of
from towerpack.training.distribution.team import (
    ENDINGS_BY_SIGNAL,
    Ending,
    Proposal,
    Team,
    peer_error,
)
from towerpack.training.interrupt import Interrupted, InterruptFlag, StopTraining
from towerpack.training.optim.hyper_params import HyperParams
from towerpack.training.state.settings import Settings, differences


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

    def compare(self, settings: Settings) -> None:
        """Refuse settings that are not those of all processes."""
        for index, lines in differences(self.team.exchange(settings)).items():
            more = [f"and {len(lines) - 9} more"] if len(lines) > 9 else []
            raise ConfigError(
                f"{self.team.name(index)} has other settings than {self.team.name(0)}.",
                got="\n".join([*lines[:9], *more]),
                expected="the same settings in all workers",
                fix="start all workers with the same program and arguments",
            )

    def steps(self, steps: int) -> int:
        """How many steps all of the processes run next, if this one can run so many."""
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


def _reason(error: Exception) -> str:
    """An error in a few lines: `Team.abort` passes on about 1 KiB."""
    if isinstance(error, TowerpackError):
        fix = f" To fix: {error.fix}." if error.fix else ""
        return f"{error.what}{fix} {(error.got or '')[:250]}".rstrip()
    return f"{type(error).__name__}: {text_of(error)[:500]}"
