"""Layers by name: what a tower function is written with. Keras 3 layers underneath."""

from towerpack._core.extras import require

require("tensorflow", extra="tf", needed_for="towerpack.nn")

from towerpack._keras.adapter import variable_alias as variable_alias
from towerpack._keras.owned import find_variables as find_variables
from towerpack._keras.owned import owners_of as owners_of
from towerpack.nn import summary as summary
from towerpack.nn._argscope import argscope as argscope
from towerpack.nn._batch_norm import BatchNorm as BatchNorm
from towerpack.nn._batch_norm import BatchRenorm as BatchRenorm
from towerpack.nn._batch_norm import BNReLU as BNReLU
from towerpack.nn._context import HEAVY as HEAVY
from towerpack.nn._context import Summary as Summary
from towerpack.nn._context import TowerContext as TowerContext
from towerpack.nn._context import find_tower_context as find_tower_context
from towerpack.nn._context import get_current_tower_context as get_current_tower_context
from towerpack.nn._context import get_global_step_var as get_global_step_var
from towerpack.nn._conv import Conv1D as Conv1D
from towerpack.nn._conv import Conv2D as Conv2D
from towerpack.nn._conv import Conv2DTranspose as Conv2DTranspose
from towerpack.nn._conv import Conv3D as Conv3D
from towerpack.nn._conv import Deconv2D as Deconv2D
from towerpack.nn._conv import DepthwiseConv2D as DepthwiseConv2D
from towerpack.nn._conv import SeparableConv2D as SeparableConv2D
from towerpack.nn._dense import Embedding as Embedding
from towerpack.nn._dense import FullyConnected as FullyConnected
from towerpack.nn._dense import PReLU as PReLU
<<<<<<< HEAD
from towerpack.nn._distributed import components_of as components_of
from towerpack.nn._frozen import frozen_statistics as frozen_statistics
=======
>>>>>>> shrinknn-keras
from towerpack.nn._global_step import find_global_step as find_global_step
from towerpack.nn._global_step import global_step as global_step
from towerpack.nn._linear_wrap import LinearWrap as LinearWrap
from towerpack.nn._norms import GroupNorm as GroupNorm
from towerpack.nn._norms import InstanceNorm as InstanceNorm
from towerpack.nn._norms import LayerNorm as LayerNorm
from towerpack.nn._norms import SpectralNorm as SpectralNorm
from towerpack.nn._register import auto_reuse_scope as auto_reuse_scope
from towerpack.nn._register import expose as expose
from towerpack.nn._register import register_layer as register_layer
from towerpack.nn._registry import RegisteredLayer as RegisteredLayer
from towerpack.nn._regularize import find_matching as find_matching
from towerpack.nn._regularize import l1_regularizer as l1_regularizer
from towerpack.nn._regularize import l2_regularizer as l2_regularizer
from towerpack.nn._regularize import regularize_cost as regularize_cost
from towerpack.nn._scope import cached_name_scope as cached_name_scope
from towerpack.nn._scope import reuse_scope as reuse_scope
from towerpack.nn._scope import scope as scope
from towerpack.nn._scope import under_name_scope as under_name_scope
from towerpack.nn._scope import under_variable_scope as under_variable_scope
from towerpack.nn._sequence import GRU as GRU
from towerpack.nn._sequence import LSTM as LSTM
from towerpack.nn._sequence import MultiHeadAttention as MultiHeadAttention
from towerpack.nn._sequence import PositionalEncoding as PositionalEncoding
from towerpack.nn._stateless import GELU as GELU
from towerpack.nn._stateless import AvgPooling as AvgPooling
from towerpack.nn._stateless import ConcatWith as ConcatWith
from towerpack.nn._stateless import Dropout as Dropout
from towerpack.nn._stateless import FixedUnPooling as FixedUnPooling
from towerpack.nn._stateless import GlobalAvgPooling as GlobalAvgPooling
from towerpack.nn._stateless import LeakyReLU as LeakyReLU
from towerpack.nn._stateless import Maxout as Maxout
from towerpack.nn._stateless import MaxPooling as MaxPooling
from towerpack.nn._stateless import ReLU as ReLU
from towerpack.nn._stateless import Sigmoid as Sigmoid
from towerpack.nn._stateless import SiLU as SiLU
from towerpack.nn._stateless import Tanh as Tanh
from towerpack.nn._stateless import UpSampling as UpSampling
from towerpack.nn._store import VariableStore as VariableStore
from towerpack.nn._store import components_of as components_of
from towerpack.nn._symbolic import print_stat as print_stat
from towerpack.nn._symbolic import psnr as psnr
from towerpack.nn._symbolic import rms as rms
from towerpack.nn._varreplace import freeze_variables as freeze_variables
from towerpack.nn._varreplace import remap_variables as remap_variables
from towerpack.nn.summary import add_activation_summary as add_activation_summary
from towerpack.nn.summary import add_moving_summary as add_moving_summary
from towerpack.nn.summary import add_param_summary as add_param_summary
from towerpack.nn.summary import add_tensor_summary as add_tensor_summary
