"""Checkpoints: every so often, and the best by a monitored value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from towerpack._core.logs import ONLY_FILE, get_logger
from towerpack.callbacks._base import Callback
from towerpack.callbacks.watch import Mode, Watch
from towerpack.dataflow.arguments import integer_of

if TYPE_CHECKING:
    from towerpack.callbacks._host import TrainerHost

_log = get_logger(__name__)


class ModelSaver(Callback):
    """Save a checkpoint when triggered: after each epoch, or as `PeriodicTrigger` says.

    The checkpoint is written in the background once all callbacks of the same moment have acted, so
    it holds their state too, and the place in the list does not matter. The end of training is
    saved as well, however it comes and whether or not a save is due there.

    Args:
        keep: How many of the newest to keep; None for all. The best ones that `BestSaver` keeps do
            not count.

    Raises:
        ConfigError: `keep` is less than 1.
    """

    def __init__(self, keep: int | None = 10) -> None:
        self._keep = None if keep is None else integer_of(keep, "ModelSaver: keep", least=1)

    def setup(self, trainer: TrainerHost) -> None:
        trainer.will_save()

    def trigger(self) -> None:
        self.trainer.save(keep=self._keep)


class BestSaver(Callback):
    """Keep the checkpoint at which a monitored value was best, besides the ordinary ones.

    It needs no `ModelSaver`: it saves on its own, the end of training included. The best score so
    far is part of each checkpoint, so a resumed run does not take its first score for the best. NaN
    is never best, nor a value of other weights than those of now; both are logged.

    Args:
        name: The monitored name, for example `'val/error'`. What produces it must stand earlier in
            the list of callbacks.
        mode: 'min' if smaller is better, 'max' if larger is; None for the direction that the
            metric declares (`Inferencer.better`).

    Attributes:
        best: The best value so far, or None.
        best_step: The global step at which it was put, or None.

    Raises:
        ConfigError: The mode is neither.
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
                "%r keeps nothing of %s at step %d, since the weights are those of step %d: give "
                "it the same PeriodicTrigger as what measures it.",
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
        if type(self) is BestSaver:
            mode = f", {self._mode!r}" if self._mode else ""
            return f"BestSaver({self._name!r}{mode})"
        return f"{type(self).__name__}({self._name!r})"


class MinSaver(BestSaver):
    """`BestSaver` where smaller is better."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "min")


class MaxSaver(BestSaver):
    """`BestSaver` where larger is better."""

    def __init__(self, name: str) -> None:
        super().__init__(name, "max")
