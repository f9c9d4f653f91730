"""Callbacks of a training: saving, evaluation, schedules, displays.

Nothing here loads TensorFlow on its own.
"""

from towerpack._core.old_arguments import accept as _accept
from towerpack.callbacks import monitors as monitors
from towerpack.callbacks._base import Callback as Callback
from towerpack.callbacks._base import Callbacks as Callbacks
from towerpack.callbacks._confusion import ConfusionMatrix as ConfusionMatrix
from towerpack.callbacks._confusion import MeanIoU as MeanIoU
from towerpack.callbacks._debugging import GraphProfiler as GraphProfiler
from towerpack.callbacks._debugging import InjectShell as InjectShell
from towerpack.callbacks._detection import DetectionAP as DetectionAP
from towerpack.callbacks._host import HyperParam as HyperParam
from towerpack.callbacks._host import TrainerHost as TrainerHost
from towerpack.callbacks._human import HumanHyperParamSetter as HumanHyperParamSetter
from towerpack.callbacks._hyper import HyperParamSetter as HyperParamSetter
from towerpack.callbacks._hyper import HyperParamSetterWithFunc as HyperParamSetterWithFunc
from towerpack.callbacks._hyper import StatMonitorParamSetter as StatMonitorParamSetter
from towerpack.callbacks._inference_runner import (
    DataParallelInferenceRunner as DataParallelInferenceRunner,
)
from towerpack.callbacks._inference_runner import InferenceRunner as InferenceRunner
from towerpack.callbacks._inferencers import BinaryClassificationStats as BinaryClassificationStats
from towerpack.callbacks._inferencers import ClassificationError as ClassificationError
from towerpack.callbacks._inferencers import Inferencer as Inferencer
from towerpack.callbacks._inferencers import ScalarStats as ScalarStats
from towerpack.callbacks._lr_finder import LearningRateFinder as LearningRateFinder
from towerpack.callbacks._metrics import KerasMetric as KerasMetric
from towerpack.callbacks._metrics import Perplexity as Perplexity
from towerpack.callbacks._metrics import TopKError as TopKError
from towerpack.callbacks._nan_check import CheckNumerics as CheckNumerics
from towerpack.callbacks._nan_check import NaNWatch as NaNWatch
from towerpack.callbacks._outputs import DumpTensorAsImage as DumpTensorAsImage
from towerpack.callbacks._outputs import DumpTensors as DumpTensors
from towerpack.callbacks._outputs import ProcessOutputs as ProcessOutputs
from towerpack.callbacks._outputs import SimpleMovingAverage as SimpleMovingAverage
from towerpack.callbacks._outputs import TensorPrinter as TensorPrinter
from towerpack.callbacks._progress import ProgressBar as ProgressBar
from towerpack.callbacks._savers import BestSaver as BestSaver
from towerpack.callbacks._savers import MaxSaver as MaxSaver
from towerpack.callbacks._savers import MinSaver as MinSaver
from towerpack.callbacks._savers import ModelSaver as ModelSaver
from towerpack.callbacks._schedules import ScheduledHyperParamSetter as ScheduledHyperParamSetter
from towerpack.callbacks._schedules import cosine_schedule as cosine_schedule
from towerpack.callbacks._schedules import one_cycle_schedule as one_cycle_schedule
from towerpack.callbacks._schedules import piecewise_schedule as piecewise_schedule
from towerpack.callbacks._schedules import polynomial_schedule as polynomial_schedule
from towerpack.callbacks._schedules import warmup_schedule as warmup_schedule
from towerpack.callbacks._stopping import EarlyStopping as EarlyStopping
from towerpack.callbacks._stopping import StopAfter as StopAfter
from towerpack.callbacks._trackers import GPUMemoryTracker as GPUMemoryTracker
from towerpack.callbacks._trackers import GPUUtilizationTracker as GPUUtilizationTracker
from towerpack.callbacks._trackers import HostMemoryTracker as HostMemoryTracker
from towerpack.callbacks._wrappers import CallbackFactory as CallbackFactory
from towerpack.callbacks._wrappers import EnableCallbackIf as EnableCallbackIf
from towerpack.callbacks._wrappers import PeriodicCallback as PeriodicCallback
from towerpack.callbacks._wrappers import PeriodicTrigger as PeriodicTrigger
from towerpack.callbacks._wrappers import ProxyCallback as ProxyCallback
from towerpack.callbacks._wrappers import RunOp as RunOp

_accept(*list(globals().values()))
