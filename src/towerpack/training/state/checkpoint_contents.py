"""Contents of a run's checkpoint: captured from the parts of the run, and restored."""

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
from towerpack.training.state.host_copies import (
    HostCopies,
    Snapshot,
    assign,
    check_no_nan,
)
from towerpack.training.state.settings import Change, Settings, changes, changes_text, given_anew
from towerpack.training.state.step_metrics import Numbers

_LOG = get_logger(__name__)


class Contents:
    """The whole state of a run.

    Args:
        state: Where the run stands.
        numbers: Of the current epoch.
        callbacks: Their states.
        source: The position in the data.
        hyper_params: What callbacks may have changed.
        groups: Gives the variables, in groups; the model's as `'model'`.
        settings: What the run is asked for; `'seed'` is among them.
        check_nan: Refuse to save weights that are NaN.
        tells: Tell of settings that have changed; another process may do that.
        flush: Brings to disk what must be there before a checkpoint is.
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
        tells: bool,
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
        self._tells = tells
        self._copies = HostCopies()
        self._held: tuple[dict[str, Any], Mapping[str, Mapping[str, np.ndarray]]] | None = None

    def hold(self) -> None:
        """Until `let_go`, capture callbacks and hyper-parameters as they are now."""
        self._held = self._callbacks.state(), self._hyper_params.arrays()

    def let_go(self) -> None:
        """Capture everything as it is."""
        self._held = None

    def check(self) -> None:
        """Look at the weights, if that is wanted."""
        if self._check_nan:
            check_no_nan(arrays_of(self._groups()["model"]), self._state.step)

    def capture(self) -> Snapshot:
        """Take a checkpoint's contents; the arrays change with the next one."""
        self._flush()
        tensors = {name: self._copies.of(name, group) for name, group in self._groups().items()}
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
        """Take a checkpoint over; gives the data's state."""
        where = str(checkpoint.path)
        groups = self._groups()
        if set(checkpoint.tensors) != set(groups):
            raise CheckpointMismatchError(
                f"The checkpoint {where} was saved by another kind of step.",
                got=f"groups of variables {sorted(checkpoint.tensors)}",
                expected=f"{sorted(groups)}",
                fix="train with the step that it was saved with, or start from its weights alone: "
                "TrainConfig(resume='never', init=…)",
            )
        saved = checkpoint.state
        # First: a changed setting may be why variables do not fit.
        changed = self._tell_changes(saved.get("settings", self._settings))
        anew = given_anew(changed)
        for name, group in groups.items():
            values = checkpoint.group(name)
            # A rate may have become a schedule, or the other way round: its settings are compared.
            gone = {n for n in group.keys() ^ values.keys() if n in RATES}
            gone |= anew if name == "model" else set()
            assign(
                {n: v for n, v in group.items() if n not in gone},
                {n: a for n, a in values.items() if n not in gone},
                f"the {name} in {where}",
            )
        self._state.restore(saved)
        self._numbers.restore(saved)
        self._callbacks.restore(saved["callbacks"])
        _LOG.info(
            "Resumed at step %d, epoch %d, from %s.", self._state.step, self._state.epoch, where
        )
        names = self._hyper_params.names()
        self._hyper_params.take({c.name: c.new for c in changed if c.name in names})
        return saved["data"]

    def _tell_changes(self, old: Settings) -> list[Change]:
        """Tell what the program asks for now and did not before."""
        changed = changes(old, self._settings)
        if changed and self._tells:
            _LOG.warning(
                "Settings that differ from those of the run that is continued:\n%s",
                changes_text(changed),
            )
        return changed
