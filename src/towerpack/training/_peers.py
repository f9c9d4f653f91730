"""Other processes of a run: whether they have come, and whether they still answer."""

from __future__ import annotations

import atexit
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NoReturn

import tensorflow as tf

from towerpack._core.errors import PeerError
from towerpack.cluster import Cluster

_TRY_S = 0.5
_GREETING = b"towerpack\n"


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
    """Wait until each peer can be reached, where TensorFlow would wait for ever.

    Args:
        addresses: The others, `'worker 1'` for example, with where they listen: `'host:port'`.
        own: Where to listen for them in the meantime; free again afterwards. None if a server of
            this process listens already, or nobody will ask.
        seconds: How long to wait.

    Raises:
        PeerError: Some have not come; it names them.
        OSError: This process cannot listen at its own address.
    """
    missing = dict(addresses)
    deadline = time.monotonic() + seconds
    with _listening(own):
        while True:
            missing = {n: a for n, a in missing.items() if not _is_there(a)}
            if not missing:
                return
            if time.monotonic() > deadline:
                raise missing_peers(missing, f"have not come within {seconds:g} s")
            time.sleep(_TRY_S / 5)


def silent_peers(addresses: Mapping[str, str], seconds: float) -> dict[str, str]:
    """Those whose TensorFlow server does not answer in time; also a stopped process connects."""
    import grpc  # Comes with TensorFlow; needed only where something has gone wrong already.

    calls = {}
    for name, address in addresses.items():
        channel = grpc.insecure_channel(address)
        status = channel.unary_unary("/tensorflow.WorkerService/GetStatus")
        calls[name] = channel, status.future(b"", timeout=seconds)
    silent = {n: addresses[n] for n, (_, call) in calls.items() if call.exception() is not None}
    for channel, _ in calls.values():
        channel.close()
    return silent


def missing_peers(peers: Mapping[str, str], what: str) -> PeerError:
    """The error that names peers."""
    named = " and ".join(f"{name} ({address})" for name, address in peers.items())
    return PeerError(
        f"{named} {what}.",
        expected="every process of the cluster, reachable from this one",
        fix="look at the log of that process; start all of them anew, the run is continued",
    )


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
def _listening(address: str | None) -> Iterator[None]:
    if address is None:
        yield
        return
    port, over = int(address.rpartition(":")[2]), threading.Event()
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    server = socket.create_server(("", port), family=family, backlog=64, dualstack_ipv6=both)
    server.settimeout(_TRY_S / 5)

    def greet() -> None:
        while not over.is_set():
            with suppress(OSError):
                peer, _ = server.accept()
                with peer:
                    peer.sendall(_GREETING)

    thread = threading.Thread(target=greet, name="towerpack-rendezvous", daemon=True)
    thread.start()
    with server:
        try:
            yield
        finally:
            over.set()
            thread.join()


def _is_there(address: str) -> bool:
    """Whether a process of ours listens: one that waits, too, or a server of TensorFlow's."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_TRY_S) as peer:
            if peer.recv(len(_GREETING)) == _GREETING:
                return True
    except TimeoutError:
        pass  # TensorFlow's server may wait for the client to begin
    except OSError:
        return False
    return not silent_peers({"": address}, _TRY_S)
