"""Stages: flows that wrap flows."""

from ._batch import BatchData as BatchData
from ._by_length import BatchByLength as BatchByLength
from ._by_shape import BatchDataByShape as BatchDataByShape
from ._cache import CacheData as CacheData
from ._concat import ConcatData as ConcatData
from ._filter import FilterData as FilterData
from ._fixed import FixedSizeData as FixedSizeData
from ._join import JoinData as JoinData
from ._map import MapData as MapData
from ._map import MapDataComponent as MapDataComponent
from ._mix import MixData as MixData
from ._mix import RandomChooseData as RandomChooseData
from ._mix_random import RandomMixData as RandomMixData
from ._print import PrintData as PrintData
from ._repeat import RepeatedData as RepeatedData
from ._repeat_point import RepeatedDataPoint as RepeatedDataPoint
from ._select import SelectComponent as SelectComponent
from ._shard import ShardData as ShardData
from ._shard import ShardRows as ShardRows
from ._shuffle import ShuffleData as ShuffleData
from ._speed import SpeedReport as SpeedReport
from ._speed import TestDataSpeed as TestDataSpeed
from ._window import LocallyShuffleData as LocallyShuffleData
