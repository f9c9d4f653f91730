"""Optimizers around optimizers: the predecessor's module of this name, and its names of classes."""

from towerpack._core.old_arguments import accept as _accept
from towerpack.training.optim.optimizer_wrappers import AccumulateGradients as AccumulateGradients
from towerpack.training.optim.optimizer_wrappers import PostProcess as PostProcess
from towerpack.training.optim.optimizer_wrappers import PostProcess as PostProcessOptimizer
from towerpack.training.optim.optimizer_wrappers import ProcessGradients as ProcessGradients
from towerpack.training.optim.optimizer_wrappers import VariableAssignment as VariableAssignment
from towerpack.training.optim.optimizer_wrappers import (
    VariableAssignment as VariableAssignmentOptimizer,
)
from towerpack.training.optim.optimizer_wrappers import WeightEMA as WeightEMA
from towerpack.training.optim.optimizer_wrappers import (
    apply_grad_processors as apply_grad_processors,
)
from towerpack.training.optim.proxy_and_loss_scale import ProxyOptimizer as ProxyOptimizer

__all__ = [
    "AccumulateGradients",
    "PostProcess",
    "PostProcessOptimizer",
    "ProcessGradients",
    "ProxyOptimizer",
    "VariableAssignment",
    "VariableAssignmentOptimizer",
    "WeightEMA",
    "apply_grad_processors",
]

_accept(*list(globals().values()))
