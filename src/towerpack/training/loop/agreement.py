"""Coordination of the processes of a run, so that none waits forever for another."""

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
    """Coordination of this process with the other processes of a run, before each call.

    All processes use the chief's hyper-parameters. `interrupt` records signals sent to any process.
    """

    def __init__(self, team: Team, hyper_params: HyperParams, interrupt: InterruptFlag) -> None:
        self.team = team
        self._hyper_params = hyper_params
        self._interrupt = interrupt
        self._left = team.size == 1

    def compare(self, settings: Settings) -> None:
        """Raise `ConfigError` unless all processes have the same settings."""
        for index, lines in differences(self.team.exchange(settings)).items():
            more = [f"and {len(lines) - 9} more"] if len(lines) > 9 else []
            raise ConfigError(
                f"The settings of {self.team.name(index)} differ from those of "
                f"{self.team.name(0)}.",
                got="\n".join([*lines[:9], *more]),
                fix="start all workers with the same program and arguments, and pass a seed= to "
                "Keras layers that draw random numbers: each process draws other seeds",
            )

    def steps(self, steps: int) -> int:
        """Return the number of steps that all processes run next, at most `steps`."""
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
        """Tell the other processes that this process runs no more steps, unless they know already.

        `ending` is None after a signal. `reason` is the error message of a failed process.
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
        """Report an error that ends this process to the other processes, between two calls."""
        if not self.team.broken:
            with suppress(Exception, Interrupted):
                self.leave(Ending.FAILED, _reason(error))

    @contextmanager
    def until_the_end(self) -> Iterator[None]:
        """Abort the other processes if the block raises an error that was not reported to them."""
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
        raise StopTraining(f"{name} stopped training")


def _reason(error: Exception) -> str:
    """Summarize an error in less than 1 KiB, the limit of `Team.abort`."""
    if isinstance(error, TowerpackError):
        fix = f" To fix: {error.fix}." if error.fix else ""
        return f"{error.what}{fix} {(error.got or '')[:250]}".rstrip()
    return f"{type(error).__name__}: {text_of(error)[:500]}"
