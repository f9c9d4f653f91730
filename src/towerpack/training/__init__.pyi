# Where each public name lives. `lazy` in `__init__.py`, type checkers and editors read it.
from towerpack.training._async import AsyncMultiGPUTrainer as AsyncMultiGPUTrainer
from towerpack.training._build_step import (
    BuiltStep as BuiltStep,
    build_step as build_step,
)
from towerpack.training._config import TrainConfig as TrainConfig
from towerpack.training._distribution import SharedVariables as SharedVariables
from towerpack.training._hyper import (
    ObjAttrParam as ObjAttrParam,
    VariableParam as VariableParam,
)
from towerpack.training._init import SmartInit as SmartInit
from towerpack.training._interrupt import StopTraining as StopTraining
from towerpack.training._keras_model import (
    KerasMetrics as KerasMetrics,
    KerasModel as KerasModel,
)
from towerpack.training._launch import launch_train_with_config as launch_train_with_config
from towerpack.training._load_weights import load_weights as load_weights
from towerpack.training._mirrored import Mirrored as Mirrored
from towerpack.training._multi import (
    SyncMultiGPUTrainer as SyncMultiGPUTrainer,
    SyncMultiGPUTrainerParameterServer as SyncMultiGPUTrainerParameterServer,
    SyncMultiGPUTrainerReplicated as SyncMultiGPUTrainerReplicated,
    get_num_gpu as get_num_gpu,
)
from towerpack.training._multi_worker import (
    MultiWorkerTrainer as MultiWorkerTrainer,
    join_cluster as join_cluster,
)
from towerpack.training._noop import NoOpTrainer as NoOpTrainer
from towerpack.training._parameter_server import ParameterServerTrainer as ParameterServerTrainer
from towerpack.training._run_dir import (
    OnExisting as OnExisting,
    RunDir as RunDir,
    default_run_dir as default_run_dir,
)
from towerpack.training._simple import SimpleTrainer as SimpleTrainer
from towerpack.training._step import (
    StepContext as StepContext,
    StepSetup as StepSetup,
    SupervisedStep as SupervisedStep,
    TowerFunction as TowerFunction,
    TrainStep as TrainStep,
)
from towerpack.training._trainer import Trainer as Trainer
from towerpack.training.optim import (
    gradproc as gradproc,
    optimizer as optimizer,
)
from towerpack.training.optim._processors import (
    CheckGradient as CheckGradient,
    FilterNoneGrad as FilterNoneGrad,
    GlobalNormClip as GlobalNormClip,
    GradientProcessor as GradientProcessor,
    MapGradient as MapGradient,
    PrintGradient as PrintGradient,
    ScaleGradient as ScaleGradient,
    SummaryGradient as SummaryGradient,
    ValueClip as ValueClip,
)
from towerpack.training.optim._wrappers import (
    AccumulateGradients as AccumulateGradients,
    PostProcess as PostProcess,
    ProcessGradients as ProcessGradients,
    VariableAssignment as VariableAssignment,
    WeightEMA as WeightEMA,
    apply_grad_processors as apply_grad_processors,
)
from towerpack.training.optim._wrapping import ProxyOptimizer as ProxyOptimizer
