"""What docs/remote.md promises of the `tf.data` service: which rows come, and how often."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
import tensorflow as tf

from processes import free_port
from warm_python import warm_python

SERVER = """
import sys
from tensorflow.data.experimental import service
port, dispatcher = int(sys.argv[1]), sys.argv[2]
if dispatcher == "none":
    server = service.DispatchServer(service.DispatcherConfig(port=port))
else:
    server = service.WorkerServer(service.WorkerConfig(
        dispatcher, worker_address=f"127.0.0.1:{port}", port=port, heartbeat_interval_ms=500))
print("ready", flush=True)
server.join()
"""


class Service:
    """A dispatcher and two data hosts."""

    def __init__(self) -> None:
        self._ports = [free_port() for _ in range(3)]
        self.address = f"127.0.0.1:{self._ports[0]}"
        self.processes = [self.start(i) for i in range(3)]

    def start(self, index: int) -> subprocess.Popen[bytes]:
        dispatcher = self.address if index else "none"
        command = [*warm_python(), "-c", SERVER, str(self._ports[index]), dispatcher]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        with process.stdout as output:
            assert output.readline() == b"ready\n"
        return process

    def restart_host(self) -> None:
        self.processes[2].kill()
        self.processes[2].wait()
        self.processes[2] = self.start(2)

    def rows(self, number: int, trainer: int = 0, trainers: int = 1) -> tf.data.Dataset:
        # Not `shard`: each data host would count only the rows that it gets.
        service = tf.data.experimental.service
        rows = tf.data.Dataset.range(trainer, number, trainers).map(lambda i: i + 0)
        mode = service.ShardingPolicy.DYNAMIC
        few = {"max_outstanding_requests": 2}  # or all would have come before a host dies
        return rows.apply(service.distribute(mode, f"grpc://{self.address}", **few)).batch(10)


@pytest.fixture
def service() -> Iterator[Service]:
    running = Service()
    yield running
    for process in running.processes:
        process.kill()
        process.wait()


def test_every_row_comes_once_and_at_most_once_if_a_data_host_dies(service: Service) -> None:
    trainers = [iter(service.rows(240, i, 2)) for i in range(2)]
    steps = [[batch.numpy() for batch in step] for step in zip(*trainers, strict=True)]
    assert len(steps) == 12
    assert sorted(i for step in steps for batch in step for i in batch) == list(range(240))
    batches = iter(service.rows(2000))
    came = list(next(batches).numpy())
    service.restart_host()
    came += [i for batch in batches for i in batch.numpy()]
    assert len(set(came)) == len(came)
    assert len(came) > 1000  # how many are lost depends on the moment
    again = [i for batch in service.rows(240) for i in batch.numpy()]
    assert sorted(again) == list(range(240))
