"""Data pipelines that need no framework: sources, stages, plans and exact resuming.

ds = DataFromArrays(images, labels)
ds = ShuffleData(ds)
ds = BatchData(ds, 128)
for images, labels in ds: ...
"""

from . import dataset as dataset
from . import datasets as datasets
from . import images as images
from . import imgaug as imgaug
from ._draws import ItemRNG as ItemRNG
from ._flow import DataFlow as DataFlow
from ._flow import ProxyDataFlow as ProxyDataFlow
from ._flow import RNGDataFlow as RNGDataFlow
from ._flow import Stage as Stage
from ._iterator import DataIterator as DataIterator
from ._plan import Plan as Plan
from .formats import HDF5Data as HDF5Data
from .formats import NumpyData as NumpyData
from .formats import ParquetData as ParquetData
from .formats import SVMLightData as SVMLightData
from .formats import TarData as TarData
from .formats import TarSerializer as TarSerializer
from .formats import TarWriter as TarWriter
from .images import AugmentImageComponent as AugmentImageComponent
from .images import AugmentImageComponents as AugmentImageComponents
from .images import AugmentImageCoordinates as AugmentImageCoordinates
from .remote import RemoteDataZMQ as RemoteDataZMQ
from .remote import send_dataflow_zmq as send_dataflow_zmq
from .parallel import MultiProcessMapAndBatchData as MultiProcessMapAndBatchData
from .parallel import MultiProcessMapAndBatchDataZMQ as MultiProcessMapAndBatchDataZMQ
from .parallel import MultiProcessMapData as MultiProcessMapData
from .parallel import MultiProcessMapDataZMQ as MultiProcessMapDataZMQ
from .parallel import MultiProcessPrefetchData as MultiProcessPrefetchData
from .parallel import MultiProcessRunner as MultiProcessRunner
from .parallel import MultiProcessRunnerZMQ as MultiProcessRunnerZMQ
from .parallel import MultiThreadMapData as MultiThreadMapData
from .parallel import MultiThreadPrefetchData as MultiThreadPrefetchData
from .parallel import MultiThreadRunner as MultiThreadRunner
from .parallel import PrefetchData as PrefetchData
from .parallel import PrefetchDataZMQ as PrefetchDataZMQ
from .profiling import ProfileReport as ProfileReport
from .profiling import profile as profile
from .sources import DataFromArrays as DataFromArrays
from .sources import DataFromGenerator as DataFromGenerator
from .sources import DataFromIterable as DataFromIterable
from .sources import DataFromList as DataFromList
from .sources import DataFromQueue as DataFromQueue
from .sources import FakeData as FakeData
from .sources import ImageCSV as ImageCSV
from .sources import ImageFolder as ImageFolder
from .sources import ImageFromFile as ImageFromFile
from .stages import BatchByLength as BatchByLength
from .stages import BatchData as BatchData
from .stages import BatchDataByShape as BatchDataByShape
from .stages import CacheData as CacheData
from .stages import ConcatData as ConcatData
from .stages import FilterData as FilterData
from .stages import FixedSizeData as FixedSizeData
from .stages import JoinData as JoinData
from .stages import LocallyShuffleData as LocallyShuffleData
from .stages import MapData as MapData
from .stages import MapDataComponent as MapDataComponent
from .stages import MixData as MixData
from .stages import PrintData as PrintData
from .stages import RandomChooseData as RandomChooseData
from .stages import RandomMixData as RandomMixData
from .stages import RepeatedData as RepeatedData
from .stages import RepeatedDataPoint as RepeatedDataPoint
from .stages import SelectComponent as SelectComponent
from .stages import ShardData as ShardData
from .stages import ShardRows as ShardRows
from .stages import ShuffleData as ShuffleData
from .stages import SpeedReport as SpeedReport
from .stages import TestDataSpeed as TestDataSpeed
