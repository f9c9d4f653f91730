"""File formats of datapoints: sources that read them, and serializers that write flows."""

from ._caffe import CaffeLMDB as CaffeLMDB
from ._caffe import decode_datum as decode_datum
from ._disk_cache import DiskCacheData as DiskCacheData
from ._hdf5 import HDF5Data as HDF5Data
from ._hdf5 import HDF5Serializer as HDF5Serializer
from ._lmdb import LMDBData as LMDBData
from ._lmdb import LMDBDataDecoder as LMDBDataDecoder
from ._lmdb import LMDBSerializer as LMDBSerializer
from ._numpy import NumpyData as NumpyData
from ._numpy import NumpySerializer as NumpySerializer
from ._parquet import ParquetData as ParquetData
from ._protobuf import FixedFeature as FixedFeature
from ._protobuf import VariableFeature as VariableFeature
from ._protobuf import encode_example as encode_example
from ._protobuf import parse_example as parse_example
from ._svmlight import SVMLightData as SVMLightData
from ._tar import TarData as TarData
from ._tar_writer import TarSerializer as TarSerializer
from ._tar_writer import TarWriter as TarWriter
from ._tfrecord import TFRecordData as TFRecordData
from ._tfrecord import TFRecordSerializer as TFRecordSerializer
from ._tfrecord import TFRecordWriter as TFRecordWriter
from ._wire import pack as pack
from ._wire import pack_frames as pack_frames
from ._wire import unpack as unpack
from ._wire import unpack_frames as unpack_frames
