"""Parallel stages, whose workers read a pipeline in advance without changing its order."""

from ._prefetch import MultiProcessMapAndBatchData as MultiProcessMapAndBatchData
from ._prefetch import MultiProcessMapAndBatchDataZMQ as MultiProcessMapAndBatchDataZMQ
from ._prefetch import MultiProcessMapData as MultiProcessMapData
from ._prefetch import MultiProcessMapDataZMQ as MultiProcessMapDataZMQ
from ._prefetch import MultiProcessPrefetchData as MultiProcessPrefetchData
from ._prefetch import MultiProcessRunner as MultiProcessRunner
from ._prefetch import MultiProcessRunnerZMQ as MultiProcessRunnerZMQ
from ._prefetch import MultiThreadMapData as MultiThreadMapData
from ._prefetch import MultiThreadPrefetchData as MultiThreadPrefetchData
from ._prefetch import MultiThreadRunner as MultiThreadRunner
from ._prefetch import PrefetchData as PrefetchData
from ._prefetch import PrefetchDataZMQ as PrefetchDataZMQ
from ._slots import is_lent as is_lent
