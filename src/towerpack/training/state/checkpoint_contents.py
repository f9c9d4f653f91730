"""Capture and restoration of the contents of a run's checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from towerpack._core.errors import CheckpointMismatchError
from towerpack._core.logs import get_logger
from towerpack.callbacks import Callbacks
from towerpack.checkpoint import Checkpoint
from towerpack.inputs import InputSource
from towerpack.training.distribution.replicas import arrays_of
from towerpack.training.optim.hyper_params import Groups, HyperParams
from towerpack.training.optim.learning_rate import RATES
from towerpack.training.state.counters import RunState
from towerpack.training.state.host_copies import HostCopies, Snapshot, assign, check_no_nan
from towerpack.training.state.settings import (
    Change,
    Settings,
    changed_variables,
    changes,
    changes_text,
)
from towerpack.training.state.step_metrics import Numbers

_LOG = get_logger(__name__)


class Contents:
    """State of a run as checkpoints hold it.

    Args:
        state: Counters of the run.
        numbers: Metrics of the current epoch.
        callbacks: Callbacks, which have states.
        source: Source of the data, which has a position.
        hyper_params: Hyper-parameters, which callbacks may have changed.
        groups: Returns the variables in groups; the model's in the group `'model'`.
        settings: Settings of the run, including `'seed'`.
        check_nan: Refuse to save weights that are NaN.
        warns: Log a warning about changed settings; only one process of a run does.
        flush: Writes to disk everything that must precede a checkpoint.
    """

    def __init__(
        self,
        *,
        state: RunState,
        numbers: Numbers,
        callbacks: Callbacks,
        source: InputSource,
        hyper_params: HyperParams,
        groups: Callable[[], Groups],
        settings: Settings,
        check_nan: bool,
        warns: bool,
        flush: Callable[[], None],
    ) -> None:
        self._state = state
        self._numbers = numbers
        self._callbacks = callbacks
        self._source = source
        self._hyper_params = hyper_params
        self._groups = groups
        self._settings = settings
        self._check_nan = check_nan
        self._flush = flush
        self._warns = warns
        self._copies = HostCopies()
        self._held: tuple[dict[str, Any], Mapping[str, Mapping[str, np.ndarray]]] | None = None

    def hold(self) -> None:
        """Make `capture` use the present state of callbacks and hyper-parameters until `let_go`."""
        self._held = self._callbacks.state(), self._hyper_params.arrays()

    def let_go(self) -> None:
        self._held = None

    def check(self) -> None:
        """Raise `NumericsError` if weights are NaN and `check_nan` is set."""
        if self._check_nan:
            check_no_nan(arrays_of(self._groups()["model"]), self._state.step)

    def capture(self) -> Snapshot:
        """Return the contents of a checkpoint. The next call overwrites the arrays."""
        self._flush()
        tensors = {name: self._copies.copy(name, group) for name, group in self._groups().items()}
        if self._check_nan:
            check_no_nan(tensors["model"], self._state.step)
        callbacks, held = self._held or (self._callbacks.state(), {})
        for name, arrays in held.items():
            tensors[name].update(arrays)
        state = {
            **self._state.state(),
            **self._numbers.state(),
            "seed": self._settings["seed"],
            "data": self._source.state(),
            "callbacks": callbacks,
            "settings": dict(self._settings),
        }
        return Snapshot(self._state.step, self._state.place, tensors, state)

    def restore(self, checkpoint: Checkpoint) -> Any:
        """Restore a checkpoint. Return the state of the data."""
        path = str(checkpoint.path)
        groups = self._groups()
        if set(checkpoint.tensors) != set(groups):
            raise CheckpointMismatchError(
                f"The checkpoint {path} was saved by a different kind of step.",
                got=f"groups of variables {sorted(checkpoint.tensors)}",
                expected=f"{sorted(groups)}",
                fix="train with the step that saved it, or start from its weights alone: "
                "TrainConfig(resume='never', init=…)",
            )
        saved = checkpoint.state
        # Warn before variables are compared, since a changed setting may be why they do not fit.
        changed = self._warn_of_changes(saved.get("settings", self._settings))
        overridden = changed_variables(changed)
        for name, group in groups.items():
            values = checkpoint.group(name)
            # A rate may have become a schedule or a number. Its settings have been compared.
            skipped = {n for n in group.keys() ^ values.keys() if n in RATES}
            skipped |= overridden if name == "model" else set()
            assign(
                {n: v for n, v in group.items() if n not in skipped},
                {n: a for n, a in values.items() if n not in skipped},
                f"the {name} in {path}",
            )
        self._state.restore(saved)
        self._numbers.restore(saved)
        self._callbacks.restore(saved["callbacks"])
        _LOG.info(
            "Resumed at step %d, epoch %d, from %s.", self._state.step, self._state.epoch, path
        )
        names = self._hyper_params.names()
        self._hyper_params.override({c.name: c.new for c in changed if c.name in names})
        return saved["data"]

    def _warn_of_changes(self, old: Settings) -> list[Change]:
        changed = changes(old, self._settings)
        if changed and self._warns:
            _LOG.warning(
                "Settings that differ from those of the continued run:\n%s", changes_text(changed)
            )
        return changed
