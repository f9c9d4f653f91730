from __future__ import annotations

from towerpack.dataflow.parallel._options import Options
from towerpack.dataflow.parallel._pool import Pool

_MOST_IDLE = 2  # for two simultaneous passes, each followed by another pass


class IdlePools:
    def __init__(self) -> None:
        self._pools: list[Pool] = []
        self._closed = False

    def take(self, options: Options) -> Pool:
        for pool in reversed(self._pools):
            if pool.usable and pool.options == options:
                self._pools.remove(pool)
                return pool
        # Imported when needed: these imports take a third of the time to import the package.
        if options.backend == "thread":
            from towerpack.dataflow.parallel._thread_pool import ThreadPool

            return ThreadPool(options)
        from towerpack.dataflow.parallel._process_pool import ProcessPool

        return ProcessPool(options)

    def put_back(self, pool: Pool) -> None:
        if pool.usable:
            self._pools.append(pool)
        else:
            pool.close()
        while len(self._pools) > (0 if self._closed else _MOST_IDLE):
            self._pools.pop(0).close()

    def close(self) -> None:
        self._closed = True
        while self._pools:
            self._pools.pop().close()

    __del__ = close
