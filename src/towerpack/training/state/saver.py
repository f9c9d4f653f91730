"""Saving of a run's checkpoints: on request, at the end and before a failure."""

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
_BEST = "best"  # key of the metrics in a checkpoint's manifest of which it is the best


class Saves:
    """Writer of the checkpoints that callbacks request. `write` saves them after all callbacks ran.

    `latest` returns the newest value of a monitored name. `writes` is True in the chief only.
    """

    def __init__(self, latest: Callable[[str], float], *, writes: bool = True) -> None:
        self._latest = latest
        self._writes = writes
        self._saves_end = False
        self._ordinary = False
        self._keep: int | None = None
        self._best: list[str] = []
        self._saved: tuple[Any, ...] | None = None

    def __getattr__(self, name: str) -> Any:
        if name in ("store", "contents", "ledger"):
            raise InternalError(f"A checkpoint was requested before `open` set {name!r}.")
        raise AttributeError(name)

    def open(self, directory: Path, contents: Contents, ledger: Ledger) -> CheckpointStore:
        self.store = CheckpointStore(directory)
        self.contents = contents
        self.ledger = ledger
        return self.store

    def close(self) -> None:
        """Wait until all checkpoints are on disk."""
        with self.ledger.clock.during(SAVE):
            self.store.close()

    def resumed_from(self, checkpoint: Checkpoint, place: tuple[Any, ...]) -> None:
        """Record that a checkpoint of this run's directory already holds the state.

        Also tag best checkpoints again, because a killed run may have left them untagged.
        """
        if checkpoint.path.resolve().parent != self.store.directory.resolve():
            return
        self._saved = place
        for info in checkpoint.manifest.info.get(_BEST, ()) if self._writes else ():
            self.store.keep_as(checkpoint.step, f"best-{info['name']}", info=info, blocking=True)

    def save_end(self) -> None:
        """Save a checkpoint when training ends, even if no callback requests one."""
        self._saves_end = True

    def request(self, *, keep: int | None, best: str | None) -> None:
        if best is None:
            self._ordinary, self._keep = True, keep
        else:
            self._best.append(best)

    def write(self) -> None:
        ordinary, best = self._ordinary, self._best
        self._ordinary, self._best = False, []
        if not self._writes:
            if ordinary or best:
                self.ledger.note("save")  # the chief saves at this step
            return
        step = None
        infos = [self._info(name) for name in best]
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

    def _info(self, name: str) -> dict[str, Any]:
        value = self._latest(name)
        return {"name": name, "value": value if np.isfinite(value) else repr(value)}

    def at_the_end(self, place: tuple[Any, ...]) -> None:
        """Save a final checkpoint if the run saves any. Otherwise check the weights for NaN."""
        if self._writes and self._unsaved(place):
            self._save()
        else:
            self.contents.check()

    def save_now(self) -> None:
        """Save a checkpoint and wait until it is on disk, because the process is about to end."""
        if not self._writes:
            self.ledger.note("save")
            return
        try:
            self._save()
        except CheckpointError as error:
            # An earlier save has failed in the background; this one has not started yet.
            _LOG.error("%s", error)
            self._save()
        with self.ledger.clock.during(SAVE):
            self.store.wait()

    def before_failure(self, error: BaseException, place: tuple[Any, ...]) -> None:
        """Save a checkpoint before the error is raised. Call only when the state is consistent.

        All other checkpoints are kept too, because the cause of the error may be older.
        """
        needless = isinstance(error, CheckpointError) or place[0] == 0
        if needless or not self._writes or not self._unsaved(place):
            return
        self.store.keep = None
        try:
            self.save_now()
        except NumericsError:
            _LOG.warning("Did not save the state before the failure: its weights are NaN.")
        except Exception:  # noqa: BLE001 - the caller raises the error that ended training
            _LOG.exception("The state before the failure could not be saved:")
        else:
            _LOG.warning("Saved at step %d, before the failure.", place[0])

    def _unsaved(self, place: tuple[Any, ...]) -> bool:
        return (self._saves_end or self._saved is not None) and self._saved != place

    def _save(self, tag: str | None = None, info: Mapping[str, Any] | None = None) -> int:
        with self.ledger.clock.during(SAVE):
            self.store.wait()
            snapshot = self.contents.capture()
            self.store.save(snapshot.step, snapshot.tensors, snapshot.state, tag=tag, info=info)
        self.ledger.note("save")
        if tag is None:
            self._saved = snapshot.place
        return snapshot.step
