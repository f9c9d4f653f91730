"""Pools between passes: they wait with the stage that they belong to."""

from __future__ import annotations

from towerpack.dataflow.parallel._options import Options
from towerpack.dataflow.parallel._pool import Pool

# Two, for two passes side by side, each followed by another.
_MOST = 2


class IdlePools:
    """The pools of one stage that no pass uses now."""

    def __init__(self) -> None:
        self._pools: list[Pool] = []
        self._closed = False

    def take(self, options: Options) -> Pool:
        """A pool: one that waits here, or a new one."""
        for pool in reversed(self._pools):
            if pool.usable and pool.options == options:
                self._pools.remove(pool)
                return pool
        # Imported when needed: what they import is a third of importing the package.
        if options.backend == "thread":
            from towerpack.dataflow.parallel._thread import ThreadPool

            return ThreadPool(options)
        from towerpack.dataflow.parallel._process import ProcessPool

        return ProcessPool(options)

    def put_back(self, pool: Pool) -> None:
        """Keep a pool for the next pass."""
        if self._closed or not pool.usable:
            pool.close()
            return
        self._pools.append(pool)
        while len(self._pools) > _MOST:
            self._pools.pop(0).close()

    def close(self) -> None:
        """End all that wait here, and those that come back."""
        self._closed = True
        while self._pools:
            self._pools.pop().close()
