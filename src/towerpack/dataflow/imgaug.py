"""The predecessor's name for `towerpack.dataflow.images`."""

from towerpack.dataflow.images import *  # noqa: F403
