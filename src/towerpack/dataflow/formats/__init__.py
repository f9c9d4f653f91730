"""Files that hold datapoints: each format is read by its class here, and written where it says."""

from ._hdf5 import HDF5Data as HDF5Data
from ._npz import NumpyData as NumpyData
from ._tar import TarData as TarData
from ._tar_writer import TarSerializer as TarSerializer
from ._tar_writer import TarWriter as TarWriter
