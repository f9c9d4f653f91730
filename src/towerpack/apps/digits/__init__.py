"""Handwritten digits: the demonstration, on real data that need no download."""

from towerpack.apps.digits._data import Digits as Digits
from towerpack.apps.digits._data import evaluation_flow as evaluation_flow
from towerpack.apps.digits._data import load_digits as load_digits
from towerpack.apps.digits._data import train_flow as train_flow
from towerpack.apps.digits._model import LeNet as LeNet
from towerpack.apps.digits._run import DemoResult as DemoResult
from towerpack.apps.digits._run import run as run
