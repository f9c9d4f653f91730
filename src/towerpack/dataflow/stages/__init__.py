"""Stages: flows that wrap flows."""

from ._batch import BatchData as BatchData
from ._cache import CacheData as CacheData
from ._concat import ConcatData as ConcatData
from ._fixed import FixedSizeData as FixedSizeData
from ._join import JoinData as JoinData
from ._map import MapData as MapData
from ._map import MapDataComponent as MapDataComponent
from ._print import PrintData as PrintData
from ._repeat import RepeatedData as RepeatedData
from ._select import SelectComponent as SelectComponent
from ._shuffle import ShuffleData as ShuffleData
from ._speed import SpeedReport as SpeedReport
from ._speed import TestDataSpeed as TestDataSpeed
from ._window import LocallyShuffleData as LocallyShuffleData
