"""Checks whether the other processes of a run have started and still answer."""

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
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec({job: list(a) for job, a in cluster.jobs.items() if a}),
        task_type=cluster.task_type,
        task_id=cluster.task_index,
        rpc_layer="grpc",
    )


def wait_for_peers(
    addresses: Mapping[str, str], listen: str | None = None, seconds: float = 60.0
) -> None:
    """Wait until each peer answers, without holding the GIL as TensorFlow does.

    Meanwhile, answer the requests of peers at the address `listen`. None if a server of this
    process answers already, or if no peer asks.
    """
    _warn_of_open_ports()
    missing = dict(addresses)
    deadline = time.monotonic() + seconds
    with _answering(listen):
        while missing := silent_peers(missing, _TRY_S):
            if time.monotonic() > deadline:
                raise missing_peers(missing, f"did not start within {seconds:g} s")
            time.sleep(_TRY_S / 5)


@functools.cache
def _warn_of_open_ports() -> None:
    _LOG.warning(
        "TensorFlow's servers of this job listen on all network interfaces. Anyone who can reach "
        "their ports can read and write this user's files. Keep them behind a firewall "
        "(docs/machines.md, The cluster)."
    )


def silent_peers(addresses: Mapping[str, str], seconds: float) -> dict[str, str]:
    """Return the peers whose TensorFlow server does not answer in time.

    A request is needed, because even a stopped process accepts connections.
    """
    calls = {}
    for name, address in addresses.items():
        channel, status = _status_of(address)
        calls[name] = channel, status.future(b"", timeout=seconds)
    silent = {n: addresses[n] for n, (_, call) in calls.items() if call.exception() is not None}
    for channel, _ in calls.values():
        channel.close()
    return silent


def _status_of(address: str) -> tuple[Any, Any]:
    import grpc  # A dependency of TensorFlow, needed only by processes of a cluster.

    # Channels of a shared pool would wait longer after each failed connection, and a connection
    # that nobody answers would fail after 20 s.
    options = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.min_reconnect_backoff_ms", 600_000),
    ]
    channel = grpc.insecure_channel(address, options)
    return channel, channel.unary_unary(f"/{_SERVICE}/{_METHOD}")


def missing_peers(peers: Mapping[str, str], what: str) -> PeerError:
    names = " and ".join(f"{name} ({address})" for name, address in peers.items())
    return peer_error(names, what)


def leave_at_once_at_exit(code: int) -> None:
    """Make Python's exit end this process at once, without waiting for silent peers.

    After an uncaught exception, the exit status is 1.
    """
    atexit.register(lambda: end_process(code or hasattr(sys, "last_value")))


def leave_at_once_if_silent(peers: Mapping[str, str], seconds: float) -> None:
    """Make Python's exit end this process at once if a peer does not answer then."""

    def leave() -> None:
        import grpc

        for address in peers.values():
            try:
                _status_of(address)[1](b"", timeout=seconds)  # starts no thread, unlike a future
            except grpc.RpcError:
                end_process(hasattr(sys, "last_value"))

    atexit.register(leave)


def end_process(code: int) -> NoReturn:
    """End the process without the clean-up of Python and TensorFlow."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@contextmanager
def _answering(address: str | None) -> Iterator[None]:
    """Answer requests of `silent_peers` in other processes during the `with` block."""
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
        time.sleep(_TRY_S)  # The other processes ask once more.
    finally:
        server.stop(_TRY_S).wait()


@contextmanager
def preserved_variables() -> Iterator[None]:
    """Create existing variables again after the block, in which TensorFlow joins a cluster.

    Otherwise, the variables of an existing model or optimizer would be lost.
    """
    kind = resource_variable_ops.BaseResourceVariable
    known: list[Any] = [o for o in gc.get_objects() if issubclass(type(o), kind)]
    values = [(variable, variable.numpy()) for variable in known]
    yield
    for variable, value in values:
        # The variable must own the resource of its new handle.
        variable._owner = tf.Variable(value, dtype=variable.dtype)
        variable._handle = variable._owner.handle
