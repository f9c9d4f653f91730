"""Saves of a run: when checkpoints are written, and what follows where one fails."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._core.errors import CheckpointError, InternalError, NumericsError
from towerpack._core.logs import get_logger
from towerpack.checkpoint import Checkpoint, CheckpointStore
from towerpack.training.state.checkpoint_contents import Contents
from towerpack.training.state.clock import SAVE
from towerpack.training.state.ledger import Ledger

_LOG = get_logger(__name__)
_BEST = "best"  # what a checkpoint is the best of, in its manifest


class Saves:
    """Collect what callbacks want saved, and save it when all of them have acted.

    Args:
        latest: Gives the newest value of a monitored name.
        writes: Whether this process writes checkpoints, or leaves that to another one.
    """

    def __init__(self, latest: Callable[[str], float], *, writes: bool = True) -> None:
        self._latest = latest
        self._writes = writes
        self._saves_end = False
        self._ordinary = False
        self._keep: int | None = None
        self._best: list[str] = []
        self._saved: tuple[Any, ...] | None = None
        self._store: CheckpointStore | None = None
        self._contents: Contents | None = None
        self._ledger: Ledger | None = None

    @property
    def store(self) -> CheckpointStore:
        if self._store is None:
            raise InternalError("a checkpoint was to be saved before the run's directory was open")
        return self._store

    @property
    def contents(self) -> Contents:
        if self._contents is None:
            raise InternalError("a checkpoint was to be saved before the run was built")
        return self._contents

    @property
    def ledger(self) -> Ledger:
        if self._ledger is None:
            raise InternalError("a checkpoint was to be saved before the run had a ledger")
        return self._ledger

    def open(self, directory: Path, contents: Contents, ledger: Ledger) -> CheckpointStore:
        self._store = CheckpointStore(directory)
        self._contents = contents
        self._ledger = ledger
        return self._store

    def close(self) -> None:
        """Wait until everything is on disk."""
        with self.ledger.clock.during(SAVE):
            self.store.close()

    def resumed_from(self, checkpoint: Checkpoint, place: tuple[Any, ...]) -> None:
        """The run goes on from a checkpoint; if it lies in this directory, it is saved already.

        A run may have been killed after it had saved the best, and before that was kept as such.
        """
        if checkpoint.path.resolve().parent != self.store.directory.resolve():
            return
        self._saved = place
        for info in checkpoint.manifest.info.get(_BEST, ()) if self._writes else ():
            self.store.keep_as(checkpoint.step, f"best-{info['name']}", info=info, blocking=True)

    def save_end(self) -> None:
        """This run is to be saved, even if no save is ever due."""
        self._saves_end = True

    def request(self, *, keep: int | None, best: str | None) -> None:
        if best is None:
            self._ordinary, self._keep = True, keep
        else:
            self._best.append(best)

    def write(self) -> None:
        """Save what was requested since the last time."""
        ordinary, best = self._ordinary, self._best
        self._ordinary, self._best = False, []
        if not self._writes:
            if ordinary or best:
                self.ledger.saved()  # by the chief, at this step
            return
        step = None
        infos = [self._told(name) for name in best]
        if ordinary:
            self.store.keep = self._keep
            step = self._save(info={_BEST: infos} if infos else None)
        for info in infos:
            tag = f"best-{info['name']}"
            if step is not None:
                with self.ledger.clock.during(SAVE):
                    self.store.keep_as(step, tag, info=info)
            else:
                self._save(tag=tag, info=info)

    def _told(self, name: str) -> dict[str, Any]:
        value = self._latest(name)
        return {"name": name, "value": value if np.isfinite(value) else repr(value)}

    def at_the_end(self, place: tuple[Any, ...]) -> None:
        """Where a run saves at all, its end is saved too, however it came."""
        if self._writes and self._unsaved(place):
            self._save()  # looks at them
        else:
            self.contents.check()

    def save_now(self) -> None:
        """Save, and wait until it is on disk: the process is about to end."""
        if not self._writes:
            self.ledger.saved()
            return
        try:
            self._save()
        except CheckpointError as error:
            # The failure of a save that was in flight; ours has not been tried yet.
            _LOG.error("%s", error)
            self._save()
        with self.ledger.clock.during(SAVE):
            self.store.wait()

    def before_failure(self, error: BaseException, place: tuple[Any, ...]) -> None:
        """Where a run saves at all, a failure costs no step. The caller knows its state is whole.

        Saved besides the checkpoints that are there: what failed may have failed for a reason that
        lies further back.
        """
        if (
            not self._writes
            or isinstance(error, CheckpointError)
            or place[0] == 0
            or not self._unsaved(place)
        ):
            return
        self.store.keep = None
        try:
            self.save_now()
        except NumericsError:
            _LOG.warning("The state before the failure is not saved, as its weights are NaN.")
        except Exception:  # noqa: BLE001 - what ended the training is raised by the caller
            _LOG.exception("The state before the failure could not be saved:")
        else:
            _LOG.warning("Saved at step %d, before the failure.", place[0])

    def _unsaved(self, place: tuple[Any, ...]) -> bool:
        return (self._saves_end or self._saved is not None) and self._saved != place

    def _save(self, tag: str | None = None, info: Mapping[str, Any] | None = None) -> int:
        with self.ledger.clock.during(SAVE):
            self.store.wait()
            taken = self.contents.capture()
            self.store.save(taken.step, taken.tensors, taken.state, tag=tag, info=info)
        self.ledger.saved()
        if tag is None:
            self._saved = taken.place
        return taken.step
