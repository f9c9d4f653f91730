"""The loop, trainers, distribution, optimizers and gradient processors, and the run directory.

Names are loaded when they are first used, so that the parts that need no TensorFlow do not load it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from towerpack._core.extras import require
from towerpack._core.old_arguments import accept

if TYPE_CHECKING:
    from towerpack.training._async import AsyncMultiGPUTrainer as AsyncMultiGPUTrainer
    from towerpack.training._build_step import BuiltStep as BuiltStep
    from towerpack.training._build_step import build_step as build_step
    from towerpack.training._config import TrainConfig as TrainConfig
    from towerpack.training._distribution import SharedVariables as SharedVariables
    from towerpack.training._hyper import ObjAttrParam as ObjAttrParam
    from towerpack.training._hyper import VariableParam as VariableParam
    from towerpack.training._init import SmartInit as SmartInit
    from towerpack.training._interrupt import StopTraining as StopTraining
    from towerpack.training._keras_model import KerasMetrics as KerasMetrics
    from towerpack.training._keras_model import KerasModel as KerasModel
    from towerpack.training._launch import launch_train_with_config as launch_train_with_config
    from towerpack.training._load_weights import load_weights as load_weights
    from towerpack.training._mirrored import Mirrored as Mirrored
    from towerpack.training._multi import SyncMultiGPUTrainer as SyncMultiGPUTrainer
    from towerpack.training._multi import (
        SyncMultiGPUTrainerParameterServer as SyncMultiGPUTrainerParameterServer,
    )
    from towerpack.training._multi import (
        SyncMultiGPUTrainerReplicated as SyncMultiGPUTrainerReplicated,
    )
    from towerpack.training._multi import get_num_gpu as get_num_gpu
    from towerpack.training._multi_worker import MultiWorkerTrainer as MultiWorkerTrainer
    from towerpack.training._multi_worker import join_cluster as join_cluster
    from towerpack.training._noop import NoOpTrainer as NoOpTrainer
    from towerpack.training._parameter_server import (
        ParameterServerTrainer as ParameterServerTrainer,
    )
    from towerpack.training._run_dir import OnExisting as OnExisting
    from towerpack.training._run_dir import RunDir as RunDir
    from towerpack.training._run_dir import default_run_dir as default_run_dir
    from towerpack.training._simple import SimpleTrainer as SimpleTrainer
    from towerpack.training._step import StepContext as StepContext
    from towerpack.training._step import StepSetup as StepSetup
    from towerpack.training._step import SupervisedStep as SupervisedStep
    from towerpack.training._step import TowerFunction as TowerFunction
    from towerpack.training._step import TrainStep as TrainStep
    from towerpack.training._trainer import Trainer as Trainer
    from towerpack.training.optim import gradproc as gradproc
    from towerpack.training.optim import optimizer as optimizer
    from towerpack.training.optim._processors import CheckGradient as CheckGradient
    from towerpack.training.optim._processors import FilterNoneGrad as FilterNoneGrad
    from towerpack.training.optim._processors import GlobalNormClip as GlobalNormClip
    from towerpack.training.optim._processors import GradientProcessor as GradientProcessor
    from towerpack.training.optim._processors import MapGradient as MapGradient
    from towerpack.training.optim._processors import PrintGradient as PrintGradient
    from towerpack.training.optim._processors import ScaleGradient as ScaleGradient
    from towerpack.training.optim._processors import SummaryGradient as SummaryGradient
    from towerpack.training.optim._processors import ValueClip as ValueClip
    from towerpack.training.optim._wrappers import AccumulateGradients as AccumulateGradients
    from towerpack.training.optim._wrappers import PostProcess as PostProcess
    from towerpack.training.optim._wrappers import ProcessGradients as ProcessGradients
    from towerpack.training.optim._wrappers import VariableAssignment as VariableAssignment
    from towerpack.training.optim._wrappers import WeightEMA as WeightEMA
    from towerpack.training.optim._wrappers import apply_grad_processors as apply_grad_processors
    from towerpack.training.optim._wrapping import ProxyOptimizer as ProxyOptimizer

__all__ = [
    "AccumulateGradients",
    "AsyncMultiGPUTrainer",
    "BuiltStep",
    "CheckGradient",
    "FilterNoneGrad",
    "GlobalNormClip",
    "GradientProcessor",
    "KerasMetrics",
    "KerasModel",
    "MapGradient",
    "Mirrored",
    "MultiWorkerTrainer",
    "NoOpTrainer",
    "ObjAttrParam",
    "OnExisting",
    "ParameterServerTrainer",
    "PostProcess",
    "PrintGradient",
    "ProcessGradients",
    "ProxyOptimizer",
    "RunDir",
    "ScaleGradient",
    "SharedVariables",
    "SimpleTrainer",
    "SmartInit",
    "StepContext",
    "StepSetup",
    "StopTraining",
    "SummaryGradient",
    "SupervisedStep",
    "SyncMultiGPUTrainer",
    "SyncMultiGPUTrainerParameterServer",
    "SyncMultiGPUTrainerReplicated",
    "TowerFunction",
    "TrainConfig",
    "TrainStep",
    "Trainer",
    "ValueClip",
    "VariableAssignment",
    "VariableParam",
    "WeightEMA",
    "apply_grad_processors",
    "build_step",
    "default_run_dir",
    "get_num_gpu",
    "gradproc",
    "join_cluster",
    "launch_train_with_config",
    "load_weights",
    "optimizer",
]

_HOME = {
    "BuiltStep": "_build_step",
    "build_step": "_build_step",
    "SharedVariables": "_distribution",
    "KerasMetrics": "_keras_model",
    "KerasModel": "_keras_model",
    "Mirrored": "_mirrored",
    "AsyncMultiGPUTrainer": "_async",
    "NoOpTrainer": "_noop",
    "ParameterServerTrainer": "_parameter_server",
    "TrainConfig": "_config",
    "ObjAttrParam": "_hyper",
    "VariableParam": "_hyper",
    "SmartInit": "_init",
    "StopTraining": "_interrupt",
    "SyncMultiGPUTrainer": "_multi",
    "SyncMultiGPUTrainerParameterServer": "_multi",
    "SyncMultiGPUTrainerReplicated": "_multi",
    "get_num_gpu": "_multi",
    "MultiWorkerTrainer": "_multi_worker",
    "join_cluster": "_multi_worker",
    "launch_train_with_config": "_launch",
    "load_weights": "_load_weights",
    "OnExisting": "_run_dir",
    "RunDir": "_run_dir",
    "default_run_dir": "_run_dir",
    "SimpleTrainer": "_simple",
    "StepContext": "_step",
    "StepSetup": "_step",
    "SupervisedStep": "_step",
    "TowerFunction": "_step",
    "TrainStep": "_step",
    "Trainer": "_trainer",
    "AccumulateGradients": "optim._wrappers",
    "CheckGradient": "optim._processors",
    "FilterNoneGrad": "optim._processors",
    "GlobalNormClip": "optim._processors",
    "GradientProcessor": "optim._processors",
    "MapGradient": "optim._processors",
    "PostProcess": "optim._wrappers",
    "PrintGradient": "optim._processors",
    "ProcessGradients": "optim._wrappers",
    "ProxyOptimizer": "optim._wrapping",
    "ScaleGradient": "optim._processors",
    "SummaryGradient": "optim._processors",
    "ValueClip": "optim._processors",
    "VariableAssignment": "optim._wrappers",
    "WeightEMA": "optim._wrappers",
    "apply_grad_processors": "optim._wrappers",
    "gradproc": "optim",
    "optimizer": "optim",
}
_WITHOUT_TENSORFLOW = {"_config", "_init", "_interrupt", "_run_dir"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    home = _HOME[name]
    if home not in _WITHOUT_TENSORFLOW:
        require("tensorflow", extra="tf", needed_for=f"{__name__}.{name}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    accept(value)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
