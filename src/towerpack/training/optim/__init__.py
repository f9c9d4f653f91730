"""Gradient processors, and optimizers around optimizers."""

from towerpack.training.optim import gradproc as gradproc
from towerpack.training.optim import optimizer as optimizer
