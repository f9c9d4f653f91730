"""Training in several processes on one or several machines, in step."""

from __future__ import annotations

import faulthandler
import functools
import hashlib
import json
import os
import re
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context as eager_context

from towerpack._core.errors import ConfigError
from towerpack._core.logs import console, get_logger
from towerpack._core.native_log import quiet_start
from towerpack.cluster import Cluster
from towerpack.dataflow import DataFlow, RemoteDataZMQ, ShardData
from towerpack.dataflow._content import sources_of
from towerpack.dataflow._flow import flows_in, is_shard
from towerpack.inputs import SplitInput
from towerpack.training._config import TrainConfig
from towerpack.training._executor import CallResult, Executor
from towerpack.training._kept import variables_kept
from towerpack.training._mirrored import Mirrored
from towerpack.training._peers import (
    end_process,
    leave_at_once_at_exit,
    missing_peers,
    resolver_of,
    silent_peers,
    wait_for_peers,
)
from towerpack.training._settings import Settings, differences
from towerpack.training._step import TrainStep
from towerpack.training._team import ENDINGS_BY_SIGNAL, Ending, Proposal, Team, has_failed
from towerpack.training._trainer import Trainer

_LOG = get_logger(__name__)
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
)
_ANSWER_S = 5.0
# How long a process that is to end waits for the others.
_PATIENCE_S = 10.0
_EXIT_CODES = {ending: 128 + number for number, ending in ENDINGS_BY_SIGNAL.items()}
_REPORT = re.compile(r"<<(\{.*?\})>>")


class _LongCalls(Executor):
    # The workers agree between two calls, which takes some 5 ms and waits for the last of them.
    budget_s = 0.5

    def run(self, steps: int, *, after: int) -> CallResult:
        with self._distribution.team.collective():
            return super().run(steps, after=after)

    def run_heavy(self, *, after: int) -> CallResult:
        with self._distribution.team.collective():
            return super().run_heavy(after=after)


class MultiWorkerTrainer(Trainer):
    """Train one replica on each device of several processes; gradients are averaged over all.

    Each process runs the same program. What they are is taken from `TF_CONFIG` or from SLURM
    (`towerpack launch --workers 2 -- train.py` starts some on this machine); without either, this
    process trains alone. `tf.distribute.MultiWorkerMirroredStrategy` does the communication.

    The first worker, the chief, writes the run directory and runs the callbacks, but for those
    with `chief_only = False`. A DataFlow is shared out over the workers by `ShardData`, unless it
    has been. The workers agree once per call on how many steps come next, so that data that end
    unevenly, a callback that stops training, SIGTERM to any of them and a failure end all.

    TensorFlow connects processes only before it is used. So what has been made by then is made
    anew: layers, optimizers and other variables keep their values; tensors and functions that were
    traced are lost. `join_cluster()` as the first thing that a program does avoids that.

    Args:
        config: What to train; None to leave that to `launch_train_with_config`.
        step: What one step is; None for one cost and one optimizer.
        peer_timeout: Seconds to wait for a worker that has not come. One that hangs later is found
            by TensorFlow within some ten seconds.

    Raises:
        ConfigError: The environment describes a cluster that is none of workers alone.
        PeerError: A worker has not come.
    """

    def __init__(
        self,
        config: TrainConfig | None = None,
        *,
        step: TrainStep | None = None,
        peer_timeout: float = 60.0,
    ) -> None:
        super().__init__(config, step=step, distribution=join_cluster(peer_timeout))

    def _make_executor(self, **parts: Any) -> Executor:
        return _LongCalls(**parts)


def join_cluster(peer_timeout: float = 60.0) -> MultiWorker:
    """Meet the other workers, as the first thing that a program does with TensorFlow.

    Args:
        peer_timeout: Seconds to wait for one that has not come.

    Raises:
        ConfigError: The environment describes a cluster that is none of workers alone.
        PeerError: A worker has not come.
    """
    if not _joined:
        _joined.append(_join(peer_timeout))
    return _joined[0]


_joined: list[MultiWorker] = []  # Once per process: TensorFlow can do it no second time.


def _join(peer_timeout: float) -> MultiWorker:
    cluster = Cluster.from_environment() or Cluster({"worker": ["localhost:0"]}, "worker", 0)
    if cluster.jobs.get("ps"):
        raise ConfigError(
            "This cluster has parameter servers.",
            got=cluster.tf_config(),
            fix="train with ParameterServerTrainer, or describe workers alone",
        )
    if cluster.number_of_workers == 1:
        _LOG.warning("MultiWorkerTrainer found no other worker: it trains alone.")
        return MultiWorker(tf.distribute.MirroredStrategy(_local_devices()), cluster)
    own = cluster.jobs[cluster.task_type][cluster.task_index]
    wait_for_peers(cluster.peers, own, peer_timeout)
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=None)
    console()
    names = " and ".join(f"{name} ({address})" for name, address in cluster.peers.items())
    text = "Joining %s. This process ends if that takes more than %g s."
    _LOG.info(text, names, peer_timeout)
    with quiet_start(), variables_kept():
        # TensorFlow connects processes only before it is used, and layers or an optimizer may have
        # been made for the configuration.
        eager_context._reset_context()
        try:
            with _registering_within(peer_timeout):
                strategy = tf.distribute.MultiWorkerMirroredStrategy(resolver_of(cluster), options)
        except tf.errors.OpError as error:
            leave_at_once_at_exit(1)
            silent = silent_peers(cluster.peers, _ANSWER_S)
            raise missing_peers(
                silent or cluster.peers, f"have not joined within {peer_timeout:g} s"
            ) from error
    if threading.current_thread() is threading.main_thread():
        # TensorFlow has replaced the action of the system, and does nothing.
        signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGTERM))
    return MultiWorker(strategy, cluster)


@contextmanager
def _registering_within(seconds: float) -> Iterator[None]:
    """Limit how long TensorFlow waits for the others; by default an hour."""
    context: Any = eager_context.Context
    configure = context.configure_coordination_service
    milliseconds = int(1000 * seconds)
    context.configure_coordination_service = functools.partialmethod(
        configure, cluster_register_timeout_in_ms=milliseconds
    )
    # The first worker would wait for one that has died just now, and no Python thread would run.
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()
        context.configure_coordination_service = configure


class MultiWorker(Mirrored):
    """Replicas in several processes.

    Args:
        strategy: Connects them.
        cluster: Who they are.
    """

    def __init__(self, strategy: tf.distribute.Strategy, cluster: Cluster) -> None:
        super().__init__(strategy)
        self.team = Workers(strategy, cluster)


class Workers(Team):
    """The processes of a cluster. See `MultiWorker` for the arguments."""

    def __init__(self, strategy: tf.distribute.Strategy, cluster: Cluster) -> None:
        self.size = cluster.number_of_workers
        self.index = cluster.worker_index
        self._strategy = strategy
        self._cluster = cluster
        self._gather = tf.function(self._gathered, autograph=False, reduce_retracing=True)
        self._since: float | None = None

    def name(self, index: int) -> str:
        """As the cluster calls it."""
        return self._cluster.peer_name(index)

    def share(self, data: Any) -> Any:
        """This worker's part of data that all workers have; data that differ stay as they are.

        Raises:
            ConfigError: Workers have the same inputs with other targets; or a `SplitInput`, of
                which all have to read the same batches, and other data.
        """
        splits = isinstance(data, SplitInput)
        if self.size == 1:
            return data.share(1, 0) if splits else data
        console()
        flow = getattr(data, "dataflow", data)
        is_flow = isinstance(flow, DataFlow)
        own = list(sources_of(flow)) if is_flow else None
        others = self.exchange(own)
        remote = is_flow and any(isinstance(f, RemoteDataZMQ) for f in flows_in(flow))
        equal = all(other == own for other in others) and not remote
        who = self.name(self.index)
        if is_flow and not equal:
            different = [self.name(i) for i, other in enumerate(others) if other != others[0]]
            same_inputs = all(other and own and other[1] == own[1] != "" for other in others)
            if splits or (same_inputs and not remote):
                raise ConfigError(
                    "SplitInput shares out batches that all workers read, but their data differ."
                    if splits
                    else "The workers have the same inputs, but other targets.",
                    got=f"{' and '.join(different) or who}: other data than {self.name(0)}",
                    expected="the same data in all workers, or a part of them in each",
                    fix="give all workers the same data" + splits * ", or leave out SplitInput",
                )
        if splits:
            _LOG.info("%s reads part %d of %d of each batch.", who, self.index + 1, self.size)
            return data.share(self.size, self.index)
        if is_flow and (is_shard(flow) or not equal):
            _LOG.info("%s reads all of its own data: they are a part already.", who)
        elif isinstance(data, DataFlow):
            _LOG.info("%s reads part %d of %d.", who, self.index + 1, self.size)
            return ShardData(data, self.size, self.index)
        else:
            _LOG.warning(
                "%s is not shared out over the workers: each reads what it is given. A DataFlow "
                "in dataflow= is, and what is in a SplitInput.",
                type(data).__name__,
            )
        return data

    def exchange(self, value: Any) -> list[Any]:
        """The lengths first, then the texts."""
        text = np.frombuffer(json.dumps(value).encode(), np.uint8)
        try:
            lengths = self._all(np.asarray([len(text)], np.int64))[:, 0]
            padded = np.zeros(lengths.max(), np.int64)
            padded[: len(text)] = text
            rows = zip(self._all(padded), lengths, strict=True)
        except tf.errors.OpError as error:
            raise self.lost(error) or error from None
        return [json.loads(row[:length].astype(np.uint8).tobytes()) for row, length in rows]

    def compare(self, settings: Settings) -> None:
        """First by a checksum: settings are long."""
        digest = hashlib.blake2b(json.dumps(settings, sort_keys=True).encode()).hexdigest()
        if len(set(self.exchange(digest))) == 1:
            return
        for index, lines in differences(self.exchange(settings)).items():
            more = [f"and {len(lines) - 9} more"] if len(lines) > 9 else []
            raise ConfigError(
                f"{self.name(index)} has other settings than {self.name(0)}.",
                got="\n".join([*lines[:9], *more]),
                expected="the same settings in all workers",
                fix="start all workers with the same program and arguments",
            )

    def agree(self, proposal: Proposal) -> Proposal:
        """One all-gather of a row of numbers."""
        if self.broken:
            return proposal
        try:
            row = np.asarray([proposal.steps, proposal.ending, *proposal.numbers], float)
            rows = self._all(row)
        except tf.errors.OpError as error:
            report = _report_in(error)
            if report is None:
                raise self.lost(error) or error from None
            ending = Ending(report["ending"])
            leave_at_once_at_exit(_EXIT_CODES.get(ending, 1))
            return Proposal(0, ending, report["process"], (), report["reason"])
        process = int(rows[:, 1].argmax())
        return Proposal(
            steps=int(rows[:, 0].min()),
            ending=Ending(int(rows[process, 1])),
            process=process,
            numbers=tuple(rows[0, 2:]),
        )

    def lost(self, error: Exception) -> Exception | None:
        """Take the report of a peer, or ask each whether it is there."""
        if self.size == 1 or not isinstance(error, _LOST):
            return None
        peers = self._cluster.peers
        report = _report_in(error)
        silent = {} if report else silent_peers(peers, _ANSWER_S)
        if not (report or silent or "ollective" in str(error)):
            return None  # an operation of the model's own
        leave_at_once_at_exit(1)
        if report:
            return has_failed(self.name(report["process"]), report["reason"])
        if silent:
            return missing_peers(silent, "does not answer")
        return missing_peers(peers, "ended the step")

    @contextmanager
    def collective(self) -> Iterator[None]:
        """Note since when this process waits, and whether the block fails."""
        self._since = time.monotonic()
        try:
            yield
        except BaseException:
            self.broken = True
            raise
        finally:
            self._since = None

    def abort(self, reason: str, ending: Ending = Ending.FAILED) -> None:
        """TensorFlow aborts collectives when a peer dies, but not when an operation fails."""
        if self.size > 1:
            report = {"process": self.index, "ending": ending, "reason": reason}
            leave_at_once_at_exit(_EXIT_CODES.get(ending, 1))
            context: Any = eager_context.context()
            context.report_error_to_cluster(
                tf.errors.ABORTED, f"<<{json.dumps(report, ensure_ascii=False)}>>"
            )

    @contextmanager
    def ended_by_sigterm(self) -> Iterator[None]:
        """Watch for signals in a thread. Python handles none while TensorFlow waits."""
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
        number, arrived, aborted = 0, 0.0, False
        while True:
            if select.select([reader], [], [], 0.2 if number else None)[0]:
                read = os.read(reader, 1)
                if not read:
                    os.close(reader)
                    return
                if read[0] in (signal.SIGTERM, signal.SIGINT):
                    number, arrived = read[0], time.monotonic()
            since = self._since
            waited = time.monotonic() - max(arrived, since) if number and since else 0.0
            if waited > _PATIENCE_S and not aborted:
                aborted = True
                name = signal.Signals(number).name
                reason = f"{name} came while it waited for the others, for {_PATIENCE_S:g} s."
                self.abort(reason, ENDINGS_BY_SIGNAL[number])
            if waited > 1.5 * _PATIENCE_S:
                end_process(128 + number)

    def _all(self, row: np.ndarray) -> np.ndarray:
        """The rows of all processes, [processes, …]."""
        if self.size == 1:
            return row[None]
        with self.collective():
            rows = self._gather(tf.constant(row[None])).numpy()
        return rows[:: len(rows) // self.size]

    def _gathered(self, row: tf.Tensor) -> tf.Tensor:
        def of_replica() -> Any:
            context: Any = tf.distribute.get_replica_context()
            return context.all_gather(tf.identity(row), axis=0)

        given = self._strategy.run(of_replica)
        return self._strategy.experimental_local_results(given)[0]


def _report_in(error: Exception) -> dict[str, Any] | None:
    """What `abort` of some process has told."""
    found = _REPORT.search(str(error))
    return json.loads(found[1]) if found else None


def _local_devices() -> list[str]:
    gpus = tf.config.list_logical_devices("GPU")
    return [device.name for device in gpus] or ["CPU:0"]
