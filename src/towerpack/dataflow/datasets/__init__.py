"""Public data sets, downloaded if necessary, checked, and read as flows with random access.

ds = Mnist("train")
ds = BatchData(ds, 128)
"""

from ._cifar import Cifar10 as Cifar10
from ._cifar import Cifar100 as Cifar100
from ._cifar import CifarBase as CifarBase
from ._download import data_dir as data_dir
from ._download import download as download
from ._extract import extract as extract
from ._ilsvrc import ILSVRC12 as ILSVRC12
from ._ilsvrc import ILSVRC12Files as ILSVRC12Files
from ._ilsvrc import ILSVRCMeta as ILSVRCMeta
from ._mnist import Caltech101Silhouettes as Caltech101Silhouettes
from ._mnist import Digits as Digits
from ._mnist import FashionMnist as FashionMnist
from ._mnist import Mnist as Mnist
from ._mnist import SVHNDigit as SVHNDigit
from ._photographs import BSDS500 as BSDS500
from ._photographs import Places365Standard as Places365Standard
from ._photographs import TinyImageNet as TinyImageNet
