"""Parallel stages: the same datapoints in the same order, made by several workers."""

from ._legacy import MultiProcessMapAndBatchData as MultiProcessMapAndBatchData
from ._legacy import MultiProcessMapAndBatchDataZMQ as MultiProcessMapAndBatchDataZMQ
from ._legacy import MultiProcessMapData as MultiProcessMapData
from ._legacy import MultiProcessMapDataZMQ as MultiProcessMapDataZMQ
from ._legacy import MultiProcessPrefetchData as MultiProcessPrefetchData
from ._legacy import MultiProcessRunner as MultiProcessRunner
from ._legacy import MultiProcessRunnerZMQ as MultiProcessRunnerZMQ
from ._legacy import MultiThreadMapData as MultiThreadMapData
from ._legacy import MultiThreadPrefetchData as MultiThreadPrefetchData
from ._legacy import MultiThreadRunner as MultiThreadRunner
from ._legacy import PrefetchDataZMQ as PrefetchDataZMQ
from ._memory import is_lent as is_lent
from ._prefetch import PrefetchData as PrefetchData
