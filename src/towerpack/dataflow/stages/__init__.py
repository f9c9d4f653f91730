"""Stages: flows that wrap flows."""

from ._batch import BatchData as BatchData
from ._batch_by_length import BatchByLength as BatchByLength
from ._batch_by_shape import BatchDataByShape as BatchDataByShape
from ._cache import CacheData as CacheData
from ._concat_and_join import ConcatData as ConcatData
from ._concat_and_join import JoinData as JoinData
from ._filter import FilterData as FilterData
from ._map import MapData as MapData
from ._map import MapDataComponent as MapDataComponent
from ._map import SelectComponent as SelectComponent
from ._mix import MixData as MixData
from ._mix import RandomChooseData as RandomChooseData
from ._mix import RandomMixData as RandomMixData
from ._print import PrintData as PrintData
from ._repeat import FixedSizeData as FixedSizeData
from ._repeat import RepeatedData as RepeatedData
from ._repeat import RepeatedDataPoint as RepeatedDataPoint
from ._shard import ShardData as ShardData
from ._shard import ShardRows as ShardRows
from ._shuffle import LocallyShuffleData as LocallyShuffleData
from ._shuffle import ShuffleData as ShuffleData
from ._speed_test import SpeedReport as SpeedReport
from ._speed_test import TestDataSpeed as TestDataSpeed
