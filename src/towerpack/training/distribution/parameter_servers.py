"""Cluster with parameter servers: its processes, and variables that lie on the servers."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NoReturn

import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack._core.native_log import quiet_start
from towerpack.cluster import Cluster
from towerpack.tower import TowerFunction, TowerTrace
from towerpack.training.distribution.base import SharedVariables
from towerpack.training.distribution.peers import (
    end_process,
    missing_peers,
    resolver_of,
    silent_peers,
    variables_kept,
    wait_for_peers,
)
from towerpack.training.distribution.replicas import like

_LOG = get_logger(__name__)
PROBE_S = 1.0


def cluster_with_servers() -> Cluster:
    cluster = Cluster.from_environment()
    if cluster is None or not {"chief", "ps", "worker"} <= {job for job, _ in cluster.tasks}:
        raise ConfigError(
            "ParameterServerTrainer finds no cluster.",
            got="no cluster" if cluster is None else cluster.tf_config(),
            expected="TF_CONFIG with a chief, parameter servers and workers",
            fix="towerpack launch --workers 2 --ps 1 -- python train.py",
        )
    return cluster


def serve(cluster: Cluster, seconds: float) -> NoReturn:
    """Compute or keep variables, as the chief says, until it has ended."""
    chief = {"chief": cluster.jobs["chief"][0]}
    with quiet_start():
        server = tf.distribute.Server(
            resolver_of(cluster).cluster_spec(),
            cluster.task_type,
            cluster.task_index,
            protocol="grpc",
        )
    _LOG.info("This is %s.", cluster.name)
    wait_for_peers(chief, None, seconds)
    misses = 0
    while misses < 2:  # One may be a network that has dropped a packet.
        time.sleep(PROBE_S)
        misses = misses + 1 if silent_peers(chief, seconds / 2) else 0
    _LOG.info("The chief has ended, and so does %s.", cluster.name)
    del server
    end_process(0)


def watch(peers: Mapping[str, str], seconds: float, over: threading.Event) -> None:
    """In a thread: end the process where a peer hangs, and with it whoever waits for it."""
    silent: dict[str, str] = {}
    misses = 0
    while misses < 3:
        if over.wait(seconds / 6):
            return
        silent = silent_peers(peers, seconds / 6)
        misses = misses + 1 if silent else 0
    _LOG.error("%s", missing_peers(silent, f"has not answered for {seconds:g} s"))
    end_process(1)


def connect(cluster: Cluster) -> Any:
    # Where the root logger has no handler, absl gives it one, which would show our log twice.
    root, nothing = logging.getLogger(), logging.NullHandler()
    root.addHandler(nothing)
    with quiet_start(), variables_kept():
        strategy = tf.distribute.ParameterServerStrategy(resolver_of(cluster))
    root.removeHandler(nothing)
    return tf.distribute.coordinator.ClusterCoordinator(strategy)


class OnServers(SharedVariables):
    """One replica for each step, wherever it runs; variables lie on the servers in turn."""

    def __init__(self, servers: int) -> None:
        super().__init__()
        self._devices = itertools.cycle(
            f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(servers)
        )

    def scope(self) -> AbstractContextManager[Any]:
        def create(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
            with tf.device(next(self._devices)):
                return next_creator(**kwargs)

        return tf.variable_creator_scope(create)

    def adopt(self, tower: TowerFunction, trace: TowerTrace) -> None:
        def make(name: str, variable: tf.Variable) -> tf.Variable:
            return like(variable)

        with self.scope():
            staying = tower.store.replace(make)
        if staying:
            _LOG.warning(
                "These variables stay with the chief, where each step has to fetch them: %s. To "
                "spare that, make them by layers, or in build_graph.",
                ", ".join(staying),
            )
