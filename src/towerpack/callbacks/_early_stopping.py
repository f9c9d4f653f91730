"""The end of a training that gets no better."""

from __future__ import annotations

from typing import Any

from towerpack._core.errors import ConfigError
from towerpack.callbacks._base import Callback
from towerpack.callbacks._watch import Mode, Watch, check_mode, is_better


class EarlyStopping(Callback):
    """Ends training normally once a monitored value has not improved for a while.

    Args:
        name: The monitored name. What produces it must stand earlier in the list of callbacks.
        patience: How many values in a row may bring no improvement; at that many training ends.
            NaN is no improvement.
        mode: 'min' if smaller is better, 'max' if larger is.
        min_delta: An improvement must be larger than this.

    Raises:
        ConfigError: An argument that makes no sense.
    """

    def __init__(
        self, name: str, patience: int = 5, mode: Mode = "min", min_delta: float = 0.0
    ) -> None:
        check_mode(mode, f"EarlyStopping({name!r})")
        if patience < 1 or not min_delta >= 0:
            raise ConfigError(
                f"EarlyStopping({name!r}, patience={patience}, min_delta={min_delta}) makes no "
                "sense.",
                expected="patience of at least 1, and min_delta of at least 0",
            )
        self.needs = (name,)
        self._name = name
        self._patience = patience
        self._mode: Mode = mode
        self._min_delta = min_delta
        self._best: float | None = None
        self._best_step: int | None = None
        self._waited = 0
        self._watch = Watch(name, repr(self))

    def before_train(self) -> None:
        """A run that had ended here does not start again."""
        self._stop_if_due()

    def trigger(self) -> None:
        """Look at the new value, if there is one."""
        fresh = self._watch.fresh(self.trainer.monitors)
        if fresh is None:
            return
        if is_better(fresh[1], self._best, self._mode, self._min_delta):
            self._best_step, self._best = fresh
            self._waited = 0
        else:
            self._waited += 1
            self._stop_if_due()

    def _stop_if_due(self) -> None:
        if self._waited < self._patience:
            return
        best = "" if self._best is None else f" than {self._best:.6g} at step {self._best_step}"
        self.trainer.request_stop(f"{self._name} got no better{best}, {self._waited} times")

    def state(self) -> dict[str, Any]:
        """Best value and how long it has stood."""
        return {
            "best": self._best,
            "step": self._best_step,
            "waited": self._waited,
            "seen": self._watch.seen_step,
        }

    def restore(self, state: Any) -> None:
        """Take them back."""
        self._best, self._best_step = state["best"], state["step"]
        self._waited = state["waited"]
        self._watch.seen_step = state["seen"]

    def __repr__(self) -> str:
        return f"EarlyStopping({self._name!r})"
