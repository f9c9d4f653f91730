"""Several processes of one job: who they are, and how they are started on one machine."""

from towerpack.cluster._cluster import Cluster as Cluster
from towerpack.cluster._launcher import Launcher as Launcher

__all__ = ["Cluster", "Launcher"]
