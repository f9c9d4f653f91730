"""Alias of `towerpack.dataflow.datasets` with the name that Tensorpack uses."""

from towerpack.dataflow.datasets import *  # noqa: F403
