"""Data pipelines that need no framework: sources, stages, plans and exact resuming.

ds = DataFromArrays(images, labels)
ds = ShuffleData(ds)
ds = BatchData(ds, 128)
for images, labels in ds: ...
"""

from . import images as images
from . import imgaug as imgaug
from ._draws import ItemRNG as ItemRNG
from ._flow import DataFlow as DataFlow
from ._flow import ProxyDataFlow as ProxyDataFlow
from ._flow import RNGDataFlow as RNGDataFlow
from ._flow import Stage as Stage
from ._iterator import DataIterator as DataIterator
from ._plan import Plan as Plan
from .images import AugmentImageComponent as AugmentImageComponent
from .images import AugmentImageComponents as AugmentImageComponents
from .images import AugmentImageCoordinates as AugmentImageCoordinates
from .sources import DataFromArrays as DataFromArrays
from .sources import DataFromGenerator as DataFromGenerator
from .sources import DataFromIterable as DataFromIterable
from .sources import DataFromList as DataFromList
from .sources import FakeData as FakeData
from .stages import BatchData as BatchData
from .stages import CacheData as CacheData
from .stages import ConcatData as ConcatData
from .stages import FixedSizeData as FixedSizeData
from .stages import JoinData as JoinData
from .stages import LocallyShuffleData as LocallyShuffleData
from .stages import MapData as MapData
from .stages import MapDataComponent as MapDataComponent
from .stages import PrintData as PrintData
from .stages import RepeatedData as RepeatedData
from .stages import SelectComponent as SelectComponent
from .stages import ShuffleData as ShuffleData
from .stages import SpeedReport as SpeedReport
from .stages import TestDataSpeed as TestDataSpeed
