"""Stages: flows that wrap flows."""

from ._batch import BatchData as BatchData
from ._by_length import BatchByLength as BatchByLength
from ._cache import CacheData as CacheData
from ._combination import ConcatData as ConcatData
from ._combination import JoinData as JoinData
from ._grouping import BatchDataByShape as BatchDataByShape
from ._looking import PrintData as PrintData
from ._looking import SpeedReport as SpeedReport
from ._looking import TestDataSpeed as TestDataSpeed
from ._map import MapData as MapData
from ._map import MapDataComponent as MapDataComponent
from ._map import SelectComponent as SelectComponent
from ._mapping import FilterData as FilterData
from ._mix import MixData as MixData
from ._mix import RandomChooseData as RandomChooseData
from ._mix import RandomMixData as RandomMixData
from ._repeat import FixedSizeData as FixedSizeData
from ._repeat import RepeatedData as RepeatedData
from ._repeat import RepeatedDataPoint as RepeatedDataPoint
from ._shard import ShardData as ShardData
from ._shard import ShardRows as ShardRows
from ._shuffle import LocallyShuffleData as LocallyShuffleData
from ._shuffle import ShuffleData as ShuffleData
