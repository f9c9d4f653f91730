"""Replicas in the processes of a cluster of workers."""

from __future__ import annotations

import signal
import threading
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context as eager_context

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack._core.native_log import quiet_start
from towerpack.cluster import Cluster
from towerpack.training.distribution.mirrored import Mirrored
from towerpack.training.distribution.peers import (
    leave_at_once_at_exit,
    missing_peers,
    preserved_variables,
    resolver_of,
    silent_peers,
    wait_for_peers,
)
from towerpack.training.distribution.worker_team import WorkerTeam

_LOG = get_logger(__name__)


def join_cluster(peer_timeout: float = 60.0) -> MultiWorker:
    """Connect to the other workers. Call this before any other use of TensorFlow.

    Args:
        peer_timeout: Seconds to wait until each worker has started.

    Raises:
        ConfigError: The environment describes a cluster with other processes than workers.
        PeerError: A worker has not started.
    """
    if not _joined:
        _joined.append(_join(peer_timeout))
    return _joined[0]


_joined: list[MultiWorker] = []  # TensorFlow can join a cluster only once per process.


def _join(peer_timeout: float) -> MultiWorker:
    cluster = Cluster.from_environment() or Cluster({"worker": ["localhost:0"]}, "worker", 0)
    if cluster.jobs.get("ps"):
        raise ConfigError(
            "MultiWorkerTrainer needs a cluster of workers only, but this one has parameter "
            "servers.",
            got=cluster.tf_config(),
            fix="train with ParameterServerTrainer, or start a cluster without parameter servers",
        )
    if cluster.number_of_workers == 1:
        _LOG.warning("MultiWorkerTrainer found no other worker and trains alone.")
        gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
        return MultiWorker(tf.distribute.MirroredStrategy(gpus or ["CPU:0"]), cluster)
    address = cluster.jobs[cluster.task_type][cluster.task_index]
    wait_for_peers(cluster.peers, address, peer_timeout)
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=None)
    with quiet_start(), preserved_variables():
        # TensorFlow connects processes only before its first use, and the program may have created
        # layers or an optimizer for the configuration.
        eager_context._reset_context()
        _limit_registration(cluster, peer_timeout)
        try:
            strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver_of(cluster), options)
        except tf.errors.OpError as error:
            leave_at_once_at_exit(1)
            silent = silent_peers(cluster.peers, 5.0) or cluster.peers
            raise missing_peers(silent, f"have not joined within {peer_timeout:g} s") from error
    if threading.current_thread() is threading.main_thread():
        # TensorFlow has replaced the system's handler by one that ignores the signal.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    return MultiWorker(strategy, cluster)


def _limit_registration(cluster: Cluster, seconds: float) -> None:
    """Limit the time that registered workers wait for others, an hour by default."""
    context: Any = eager_context.context()
    proto: Any = eager_context.coordination_config_pb2
    job, index = cluster.tasks[0]
    context.configure_coordination_service(
        service_type="standalone",
        service_leader=f"/job:{job}/task:{index}",
        cluster_register_timeout_in_ms=int(1000 * seconds),
        coordinated_jobs=[
            proto.CoordinatedJob(name=name, num_tasks=len(tasks))
            for name, tasks in cluster.jobs.items()
            if tasks
        ],
    )
    context.coordination_service.cluster_register_with_barrier = True


class MultiWorker(Mirrored):
    """Replicas in several processes, each with copies of the variables."""

    def __init__(self, strategy: tf.distribute.Strategy, cluster: Cluster) -> None:
        super().__init__(strategy)
        self.team = WorkerTeam(strategy, cluster)
