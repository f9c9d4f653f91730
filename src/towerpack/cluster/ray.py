"""Training on a Ray cluster, which places, restarts and resizes the workers of a job."""

from towerpack.cluster._on_ray import train as train
