"""Cluster with parameter servers: its processes, and the variables on the servers."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, NoReturn

import tensorflow as tf

from towerpack._core.errors import ConfigError, PeerError
from towerpack._core.logs import get_logger
from towerpack._core.native_log import quiet_start
from towerpack.cluster import Cluster
from towerpack.tower import TowerFunction, TowerTrace
from towerpack.training.distribution.base import SharedVariables
from towerpack.training.distribution.peers import (
    end_process,
    missing_peers,
    preserved_variables,
    resolver_of,
    silent_peers,
    wait_for_peers,
)
from towerpack.training.distribution.replicas import like

_LOG = get_logger(__name__)
PROBE_S: Final = 1.0
_GONE_S: Final = 4.0


def cluster_with_servers() -> Cluster:
    cluster = Cluster.from_environment()
    if cluster is None or not {"chief", "ps", "worker"} <= {job for job, _ in cluster.tasks}:
        raise ConfigError(
            "ParameterServerTrainer needs a cluster with a chief, parameter servers and workers.",
            got="no cluster in TF_CONFIG" if cluster is None else cluster.tf_config(),
            fix="start the program with towerpack launch --workers 2 --ps 1 -- python train.py",
        )
    return cluster


def serve(cluster: Cluster, seconds: float) -> NoReturn:
    """Run this worker or parameter server until the chief ends. Then end the process."""
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
    answered = time.monotonic()
    while time.monotonic() < answered + _GONE_S:
        time.sleep(PROBE_S)
        began = time.monotonic()
        silent = silent_peers(chief, seconds)
        # While a chief restarts its program, its socket accepts connections without answering.
        if not silent or PROBE_S < time.monotonic() - began < seconds:
            answered = time.monotonic()
    _LOG.info("The chief has ended. Ending %s.", cluster.name)
    del server
    end_process(0)


def watch(
    peers: Mapping[str, str],
    seconds: float,
    over: threading.Event,
    lost: Callable[[PeerError], object],
) -> None:
    """Call `lost` and end this process if a peer hangs. Processes that wait for it then end too."""
    silent: dict[str, str] = {}
    misses = 0
    while misses < 3:
        if over.wait(seconds / 6):
            return
        silent = silent_peers(peers, seconds / 6)
        misses = misses + 1 if silent else 0
    error = missing_peers(silent, f"has not answered for {seconds:g} s")
    lost(error)
    _LOG.error("%s", error)
    end_process(1)


def connect(cluster: Cluster) -> Any:
    # absl adds a handler to a root logger without one, which would print our log twice.
    root, handler = logging.getLogger(), logging.NullHandler()
    root.addHandler(handler)
    with quiet_start(), preserved_variables():
        strategy = tf.distribute.ParameterServerStrategy(resolver_of(cluster))
    root.removeHandler(handler)
    return tf.distribute.coordinator.ClusterCoordinator(strategy)


class OnServers(SharedVariables):
    """Distribution of variables over the parameter servers, with one replica per step."""

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
                "These variables stay on the chief, from which each step fetches them: %s. To "
                "avoid this, create them by layers or in build_graph.",
                ", ".join(staying),
            )
