"""Files that hold datapoints: each format is read by its class here, and written where it says."""

from ._npz import NumpyData as NumpyData
from ._tar import TarData as TarData
from ._tar_writer import TarSerializer as TarSerializer
from ._tar_writer import TarWriter as TarWriter
