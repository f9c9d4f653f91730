"""Data pipelines that need no framework: sources, stages, plans and exact resuming.

ds = DataFromArrays(images, labels)
ds = ShuffleData(ds)
ds = BatchData(ds, 128)
for images, labels in ds: ...
"""

from __future__ import annotations

from towerpack._core.lazy import lazy

# Where each public name lives; it is loaded when it is first used, so that a worker process, which
# needs little of all this, starts fast. `make public-names` writes the types in `__init__.pyi`.
_NAMES: dict[str, list[str]] = {
    "towerpack.dataflow._flow": ["DataFlow", "ProxyDataFlow", "RNGDataFlow", "Stage"],
    "towerpack.dataflow._memory": ["empty_row"],
    "towerpack.dataflow._plan": ["Plan"],
    "towerpack.dataflow._randomness": ["ItemRNG"],
    "towerpack.dataflow._stream": ["DataIterator"],
    "towerpack.dataflow.formats": [
        "CaffeLMDB",
        "DiskCacheData",
        "HDF5Data",
        "HDF5Serializer",
        "LMDBData",
        "LMDBDataDecoder",
        "LMDBSerializer",
        "NumpyData",
        "NumpySerializer",
        "ParquetData",
        "SVMLightData",
        "TFRecordData",
        "TFRecordSerializer",
        "TarData",
        "TarSerializer",
        "TarWriter",
    ],
    "towerpack.dataflow.images": [
        "AugmentImageComponent",
        "AugmentImageComponents",
        "AugmentImageCoordinates",
    ],
    "towerpack.dataflow.parallel": [
        "MultiProcessMapAndBatchData",
        "MultiProcessMapAndBatchDataZMQ",
        "MultiProcessMapData",
        "MultiProcessMapDataZMQ",
        "MultiProcessPrefetchData",
        "MultiProcessRunner",
        "MultiProcessRunnerZMQ",
        "MultiThreadMapData",
        "MultiThreadPrefetchData",
        "MultiThreadRunner",
        "PrefetchData",
        "PrefetchDataZMQ",
    ],
    "towerpack.dataflow.profiling": ["ProfileReport", "profile"],
    "towerpack.dataflow.remote": ["RemoteDataZMQ", "send_dataflow_zmq"],
    "towerpack.dataflow.sources._fake": ["FakeData"],
    "towerpack.dataflow.sources._files": ["ImageFromFile"],
    "towerpack.dataflow.sources._iterables": [
        "DataFromGenerator",
        "DataFromIterable",
        "DataFromQueue",
    ],
    "towerpack.dataflow.sources._labelled": ["ImageCSV", "ImageFolder"],
    "towerpack.dataflow.sources._memory": ["DataFromArrays", "DataFromList"],
    "towerpack.dataflow.stages._batch": ["BatchData"],
    "towerpack.dataflow.stages._by_length": ["BatchByLength"],
    "towerpack.dataflow.stages._cache": ["CacheData"],
    "towerpack.dataflow.stages._combination": ["ConcatData", "JoinData"],
    "towerpack.dataflow.stages._grouping": ["BatchDataByShape"],
    "towerpack.dataflow.stages._looking": ["PrintData", "SpeedReport", "TestDataSpeed"],
    "towerpack.dataflow.stages._map": ["MapData", "MapDataComponent", "SelectComponent"],
    "towerpack.dataflow.stages._mapping": ["FilterData"],
    "towerpack.dataflow.stages._mix": ["MixData", "RandomChooseData", "RandomMixData"],
    "towerpack.dataflow.stages._repeat": ["FixedSizeData", "RepeatedData", "RepeatedDataPoint"],
    "towerpack.dataflow.stages._shard": ["ShardData", "ShardRows"],
    "towerpack.dataflow.stages._shuffle": ["LocallyShuffleData", "ShuffleData"],
}
_MODULES: list[str] = ["dataset", "datasets", "formats", "images", "imgaug", "remote"]

__getattr__, __dir__, _names = lazy(__name__, _NAMES, _MODULES)
# Programs write `dataset.Mnist("train")` and `imgaug.Flip()` after `import *`.
__all__ = [*_names, "dataset", "imgaug"]  # pyright: ignore[reportUnsupportedDunderAll]
