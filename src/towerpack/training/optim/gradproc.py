"""Gradient processors: the predecessor's module of this name."""

from towerpack._core.old_arguments import accept as _accept
from towerpack.training.optim.gradient_processors import CheckGradient as CheckGradient
from towerpack.training.optim.gradient_processors import FilterNoneGrad as FilterNoneGrad
from towerpack.training.optim.gradient_processors import GlobalNormClip as GlobalNormClip
from towerpack.training.optim.gradient_processors import GradientProcessor as GradientProcessor
from towerpack.training.optim.gradient_processors import MapGradient as MapGradient
from towerpack.training.optim.gradient_processors import PrintGradient as PrintGradient
from towerpack.training.optim.gradient_processors import ScaleGradient as ScaleGradient
from towerpack.training.optim.gradient_processors import SummaryGradient as SummaryGradient
from towerpack.training.optim.gradient_processors import ValueClip as ValueClip

_accept(*list(globals().values()))
