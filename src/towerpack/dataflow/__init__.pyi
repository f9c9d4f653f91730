# Where each public name lives. `lazy` in `__init__.py`, type checkers and editors read it.
from towerpack.dataflow import dataset as dataset
from towerpack.dataflow import datasets as datasets
from towerpack.dataflow import formats as formats
from towerpack.dataflow import images as images
from towerpack.dataflow import imgaug as imgaug
from towerpack.dataflow import remote as remote
from towerpack.dataflow._compile import Stage as Stage
from towerpack.dataflow._flow import (
    DataFlow as DataFlow,
    ProxyDataFlow as ProxyDataFlow,
    RNGDataFlow as RNGDataFlow,
)
from towerpack.dataflow._batch_rows import empty_row as empty_row
from towerpack.dataflow._plan import Origin as Origin, Plan as Plan
from towerpack.dataflow._remote_files import set_remote_cache as set_remote_cache
from towerpack.dataflow._item_rng import ItemRNG as ItemRNG
from towerpack.dataflow._iteration_state import DataIterator as DataIterator
from towerpack.dataflow.formats import (
    CaffeLMDB as CaffeLMDB,
    DiskCacheData as DiskCacheData,
    HDF5Data as HDF5Data,
    HDF5Serializer as HDF5Serializer,
    HFData as HFData,
    LMDBData as LMDBData,
    LMDBDataDecoder as LMDBDataDecoder,
    LMDBSerializer as LMDBSerializer,
    NumpyData as NumpyData,
    NumpySerializer as NumpySerializer,
    ParquetData as ParquetData,
    SQLData as SQLData,
    SVMLightData as SVMLightData,
    TFRecordData as TFRecordData,
    TFRecordSerializer as TFRecordSerializer,
    TableData as TableData,
    TarData as TarData,
    TarSerializer as TarSerializer,
    TarWriter as TarWriter,
)
from towerpack.dataflow.images import (
    AugmentImageComponent as AugmentImageComponent,
    AugmentImageComponents as AugmentImageComponents,
    AugmentImageCoordinates as AugmentImageCoordinates,
)
from towerpack.dataflow.parallel import (
    MultiProcessMapAndBatchData as MultiProcessMapAndBatchData,
    MultiProcessMapAndBatchDataZMQ as MultiProcessMapAndBatchDataZMQ,
    MultiProcessMapData as MultiProcessMapData,
    MultiProcessMapDataZMQ as MultiProcessMapDataZMQ,
    MultiProcessPrefetchData as MultiProcessPrefetchData,
    MultiProcessRunner as MultiProcessRunner,
    MultiProcessRunnerZMQ as MultiProcessRunnerZMQ,
    MultiThreadMapData as MultiThreadMapData,
    MultiThreadPrefetchData as MultiThreadPrefetchData,
    MultiThreadRunner as MultiThreadRunner,
    PrefetchData as PrefetchData,
    PrefetchDataZMQ as PrefetchDataZMQ,
)
from towerpack.dataflow.profiling import (
    ProfileReport as ProfileReport,
    profile as profile,
)
from towerpack.dataflow.remote import (
    RemoteDataZMQ as RemoteDataZMQ,
    send_dataflow_zmq as send_dataflow_zmq,
)
from towerpack.dataflow.sources._fake import FakeData as FakeData
from towerpack.dataflow.sources._files import ImageFromFile as ImageFromFile
from towerpack.dataflow.sources._iterables import (
    DataFromGenerator as DataFromGenerator,
    DataFromIterable as DataFromIterable,
    DataFromQueue as DataFromQueue,
)
from towerpack.dataflow.sources.labelled import (
    ImageCSV as ImageCSV,
    ImageFolder as ImageFolder,
)
from towerpack.dataflow.sources._memory import (
    DataFromArrays as DataFromArrays,
    DataFromList as DataFromList,
)
from towerpack.dataflow.stages._batch import BatchData as BatchData
from towerpack.dataflow.stages._batch_by_length import BatchByLength as BatchByLength
from towerpack.dataflow.stages._cache import CacheData as CacheData
from towerpack.dataflow.stages._concat_and_join import (
    ConcatData as ConcatData,
    JoinData as JoinData,
)
from towerpack.dataflow.stages._batch_by_shape import BatchDataByShape as BatchDataByShape
from towerpack.dataflow.stages._pack import PackSequences as PackSequences
from towerpack.dataflow.stages._print import PrintData as PrintData
from towerpack.dataflow.stages._speed_test import (
    SpeedReport as SpeedReport,
    TestDataSpeed as TestDataSpeed,
)
from towerpack.dataflow.stages._map import (
    MapData as MapData,
    MapDataComponent as MapDataComponent,
    SelectComponent as SelectComponent,
)
from towerpack.dataflow.stages._filter import FilterData as FilterData
from towerpack.dataflow.stages._mix import (
    MixData as MixData,
    RandomChooseData as RandomChooseData,
    RandomMixData as RandomMixData,
)
from towerpack.dataflow.stages._repeat import (
    FixedSizeData as FixedSizeData,
    RepeatedData as RepeatedData,
    RepeatedDataPoint as RepeatedDataPoint,
)
from towerpack.dataflow.stages._shard import (
    ShardData as ShardData,
    ShardRows as ShardRows,
)
from towerpack.dataflow.stages._shuffle import (
    LocallyShuffleData as LocallyShuffleData,
    ShuffleData as ShuffleData,
)
from towerpack.dataflow.stages._weighted import WeightedData as WeightedData
from towerpack.dataflow.stages._without_rows import WithoutRows as WithoutRows
