"""Processes of a run that wait for one another before TensorFlow connects them."""

from __future__ import annotations

import socket
import threading

import pytest

from processes import free_port, stopwatch
from towerpack import PeerError
from towerpack.training.distribution import peers
from towerpack.training.distribution.peers import wait_for_peers


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "localhost"])
def test_two_that_wait_meet(host: str, caplog: pytest.LogCaptureFixture) -> None:
    peers._warn_of_open_ports.cache_clear()
    addresses = [f"{host}:{free_port()}" for _ in range(2)]
    other = threading.Thread(
        target=wait_for_peers, args=({"worker 0": addresses[0]}, addresses[1], 20)
    )
    with stopwatch() as watch:
        other.start()
        wait_for_peers({"worker 1": addresses[1]}, addresses[0], 20)
        assert watch.seconds < 10
    assert "Keep them behind a firewall" in caplog.text


def test_another_program_at_the_address_is_no_peer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as foreign, stopwatch() as watch:
        address = f"127.0.0.1:{foreign.getsockname()[1]}"
        with pytest.raises(PeerError, match=f"worker 1 .{address}. did not start within 1 s"):
            wait_for_peers({"worker 1": address}, f"127.0.0.1:{free_port()}", 1)
        assert watch.seconds < 5
