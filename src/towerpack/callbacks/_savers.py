"""Callbacks that save checkpoints: regularly, or the best by a monitored value."""

from __future__ import annotations

from typing import Any

from towerpack._core.logs import ONLY_FILE, get_logger
from towerpack.callbacks._base import Callback
from towerpack.callbacks._host import TrainerHost
from towerpack.callbacks.watch import Mode, Watch
from towerpack.dataflow.arguments import integer_of

_log = get_logger(__name__)


class ModelSaver(Callback):
    """Save a checkpoint when triggered: after each epoch, or as `PeriodicTrigger` says.

    The checkpoint is written in the background, after all callbacks have acted. It contains the
    state of all callbacks, so their order does not matter. Another checkpoint is saved when
    training ends, also by an error.

    Args:
        keep: Number of newest checkpoints to keep; None for all. Checkpoints of `BestSaver` do not
            count.
    """

    def __init__(self, keep: int | None = 10) -> None:
        self._keep = None if keep is None else integer_of(keep, "ModelSaver: keep", least=1)

    def setup(self, trainer: TrainerHost) -> None:
        trainer.will_save()

    def trigger(self) -> None:
        self.trainer.save(keep=self._keep)


class BestSaver(Callback):
    """Keep the checkpoint with the best monitored value, in addition to ordinary checkpoints.

    No `ModelSaver` is needed. Another checkpoint is saved when training ends. NaN is never best,
    nor is a value that was measured before the current step; both are logged.

    Args:
        name: Name of the value, such as `'val/error'`. An earlier callback must produce it.
        mode: 'min' if smaller is better, 'max' if larger is; None to use `Inferencer.better`.

    Attributes:
        best: The best value so far, or None.
        best_step: The global step of `best`, or None.
    """

    def __init__(self, name: str, mode: Mode | None = None) -> None:
        self.best: float | None = None
        self.best_step: int | None = None
        self.needs = (name,)
        self._name, self._mode = name, mode
        self._watch = Watch(name, repr(self), mode)

    def setup(self, trainer: TrainerHost) -> None:
        trainer.will_save()

    def before_train(self) -> None:
        self._watch.resolve(self.trainer.monitors)

    def trigger(self) -> None:
        fresh = self._watch.fresh(self.trainer.monitors)
        if fresh is None or not self._watch.improves(fresh[1], self.best):
            return
        if fresh[0] != self.global_step:
            _log.warning(
                "%r did not save: %s was measured at step %d, but the weights are those of step "
                "%d. Use the same PeriodicTrigger for both callbacks.",
                self, self._name, fresh[0], self.global_step,
            )  # fmt: skip
            return
        shown = self.trainer.monitors.remark(f"best {self._name} so far")
        before = "" if self.best is None else f", before {self.best:.6g}"
        _log.info(
            "%s is best so far: %.6g at step %d%s.", self._name, fresh[1], fresh[0], before,
            extra=ONLY_FILE if shown else None,
        )  # fmt: skip
        self.best_step, self.best = fresh
        self.trainer.save(best=self._name)

    def state(self) -> dict[str, Any]:
        return {"best": self.best, "step": self.best_step, "seen": self._watch.seen_step}

    def restore(self, state: Any) -> None:
        self.best = state["best"]
        self.best_step = state["step"]
        self._watch.seen_step = state["seen"]

    def __repr__(self) -> str:
        mode = f", {self._mode!r}" if self._mode and type(self) is BestSaver else ""
        return f"{type(self).__name__}({self._name!r}{mode})"


class MinSaver(BestSaver):
    """A `BestSaver` for a value of which smaller is better.

    Args:
        name: Name of the monitored value.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, "min")


class MaxSaver(BestSaver):
    """A `BestSaver` for a value of which larger is better.

    Args:
        name: Name of the monitored value.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, "max")
