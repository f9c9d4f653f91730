"""Other processes of a run: whether they have come, and whether they still answer."""

from __future__ import annotations

import atexit
import functools
import gc
import os
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn

import tensorflow as tf
from tensorflow.python.ops import resource_variable_ops

from towerpack._core.errors import PeerError
from towerpack._core.logs import get_logger
from towerpack.cluster import Cluster
from towerpack.training.distribution.team import peer_error

_LOG = get_logger(__name__)
_TRY_S = 0.5
_SERVICE, _METHOD = "tensorflow.WorkerService", "GetStatus"


def resolver_of(cluster: Cluster) -> tf.distribute.cluster_resolver.ClusterResolver:
    """A cluster as TensorFlow's strategies take it."""
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({job: list(of) for job, of in cluster.jobs.items() if of}),
        task_type=cluster.task_type,
        task_id=cluster.task_index,
        rpc_layer="grpc",
    )


def wait_for_peers(
    addresses: Mapping[str, str], own: str | None = None, seconds: float = 60.0
) -> None:
    """Wait until each peer can be reached, where TensorFlow would wait with the GIL.

    Args:
        addresses: The others, `'worker 1'` for example, with where they listen: `'host:port'`.
        own: Where to listen for them in the meantime; free again afterwards. None if a server of
            this process listens already, or nobody will ask.
        seconds: How long to wait.
    """
    _warn_of_open_ports()
    missing = dict(addresses)
    deadline = time.monotonic() + seconds
    with _answering(own):
        while missing := silent_peers(missing, _TRY_S):
            if time.monotonic() > deadline:
                raise missing_peers(missing, f"have not come within {seconds:g} s")
            time.sleep(_TRY_S / 5)


@functools.cache
def _warn_of_open_ports() -> None:
    _LOG.warning(
        "TensorFlow's servers of this job listen on all network interfaces, and whoever reaches "
        "their ports can read and write this user's files: keep them behind a firewall "
        "(docs/training.md, Several machines)."
    )


def silent_peers(addresses: Mapping[str, str], seconds: float) -> dict[str, str]:
    """Those whose TensorFlow server does not answer in time; also a stopped process connects."""
    import grpc  # Comes with TensorFlow; needed only by processes of a cluster.

    calls = {}
    for name, address in addresses.items():
        # Channels of one pool would wait longer and longer between two attempts to connect.
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)]
        channel = grpc.insecure_channel(address, options)
        status = channel.unary_unary(f"/{_SERVICE}/{_METHOD}")
        calls[name] = channel, status.future(b"", timeout=seconds)
    silent = {n: addresses[n] for n, (_, call) in calls.items() if call.exception() is not None}
    for channel, _ in calls.values():
        channel.close()
    return silent


def missing_peers(peers: Mapping[str, str], what: str) -> PeerError:
    names = " and ".join(f"{name} ({address})" for name, address in peers.items())
    return peer_error(names, what)


def leave_at_once_at_exit(code: int) -> None:
    """Have this process, when Python exits, not wait for peers that do not answer.

    An exception that nobody has caught by then still counts as a failure.
    """
    atexit.register(lambda: end_process(code or hasattr(sys, "last_value")))


def end_process(code: int) -> NoReturn:
    """Leave without what Python and TensorFlow do at the end."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def _answering(address: str | None) -> Iterator[None]:
    """Answer `silent_peers` of others, as TensorFlow's server will."""
    if address is None:
        yield
        return
    import grpc

    answer = grpc.unary_unary_rpc_method_handler(lambda request, context: b"")
    server = grpc.server(
        ThreadPoolExecutor(1),
        handlers=[grpc.method_handlers_generic_handler(_SERVICE, {_METHOD: answer})],
        options=[("grpc.so_reuseport", 0)],
    )
    server.add_insecure_port(f"[::]:{address.rpartition(':')[2]}")
    server.start()
    try:
        yield
        time.sleep(_TRY_S)  # until the others have asked once more
    finally:
        server.stop(_TRY_S).wait()


@contextmanager
def variables_kept() -> Iterator[None]:
    """Make the program's variables anew inside the cluster: TensorFlow loses those of before.

    The model and the optimizer may hold some, which were made for the configuration.
    """
    kind = resource_variable_ops.BaseResourceVariable
    known: list[Any] = [o for o in gc.get_objects() if issubclass(type(o), kind)]
    values = [(variable, variable.numpy()) for variable in known]
    yield
    for variable, value in values:
        # It owns what the handle stands for.
        variable._owner = tf.Variable(value, dtype=variable.dtype)
        variable._handle = variable._owner.handle
