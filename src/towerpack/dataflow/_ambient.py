"""What a pass over a flow written by the user lends to the flows that it iterates inside.

`for dp in self.ds` in a user's `__iter__` has no arguments through which seed and epoch could
come. They come from here: while such a generator runs, a context variable holds its pass.
"""

from __future__ import annotations

from contextvars import ContextVar

import numpy as np

from towerpack._core.randomness import derive_seed, stream

AGAIN = 1 << 32
"""A flow that is begun once more within one pass of what wraps it is in epoch e + AGAIN, and then
in e + 2 * AGAIN: epochs that no pass of its own has. `divmod(epoch, AGAIN)` gives back both."""

_WITHIN = 1 << 30  # from here on: what is begun within passes that were begun once more


class Ambient:
    """The pass of one user-written flow.

    Args:
        seed: Already keyed by the flow's place.
        epoch: The pass.
    """

    def __init__(self, seed: int, epoch: int) -> None:
        self.seed = seed
        self.epoch = epoch
        # Objects are kept so that their ids stay theirs.
        self._known: dict[int, tuple[object, int]] = {}
        self._passes: dict[int, int] = {}
        self._generators: dict[int, np.random.Generator] = {}

    def next_pass(self, flow: object) -> tuple[int, int]:
        """Seed and epoch for one more iteration of an inner flow.

        The first one in epoch e is the inner flow's epoch e; see `AGAIN` for more of them.
        """
        index = self._index(flow)
        again = self._passes.get(index, 0)
        self._passes[index] = again + 1
        return derive_seed(self.seed, "inside", index), _epoch_of(self.epoch, again)

    def generator(self, flow: object) -> np.random.Generator:
        """The random generator of a flow for this pass."""
        index = self._index(flow)
        if index not in self._generators:
            self._generators[index] = stream(self.seed, "rng", index, self.epoch)
        return self._generators[index]

    def _index(self, flow: object) -> int:
        return self._known.setdefault(id(flow), (flow, len(self._known)))[1]


def _epoch_of(outer: int, again: int) -> int:
    """The epoch of a flow that is begun for the `again`-th time within a pass of epoch `outer`."""
    outer_again, number = divmod(outer, AGAIN)
    if outer_again:
        # Their sum would not tell the second pass in the first one from the first in the second.
        again = _WITHIN + derive_seed(outer_again, again) % _WITHIN
    return number + again * AGAIN


AMBIENT: ContextVar[Ambient | None] = ContextVar("towerpack_dataflow_pass", default=None)
