"""Pure functions of tensors, and of pictures in the same way."""

from towerpack.ops.geometry import Geometry as Geometry
