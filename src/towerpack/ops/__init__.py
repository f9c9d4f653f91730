"""Pure functions of tensors and images."""

from towerpack.ops.geometry import Geometry as Geometry
