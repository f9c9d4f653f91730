"""Capture and restoration of the contents of a run's checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from towerpack._core.errors import CheckpointError, CheckpointMismatchError, TowerpackError
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


@contextmanager
def restoring(checkpoint: Checkpoint) -> Generator[None]:
    """Report a state that does not have the expected form as an error of the checkpoint."""
    try:
        yield
    except TowerpackError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
        raise CheckpointError(
            f"The state in {checkpoint.path} cannot be restored: {error!r:.300}.",
            fix="correct restore() of your callbacks, or start from the saved weights alone: "
            "TrainConfig(resume='never', init=…)",
        ) from error


@dataclass(kw_only=True)
class Contents:
    """Contents of a run's checkpoints.

    Attributes:
        groups: Returns the variables by group; the model's variables are in the group `'model'`.
        settings: Settings of the run, including `'seed'`.
        check_nan: Whether weights that are NaN raise an error instead of being saved.
        warns: Whether to log changed settings, which only one process of a run does.
        flush: Writes all files that must be on disk before a checkpoint.
    """

    state: RunState
    numbers: Numbers
    callbacks: Callbacks
    source: InputSource
    hyper_params: HyperParams
    groups: Callable[[], Groups]
    settings: Settings
    check_nan: bool
    warns: bool
    flush: Callable[[], None]

    def __post_init__(self) -> None:
        self._copies = HostCopies()
        self._held: tuple[dict[str, Any], Mapping[str, Mapping[str, np.ndarray]]] | None = None

    def hold(self) -> None:
        """Make `capture` save the present callbacks and hyper-parameters until `let_go`."""
        self._held = self.callbacks.state(), self.hyper_params.arrays()

    def let_go(self) -> None:
        self._held = None

    def check(self) -> None:
        """Raise `NumericsError` if `check_nan` is set and weights are NaN."""
        if self.check_nan:
            check_no_nan(arrays_of(self.groups()["model"]), self.state.step)

    def capture(self) -> Snapshot:
        """Copy the state of the run into a snapshot. The next call overwrites its arrays."""
        self.flush()
        tensors = {name: self._copies.copy(name, group) for name, group in self.groups().items()}
        if self.check_nan:
            check_no_nan(tensors["model"], self.state.step)
        callbacks, held = self._held or (self.callbacks.state(), {})
        for name, arrays in held.items():
            tensors[name].update(arrays)
        state = {
            **self.state.state(),
            **self.numbers.state(),
            "seed": self.settings["seed"],
            "data": self.source.state(),
            "callbacks": callbacks,
            "settings": dict(self.settings),
        }
        return Snapshot(self.state.step, self.state.place, tensors, state)

    def restore(self, checkpoint: Checkpoint) -> Any:
        """Restore the run from a checkpoint. Return the saved position in the input data."""
        path = str(checkpoint.path)
        groups = self.groups()
        if set(checkpoint.tensors) != set(groups):
            raise CheckpointMismatchError(
                f"The checkpoint {path} was saved by a different kind of training step.",
                got=f"groups of variables {sorted(checkpoint.tensors)}",
                expected=f"{sorted(groups)}",
                fix="train with the same kind of step, or start from the saved weights alone: "
                "TrainConfig(resume='never', init=…)",
            )
        saved = checkpoint.state
        # Warn before variables are compared, since a changed setting may be why they do not fit.
        changed = self._warn_of_changes(saved.get("settings", self.settings))
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
        self.state.restore(saved)
        self.numbers.restore(saved)
        self.callbacks.restore(saved["callbacks"])
        _LOG.info("Resumed at step %d, epoch %d, from %s.", self.state.step, self.state.epoch, path)
        names = self.hyper_params.names()
        self.hyper_params.override({c.name: c.new for c in changed if c.name in names})
        return saved["data"]

    def _warn_of_changes(self, old: Settings) -> list[Change]:
        changed = changes(old, self.settings)
        if changed and self.warns:
            _LOG.warning(
                "Settings that differ from those of the continued run:\n%s", changes_text(changed)
            )
        return changed
