from __future__ import annotations

import numpy as np

_FAN = 64
"""Number of children of a node. A NumPy call takes as long for 64 numbers as for 2."""


class SumTree:
    """Priorities in the leaves of a tree of sums (Schaul et al. 2016, appendix B.2.1).

    A node is always recomputed from its children, so rounding errors do not accumulate.
    """

    def __init__(self, size: int) -> None:
        self.leaves = np.zeros(-(-size // _FAN) * _FAN, np.float32)
        self._levels: list[np.ndarray] = [self.leaves.reshape(-1, _FAN)]
        while len(self._levels[-1]) > 1:
            nodes = len(self._levels[-1])
            self._levels.append(np.zeros((-(-nodes // _FAN), _FAN)))

    def fill(self, leaves: np.ndarray) -> None:
        self.leaves[: len(leaves)] = leaves
        for below, level in zip(self._levels, self._levels[1:], strict=False):
            level.reshape(-1)[: len(below)] = below.sum(axis=1, dtype=np.float64)

    def __setitem__(self, index: np.ndarray, values: np.ndarray | float) -> None:
        self.leaves[index] = values
        for below, level in zip(self._levels, self._levels[1:], strict=False):
            index = index // _FAN
            level.reshape(-1)[index] = below[index].sum(axis=1, dtype=np.float64)

    @property
    def total(self) -> float:
        return float(self._levels[-1].sum(dtype=np.float64))

    def find(self, shares: np.ndarray) -> np.ndarray:
        """Return the leaves at positions `shares` (0 to 1) of the cumulative sum of priorities."""
        node = np.zeros(len(shares), np.int64)
        rows = np.arange(len(shares))
        for level in reversed(self._levels):
            sums = np.cumsum(level[node], axis=1, dtype=np.float64)
            wanted = shares * sums[:, -1]
            child = np.minimum((sums <= wanted[:, None]).sum(axis=1), _FAN - 1)
            # Rounding may select a child after the last one with a positive priority.
            last = _FAN - 1 - (level[node][:, ::-1] > 0).argmax(axis=1)
            child = np.minimum(child, last)
            before = np.where(child > 0, sums[rows, child - 1], 0.0)
            shares = np.clip((wanted - before) / level[node, child], 0.0, 1.0 - 1e-12)
            node = node * _FAN + child
        return node
