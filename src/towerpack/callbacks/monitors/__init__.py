"""Monitors, which write numbers and images to files, the console or tracking services.

Callbacks put values into `Monitors`, which passes them to each `Monitor` and stores their history.
"""

from towerpack.callbacks.monitors._base import Monitor as Monitor
from towerpack.callbacks.monitors._base import Scalar as Scalar
from towerpack.callbacks.monitors._console import ConsoleMonitor as ConsoleMonitor
from towerpack.callbacks.monitors._files import CSVMonitor as CSVMonitor
from towerpack.callbacks.monitors._files import JSONLMonitor as JSONLMonitor
from towerpack.callbacks.monitors._files import Record as Record
from towerpack.callbacks.monitors._files import read_stats as read_stats
from towerpack.callbacks.monitors._monitors import Monitors as Monitors
from towerpack.callbacks.monitors._send import SendMonitorData as SendMonitorData
from towerpack.callbacks.monitors._tensorboard import TensorBoardMonitor as TensorBoardMonitor
from towerpack.callbacks.monitors._tracking_services import MLflowMonitor as MLflowMonitor
from towerpack.callbacks.monitors._tracking_services import WandbMonitor as WandbMonitor
