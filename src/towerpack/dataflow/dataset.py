"""The predecessor's name for `towerpack.dataflow.datasets`."""

from towerpack.dataflow.datasets import *  # noqa: F403
