"""Optimizer wrappers, under the module and class names of Tensorpack."""

from towerpack._core.old_arguments import accept as _accept
from towerpack.training.optim.optimizer_wrappers import AccumulateGradients as AccumulateGradients
from towerpack.training.optim.optimizer_wrappers import PostProcess as PostProcess
from towerpack.training.optim.optimizer_wrappers import ProcessGradients as ProcessGradients
from towerpack.training.optim.optimizer_wrappers import VariableAssignment as VariableAssignment
from towerpack.training.optim.optimizer_wrappers import WeightEMA as WeightEMA
from towerpack.training.optim.optimizer_wrappers import (
    apply_grad_processors as apply_grad_processors,
)
from towerpack.training.optim.proxy_and_loss_scale import ProxyOptimizer as ProxyOptimizer

PostProcessOptimizer = PostProcess
VariableAssignmentOptimizer = VariableAssignment

_accept(*list(globals().values()))
