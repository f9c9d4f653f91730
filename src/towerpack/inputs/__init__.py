"""How data enter the device."""

from towerpack._core.extras import require

require("tensorflow", extra="tf", needed_for="towerpack.inputs")

from towerpack.inputs._base import InputSource as InputSource
from towerpack.inputs._check import SpecChecker as SpecChecker
from towerpack.inputs._queue import FeedInput as FeedInput
from towerpack.inputs._queue import QueueInput as QueueInput
from towerpack.inputs._queue import as_input as as_input
from towerpack.inputs._simple import DummyConstantInput as DummyConstantInput
from towerpack.inputs._simple import TensorInput as TensorInput
