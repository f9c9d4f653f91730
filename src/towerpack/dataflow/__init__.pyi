# Written by `make public-names` from the table in __init__.py.
from towerpack.dataflow import dataset as dataset
from towerpack.dataflow import datasets as datasets
from towerpack.dataflow import formats as formats
from towerpack.dataflow import images as images
from towerpack.dataflow import imgaug as imgaug
from towerpack.dataflow import remote as remote
from towerpack.dataflow._flow import (
    DataFlow as DataFlow,
    ProxyDataFlow as ProxyDataFlow,
    RNGDataFlow as RNGDataFlow,
    Stage as Stage,
)
from towerpack.dataflow._memory import (
    empty_row as empty_row,
)
from towerpack.dataflow._plan import (
    Plan as Plan,
)
from towerpack.dataflow._randomness import (
    ItemRNG as ItemRNG,
)
from towerpack.dataflow._stream import (
    DataIterator as DataIterator,
)
from towerpack.dataflow.formats import (
    CaffeLMDB as CaffeLMDB,
    DiskCacheData as DiskCacheData,
    HDF5Data as HDF5Data,
    HDF5Serializer as HDF5Serializer,
    LMDBData as LMDBData,
    LMDBDataDecoder as LMDBDataDecoder,
    LMDBSerializer as LMDBSerializer,
    NumpyData as NumpyData,
    NumpySerializer as NumpySerializer,
    ParquetData as ParquetData,
    SVMLightData as SVMLightData,
    TFRecordData as TFRecordData,
    TFRecordSerializer as TFRecordSerializer,
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
from towerpack.dataflow.sources import (
    DataFromArrays as DataFromArrays,
    DataFromGenerator as DataFromGenerator,
    DataFromIterable as DataFromIterable,
    DataFromList as DataFromList,
    DataFromQueue as DataFromQueue,
    FakeData as FakeData,
)
from towerpack.dataflow.sources._files import (
    ImageFromFile as ImageFromFile,
)
from towerpack.dataflow.sources._labelled import (
    ImageCSV as ImageCSV,
    ImageFolder as ImageFolder,
)
from towerpack.dataflow.stages import (
    BatchByLength as BatchByLength,
    BatchData as BatchData,
    BatchDataByShape as BatchDataByShape,
    CacheData as CacheData,
    ConcatData as ConcatData,
    FilterData as FilterData,
    FixedSizeData as FixedSizeData,
    JoinData as JoinData,
    LocallyShuffleData as LocallyShuffleData,
    MapData as MapData,
    MapDataComponent as MapDataComponent,
    MixData as MixData,
    PrintData as PrintData,
    RandomChooseData as RandomChooseData,
    RandomMixData as RandomMixData,
    RepeatedData as RepeatedData,
    RepeatedDataPoint as RepeatedDataPoint,
    SelectComponent as SelectComponent,
    ShardData as ShardData,
    ShardRows as ShardRows,
    ShuffleData as ShuffleData,
    SpeedReport as SpeedReport,
    TestDataSpeed as TestDataSpeed,
)
