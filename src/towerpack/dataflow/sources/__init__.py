"""Sources of datapoints. Sources of images are in separate modules."""

from ._fake import FakeData as FakeData
from ._iterables import DataFromGenerator as DataFromGenerator
from ._iterables import DataFromIterable as DataFromIterable
from ._iterables import DataFromQueue as DataFromQueue
from ._memory import DataFromArrays as DataFromArrays
from ._memory import DataFromList as DataFromList
