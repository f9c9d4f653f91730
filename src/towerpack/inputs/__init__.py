"""Input sources, which provide the training steps with batches."""

from towerpack._core.extras import require
from towerpack._core.old_arguments import accept as _accept

require("tensorflow", extra="tf", needed_for="towerpack.inputs")

from towerpack.inputs._as_input import as_input as as_input
from towerpack.inputs._base import InputSource as InputSource
from towerpack.inputs._check import SpecChecker as SpecChecker
from towerpack.inputs._dataset import TFDatasetInput as TFDatasetInput
from towerpack.inputs._proxy import ProxyInputSource as ProxyInputSource
from towerpack.inputs._queue import FeedInput as FeedInput
from towerpack.inputs._queue import QueueInput as QueueInput
from towerpack.inputs._remap import remap_input_source as remap_input_source
from towerpack.inputs._simple import DummyConstantInput as DummyConstantInput
from towerpack.inputs._simple import TensorInput as TensorInput
from towerpack.inputs._split import SplitInput as SplitInput
from towerpack.inputs._staging import StagingInput as StagingInput
from towerpack.inputs._zmq import ZMQInput as ZMQInput

_accept(*list(globals().values()))
