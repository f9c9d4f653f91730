"""`reset_state` of flows of the user's: called once in each process, before they are read.

For the predecessor, the caller did that, and such flows open their files there.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol, cast

from towerpack.dataflow._blocks import Block, Positions, as_ints
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._plan import Indexable, IndexNode

# Beside what the user's class holds, and pickled with it: another process has another number.
_RESET_IN = "_DataFlow__reset_in"


class Resettable(Protocol):
    """A flow."""

    def reset_state(self) -> None: ...


class Items(Indexable, Resettable, Protocol):
    """A flow that is read by number."""


class _Lock:
    """Held while a `reset_state` runs: threads that read the same flow wait for it."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        """In a fork, nobody may be left who could release it."""
        self.held = threading.RLock()


_lock = _Lock()


def note_reset(flow: Resettable) -> None:
    """Note that `reset_state` was called in this process."""
    vars(flow)[_RESET_IN] = os.getpid()


def make_ready(flow: Resettable) -> None:
    """Call `reset_state`, unless that was done in this process."""
    with _lock.held:
        if vars(flow).get(_RESET_IN) != os.getpid():
            flow.reset_state()
            note_reset(flow)


class ItemsNode(IndexNode):
    """Reads a flow by `flow[i]`, when its `reset_state` has run in this process."""

    _ready_in: int | None = None

    def read(self, epoch: int, positions: Positions) -> Block:
        self._prepare()
        get = super().get
        return [get(epoch, position) for position in as_ints(positions)]

    def get(self, epoch: int, position: int) -> Datapoint:
        self._prepare()
        return super().get(epoch, position)

    def _prepare(self) -> None:
        if self._ready_in != os.getpid():
            make_ready(cast("Items", self._source))
            self._ready_in = os.getpid()
