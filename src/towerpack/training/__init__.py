"""The loop, trainers, distribution, optimizers and gradient processors, and the run directory.

Names are loaded when they are first used, so that the parts that need no TensorFlow do not load it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from towerpack._core.extras import require

if TYPE_CHECKING:
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
    from towerpack.training._run_dir import OnExisting as OnExisting
    from towerpack.training._run_dir import RunDir as RunDir
    from towerpack.training._run_dir import default_run_dir as default_run_dir
    from towerpack.training._simple import SimpleTrainer as SimpleTrainer
    from towerpack.training._step import StepContext as StepContext
    from towerpack.training._step import StepSetup as StepSetup
    from towerpack.training._step import SupervisedStep as SupervisedStep
    from towerpack.training._step import TrainStep as TrainStep
    from towerpack.training._trainer import Trainer as Trainer

__all__ = [
    "BuiltStep",
    "KerasMetrics",
    "KerasModel",
    "Mirrored",
    "MultiWorkerTrainer",
    "ObjAttrParam",
    "OnExisting",
    "RunDir",
    "SharedVariables",
    "SimpleTrainer",
    "SmartInit",
    "StepContext",
    "StepSetup",
    "StopTraining",
    "SupervisedStep",
    "SyncMultiGPUTrainer",
    "SyncMultiGPUTrainerParameterServer",
    "SyncMultiGPUTrainerReplicated",
    "TrainConfig",
    "TrainStep",
    "Trainer",
    "VariableParam",
    "build_step",
    "default_run_dir",
    "get_num_gpu",
    "join_cluster",
    "launch_train_with_config",
]

_HOME = {
    "BuiltStep": "_build_step",
    "build_step": "_build_step",
    "SharedVariables": "_distribution",
    "KerasMetrics": "_keras_model",
    "KerasModel": "_keras_model",
    "Mirrored": "_mirrored",
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
    "OnExisting": "_run_dir",
    "RunDir": "_run_dir",
    "default_run_dir": "_run_dir",
    "SimpleTrainer": "_simple",
    "StepContext": "_step",
    "StepSetup": "_step",
    "SupervisedStep": "_step",
    "TrainStep": "_step",
    "Trainer": "_trainer",
}
_WITHOUT_TENSORFLOW = {"_config", "_init", "_interrupt", "_run_dir"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    home = _HOME[name]
    if home not in _WITHOUT_TENSORFLOW:
        require("tensorflow", extra="tf", needed_for=f"{__name__}.{name}")
    value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
