# Where each public name lives. `lazy` in `__init__.py`, type checkers and editors read it.
from towerpack.training.config import TrainConfig as TrainConfig
from towerpack.training.distribution.base import SharedVariables as SharedVariables
from towerpack.training.distribution.mirrored import Mirrored as Mirrored
from towerpack.training.distribution.multi_worker import join_cluster as join_cluster
from towerpack.training.interrupt import StopTraining as StopTraining
from towerpack.training.optim import gradproc as gradproc, optimizer as optimizer
from towerpack.training.optim.gradient_processors import (
    CheckGradient as CheckGradient, FilterNoneGrad as FilterNoneGrad,
    GlobalNormClip as GlobalNormClip, GradientProcessor as GradientProcessor,
    MapGradient as MapGradient, PrintGradient as PrintGradient, ScaleGradient as ScaleGradient,
    SummaryGradient as SummaryGradient, ValueClip as ValueClip,
)
from towerpack.training.optim.variable_param import (
    ObjAttrParam as ObjAttrParam, VariableParam as VariableParam,
)
from towerpack.training.optim.optimizer_wrappers import (
    AccumulateGradients as AccumulateGradients, PostProcess as PostProcess,
    ProcessGradients as ProcessGradients, VariableAssignment as VariableAssignment,
    WeightEMA as WeightEMA, apply_grad_processors as apply_grad_processors,
)
from towerpack.training.optim.proxy_and_loss_scale import ProxyOptimizer as ProxyOptimizer
from towerpack.training.replay.batch import (
    StepBatch as StepBatch, batch_of_step as batch_of_step,
)
from towerpack.training.replay.spikes import Spike as Spike, spikes as spikes
from towerpack.training.state.run_dir import (
    OnExisting as OnExisting, RunDir as RunDir, default_run_dir as default_run_dir,
)
from towerpack.training.steps.keras_model import (
    KerasMetrics as KerasMetrics, KerasModel as KerasModel,
)
from towerpack.training.steps.step import (
    StepContext as StepContext, StepSetup as StepSetup, SupervisedStep as SupervisedStep,
    TowerFunction as TowerFunction, TrainStep as TrainStep,
)
from towerpack.training.trainers.async_multi_gpu import AsyncMultiGPUTrainer as AsyncMultiGPUTrainer
from towerpack.training.trainers.base import (
    SimpleTrainer as SimpleTrainer, Trainer as Trainer,
    launch_train_with_config as launch_train_with_config,
)
from towerpack.training.trainers.batch_size import find_batch_size as find_batch_size
from towerpack.training.trainers.multi_gpu import (
    SyncMultiGPUTrainer as SyncMultiGPUTrainer,
    SyncMultiGPUTrainerParameterServer as SyncMultiGPUTrainerParameterServer,
    SyncMultiGPUTrainerReplicated as SyncMultiGPUTrainerReplicated, get_num_gpu as get_num_gpu,
)
from towerpack.training.trainers.multi_worker import MultiWorkerTrainer as MultiWorkerTrainer
from towerpack.training.trainers.noop import NoOpTrainer as NoOpTrainer
from towerpack.training.trainers.own_loop import BuiltStep as BuiltStep, build_step as build_step
from towerpack.training.trainers.parameter_server import ParameterServerTrainer as ParameterServerTrainer
from towerpack.training.weights.load import load_weights as load_weights
from towerpack.training.weights.match_by_name import SmartInit as SmartInit
