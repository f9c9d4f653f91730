"""Checkpoints every so often."""

from __future__ import annotations

from typing import TYPE_CHECKING

from towerpack._core.errors import ConfigError
from towerpack.callbacks._base import Callback
from towerpack.dataflow._arguments import integer_of

if TYPE_CHECKING:
    from towerpack.callbacks._host import TrainerHost


class ModelSaver(Callback):
    """Saves a checkpoint when triggered: after each epoch, or as `PeriodicTrigger` says.

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
        if keep is not None and keep < 1:
            raise ConfigError(
                f"ModelSaver(keep={keep}) would keep no checkpoint.",
                expected="at least 1, or None for all",
            )
        self._keep = None if keep is None else integer_of(keep, "keep")

    def setup(self, trainer: TrainerHost) -> None:
        """Have the end saved too."""
        trainer.will_save()

    def trigger(self) -> None:
        """Save."""
        self.trainer.save(keep=self._keep)
