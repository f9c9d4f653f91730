"""Processes of a distributed job: their addresses, and a launcher for one machine."""

from towerpack.cluster._cluster import Cluster as Cluster
from towerpack.cluster._launcher import Launcher as Launcher
