"""Sources: where datapoints come from. Those that decode images are in modules of their own."""

from ._fake import FakeData as FakeData
from ._generator import DataFromGenerator as DataFromGenerator
from ._generator import DataFromIterable as DataFromIterable
from ._memory import DataFromArrays as DataFromArrays
from ._memory import DataFromList as DataFromList
from ._queue import DataFromQueue as DataFromQueue
