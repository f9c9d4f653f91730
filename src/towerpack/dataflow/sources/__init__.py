"""Sources: where datapoints come from."""

from ._arrays import DataFromArrays as DataFromArrays
from ._csv import ImageCSV as ImageCSV
from ._fake import FakeData as FakeData
from ._files import ImageFromFile as ImageFromFile
from ._folders import ImageFolder as ImageFolder
from ._generator import DataFromGenerator as DataFromGenerator
from ._generator import DataFromIterable as DataFromIterable
from ._list import DataFromList as DataFromList
from ._queue import DataFromQueue as DataFromQueue
