"""Communication of the workers of a cluster: parts of the data, agreements and failures."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as eager_context

from towerpack._core.errors import ConfigError
from towerpack._core.logs import console, get_logger
from towerpack.cluster import Cluster
from towerpack.dataflow import DataFlow, RemoteDataZMQ, ShardData
from towerpack.dataflow.content import sources_of
from towerpack.dataflow.pipeline_names import flows_in, is_shard
from towerpack.inputs import SplitInput
from towerpack.training.distribution.peers import (
    end_process,
    leave_at_once_at_exit,
    missing_peers,
    silent_peers,
)
from towerpack.training.distribution.team import (
    ENDINGS_BY_SIGNAL,
    Ending,
    Proposal,
    Team,
    peer_error,
)

_LOG = get_logger(__name__)
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
)
_ANSWER_S = 5.0
# Seconds that a process waits for other processes after a signal.
_PATIENCE_S = 10.0
_PIECE = 1 << 26  # bytes of a file that are sent at once
_REPORT = re.compile(r"<<(\[.*?\])>>")


class WorkerTeam(Team):
    """Processes of a cluster of workers, which exchange values through TensorFlow."""

    divides_flows = True

    def __init__(self, strategy: tf.distribute.Strategy, cluster: Cluster) -> None:
        self.size = cluster.number_of_workers
        self.index = cluster.worker_index
        self._strategy = strategy
        self._cluster = cluster
        self._gather = tf.function(self._gathered, autograph=False, reduce_retracing=True)
        self._reduce = tf.function(self._reduced, autograph=False, reduce_retracing=True)
        self._since: float | None = None

    def name(self, index: int) -> str:
        return self._cluster.peer_name(index)

    def share(self, data: Any) -> Any:
        """Return this worker's part of data that are the same in all workers. Keep other data."""
        splits = isinstance(data, SplitInput)
        if self.size == 1:
            return data.share(1, 0) if splits else data
        console()
        flow = getattr(data, "dataflow", data)
        is_flow = isinstance(flow, DataFlow)
        contents = self.exchange(sources_of(flow) if is_flow else None)
        remote = is_flow and any(isinstance(f, RemoteDataZMQ) for f in flows_in(flow))
        equal = not remote and all(content == contents[0] for content in contents)
        who = self.name(self.index)
        if is_flow and not equal:
            different = [self.name(i) for i, c in enumerate(contents) if c != contents[0]] or [who]
            first_components = {content and content[1] for content in contents}
            same_inputs = not remote and len(first_components) == 1 and "" not in first_components
            if splits or same_inputs:
                other = "data" if splits else "targets for the same inputs"
                raise ConfigError(
                    f"The {other} of {' and '.join(different)} differ from those of "
                    f"{self.name(0)}.",
                    expected="the same data in all workers, or without SplitInput different parts",
                    fix="pass the same data in all workers",
                )
        if splits:
            _LOG.info("%s reads part %d of %d of each batch.", who, self.index + 1, self.size)
            return data.share(self.size, self.index)
        if is_flow and (is_shard(flow) or not equal):
            _LOG.info("%s reads all of its data, which are not those of other workers.", who)
        elif isinstance(data, DataFlow):
            _LOG.info("%s reads part %d of %d.", who, self.index + 1, self.size)
            return ShardData(data, self.size, self.index)
        else:
            _LOG.warning(
                "%s is not divided among the workers: each reads all of its data. To divide data, "
                "pass a DataFlow in dataflow= or use SplitInput.",
                type(data).__name__,
            )
        return data

    def exchange(self, value: Any) -> list[Any]:
        if self.size == 1:
            return [value]
        text = np.frombuffer(f"{json.dumps(value)}\n".encode(), np.uint8)
        try:
            with self.collective():
                texts = self._gather(tf.constant(text, tf.int64)).numpy()
        except tf.errors.OpError as error:
            raise self.lost(error) or error from None
        lines = texts.astype(np.uint8).tobytes().splitlines()  # one per replica of each process
        return [json.loads(line) for line in lines[:: len(lines) // self.size]]

    def send_files(self, directory: Path) -> None:
        files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
        self.broadcast([[str(f.relative_to(directory)), f.stat().st_size] for f in files])
        for path in files:
            with path.open("rb") as file:
                while data := file.read(_PIECE):
                    self._sum(np.frombuffer(data + bytes(-len(data) % 8), np.int64))

    def receive_files(self, directory: Path) -> None:
        for name, size in self.broadcast(None):
            path = directory / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("wb") as file:
                for start in range(0, size, _PIECE):
                    length = min(_PIECE, size - start)
                    file.write(self._sum(np.zeros(-(-length // 8), np.int64)).tobytes()[:length])

    def _sum(self, row: np.ndarray) -> np.ndarray:
        """Return the chief's array in all processes, whose own arrays are zero."""
        try:
            with self.collective():
                return self._reduce(tf.constant(row)).numpy()
        except tf.errors.OpError as error:
            raise self.lost(error) or error from None

    def agree(self, proposal: Proposal) -> Proposal:
        """Return the smallest number of steps, the greatest ending, and the chief's numbers."""
        if self.broken:
            return proposal
        proposals = [Proposal(*fields) for fields in self.exchange(proposal)]
        process = max(range(self.size), key=lambda i: proposals[i].ending)
        return proposals[process]._replace(
            steps=min(other.steps for other in proposals),
            numbers=proposals[0].numbers,
            ending=Ending(proposals[process].ending),
            process=process,
        )

    def lost(self, error: Exception) -> Exception | None:
        if self.size == 1 or not isinstance(error, _LOST):
            return None
        peers = self._cluster.peers
        if report := _REPORT.search(str(error)):
            process, reason = json.loads(report[1])
            lost = peer_error(self.name(process), "has failed", reason)
        elif silent := silent_peers(peers, _ANSWER_S):
            lost = missing_peers(silent, "does not answer")
        elif "ollective" in str(error):
            lost = missing_peers(peers, "ended the step")
        else:
            return None  # An operation of the model failed.
        leave_at_once_at_exit(1)
        return lost

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Record since when this process waits for others, and whether the block fails."""
        self._since = time.monotonic()
        try:
            yield
        except BaseException:
            self.broken = True
            raise
        finally:
            self._since = None

    def abort(self, reason: str) -> None:
        # TensorFlow aborts collectives when a peer dies, but not when an operation fails.
        if self.size > 1:
            leave_at_once_at_exit(1)
            report = json.dumps([self.index, reason], ensure_ascii=False)
            context: Any = eager_context.context()
            context.report_error_to_cluster(tf.errors.ABORTED, f"<<{report}>>")

    @contextmanager
    def ended_by_sigterm(self) -> Iterator[None]:
        # Watch for signals in a thread, because Python handles none while TensorFlow waits.
        if self.size == 1 or threading.current_thread() is not threading.main_thread():
            yield
            return
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        before = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(
            target=self._end_if_stuck, args=(reader,), name="towerpack-signals", daemon=True
        ).start()
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            os.close(writer)

    def _end_if_stuck(self, reader: int) -> None:
        number, arrived = 0, 0.0
        while True:
            if select.select([reader], [], [], 0.2 if number else None)[0]:
                received = os.read(reader, 1)
                if not received:
                    os.close(reader)
                    return
                if received[0] in ENDINGS_BY_SIGNAL:
                    number, arrived = received[0], time.monotonic()
            since = self._since
            if number and since and time.monotonic() - max(arrived, since) > _PATIENCE_S:
                name = signal.Signals(number).name
                self.abort(f"Received {name} and waited {_PATIENCE_S:g} s for other processes.")
                time.sleep(_PATIENCE_S / 2)
                if self._since == since:
                    end_process(128 + number)

    def _gathered(self, row: tf.Tensor) -> tf.Tensor:
        def gather() -> Any:
            context: Any = tf.distribute.get_replica_context()
            return context.all_gather(tf.identity(row), axis=0)

        return self._strategy.experimental_local_results(self._strategy.run(gather))[0]

    def _reduced(self, row: tf.Tensor) -> tf.Tensor:
        def reduce() -> Any:
            context: Any = tf.distribute.get_replica_context()
            first = tf.cast(tf.equal(context.replica_id_in_sync_group, 0), tf.int64)
            return context.all_reduce(tf.distribute.ReduceOp.SUM, row * first)

        return self._strategy.experimental_local_results(self._strategy.run(reduce))[0]
