"""Training on several machines that do not wait for one another, over shared variables."""

from __future__ import annotations

import gc
import itertools
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError, PeerError, StepError
from towerpack._core.logs import console, get_logger
from towerpack._core.native_log import quiet_start
from towerpack.cluster import Cluster
from towerpack.inputs import InputSource, TensorInput
from towerpack.tower import COST, TowerFunction, TowerTrace
from towerpack.training.config import TrainConfig
from towerpack.training.distribution.base import SharedVariables
from towerpack.training.distribution.peers import (
    end_process,
    leave_at_once_at_exit,
    missing_peers,
    resolver_of,
    silent_peers,
    variables_kept,
    wait_for_peers,
)
from towerpack.training.distribution.replicas import like
from towerpack.training.loop.executor import Executor
from towerpack.training.loop.failed_step import step_error
from towerpack.training.optim.schedules import Schedules
from towerpack.training.steps.call_result import CallResult
from towerpack.training.steps.step import TrainStep
from towerpack.training.trainers.async_multi_gpu import (
    SharedCall,
    Work,
    counters,
    joined,
    no_batch,
    refuse_deterministic,
)
from towerpack.training.trainers.base import Trainer

_LOG = get_logger(__name__)
# Longer than on one machine: a call waits for the last of its shares.
_BUDGET_S = 0.5
_PROBE_S = 1.0


class ParameterServerTrainer(Trainer):
    """Train on several machines, each of which moves the shared variables as soon as it can.

    The same program runs in every process; `towerpack launch` or a scheduler says by `TF_CONFIG`
    which one it is. Variables lie on the parameter servers (`ps`), workers compute steps, and the
    chief does everything else: it reads the data and sends each worker its batches, runs callbacks,
    saves. In processes that are not the chief `train` serves and does not return.

    A step is one batch, as with `AsyncMultiGPUTrainer`. A worker that is killed is done without,
    and taken back when it is started again; what it had not finished is given to others, so that
    some batches may be applied twice, which a warning tells.

    Args:
        config: What to train; None to leave that to `launch_train_with_config`.
        peer_timeout: Seconds after which a process that does not come or does not answer ends the
            run.
        step: What one step is; None for one cost and one optimizer.

    Raises:
        ConfigError: There is no cluster; or the run is to be deterministic, or compiled by XLA.
    """

    def __init__(
        self,
        config: TrainConfig | None = None,
        *,
        peer_timeout: float = 60.0,
        step: TrainStep | None = None,
    ) -> None:
        self._cluster = _cluster()
        self._peers = self._cluster.peers
        self._peer_timeout = peer_timeout
        self._failed: Callable[[], PeerError | None] = lambda: None
        super().__init__(config, step=step, distribution=_OnServers(len(self._cluster.jobs["ps"])))

    def configure(self, config: TrainConfig) -> None:
        """As `Trainer.configure`; refuses what workers on their own cannot do."""
        refuse_deterministic(config, type(self).__name__)
        for name in ("xla", "eager"):
            if getattr(config, name):
                raise ConfigError(f"ParameterServerTrainer cannot train with {name}=True.")
        super().configure(config)

    def train(self) -> None:
        """On the chief, as `Trainer.train`; elsewhere serve until the chief has ended, and exit.

        Raises:
            PeerError: A process has not come, or does not answer.
        """
        console()
        if not self._cluster.is_chief:
            _serve(self._cluster, self._peer_timeout)
        wait_for_peers(self._peers, None, self._peer_timeout)
        self._coordinator = _connect(self._cluster)
        servers = {name: a for name, a in self._peers.items() if name.startswith("ps")}
        over = threading.Event()
        # A worker that hangs is noticed where its share is waited for, and the run saved; here only
        # if the chief has got stuck in TensorFlow before.
        for peers, seconds in (
            (servers, self._peer_timeout),
            (self._peers, 2 * self._peer_timeout),
        ):
            threading.Thread(
                target=_watch, args=(peers, seconds, over), name="towerpack-watch", daemon=True
            ).start()
        try:
            super().train()
            if silent_peers(self._peers, _PROBE_S):
                # At its end TensorFlow waits for a worker that was lost.
                leave_at_once_at_exit(0)
        except SystemExit as ending:
            leave_at_once_at_exit(int(ending.code or 0))
            raise
        except Exception as error:
            leave_at_once_at_exit(1)
            failed_inside = isinstance(error, tf.errors.OpError | StepError)
            silent = silent_peers(servers, _PROBE_S) if failed_inside else {}
            if silent:
                raise missing_peers(silent, "has died") from None
            raise
        finally:
            over.set()

    def _make_executor(self, **parts: Any) -> Executor:
        executor = _RemoteExecutor(self._coordinator, self._peers, self._peer_timeout, **parts)
        self._failed = lambda: executor.failed
        return executor

    def _watch(self) -> None:
        error = self._failed()
        if error is not None and self._state.settled:
            raise error


def _cluster() -> Cluster:
    cluster = Cluster.from_environment()
    if cluster is None or not {"chief", "ps", "worker"} <= {job for job, _ in cluster.tasks}:
        raise ConfigError(
            "ParameterServerTrainer finds no cluster.",
            got="no cluster" if cluster is None else cluster.tf_config(),
            expected="TF_CONFIG with a chief, parameter servers and workers",
            fix="towerpack launch --workers 2 --ps 1 -- python train.py",
        )
    return cluster


def _serve(cluster: Cluster, seconds: float) -> NoReturn:
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
        time.sleep(_PROBE_S)
        misses = misses + 1 if silent_peers(chief, seconds / 2) else 0
    _LOG.info("The chief has ended, and so does %s.", cluster.name)
    del server
    end_process(0)


def _watch(peers: Mapping[str, str], seconds: float, over: threading.Event) -> None:
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


def _connect(cluster: Cluster) -> Any:
    """TensorFlow's coordinator."""
    # Where the root logger has no handler, absl gives it one, which would show our log twice.
    root, nothing = logging.getLogger(), logging.NullHandler()
    root.addHandler(nothing)
    with quiet_start(), variables_kept():
        strategy = tf.distribute.ParameterServerStrategy(resolver_of(cluster))
    root.removeHandler(nothing)
    return tf.distribute.coordinator.ClusterCoordinator(strategy)


class _OnServers(SharedVariables):
    """One replica for each step, wherever it runs; variables lie on the servers in turn."""

    def __init__(self, servers: int) -> None:
        super().__init__()
        self._devices = itertools.cycle(
            f"/job:ps/replica:0/task:{i}/device:CPU:0" for i in range(servers)
        )

    def scope(self) -> AbstractContextManager[Any]:
        """Variables that are made inside lie on the servers."""

        def create(next_creator: Callable[..., tf.Variable], **kwargs: Any) -> tf.Variable:
            with tf.device(next(self._devices)):
                return next_creator(**kwargs)

        return tf.variable_creator_scope(create)

    def adopt(self, tower: TowerFunction, trace: TowerTrace) -> None:
        """Move the model's variables to the servers."""

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


class _RemoteExecutor(Executor):
    """Send the workers shares of a call's steps, each with its batches.

    Args:
        coordinator: TensorFlow's, of the cluster.
        peers: Whom it needs, with their addresses.
        seconds: After which one that does not answer ends the run.
        parts: What an `Executor` takes.

    Attributes:
        failed: The run cannot go on; what was done until then has been given back.
    """

    budget_s = _BUDGET_S

    def __init__(
        self, coordinator: Any, peers: Mapping[str, str], seconds: float, **parts: Any
    ) -> None:
        self.failed: PeerError | None = None
        self._coordinator = coordinator
        self._peers = dict(peers)
        self._seconds = seconds
        self._workers = sum(name.startswith("worker") for name in peers)
        self._counted = parts["global_step"]
        self._data: InputSource = parts["source"]
        self._columns = _Columns(parts.pop("schedules", None) or Schedules())
        self._batch: Sequence[tf.Tensor] = ()
        specs = parts["tower"].specs
        given = TensorInput(lambda: self._batch)
        given.setup(specs, seed=0)
        with parts["distribution"].scope():
            self._applied = tf.Variable(tf.constant(0, tf.int64), trainable=False, name="applied")
        super().__init__(
            **{**parts, "source": given, "global_step": self._applied},
            schedules=self._columns,
        )
        many = tf.TensorShape([None])
        self._stacked = [tf.TensorSpec(many.concatenate(s.shape), s.dtype) for s in specs]
        number = tf.TensorSpec([], tf.int64)
        self._remote: list[Any] = []
        self._counters: list[tf.Variable] = []
        self._take = tf.function(self._batches, input_signature=[number, number], autograph=False)

    def compile(self) -> None:
        """Trace what the workers run."""
        signature = [self._columns.spec, tf.TensorSpec([], tf.int64), *self._stacked]
        self._take.get_concrete_function()
        self._remote = [self._traced(self._many_steps, signature)]
        if self.has_heavy:
            self._remote.append(self._traced(self._heavy_step, signature))
        self._tell_untrained()
        self._counters = counters(self.optimizers)
        # Where the garbage collector takes a function, TensorFlow removes it from all processes,
        # and for one that does not answer it would wait for ever.
        gc.collect()

    def run(self, steps: int, *, after: int) -> CallResult:
        """Run steps, whatever the order; see `Executor.run`."""
        return self._run_shares(steps, after, heavy=False)

    def run_heavy(self, *, after: int) -> CallResult:
        """Run one step, with the summaries that are too dear for every step."""
        return self._run_shares(1, after, heavy=True)

    # ------------------------------------------------------------------ on the chief

    def _run_shares(self, steps: int, after: int, *, heavy: bool) -> CallResult:
        call = SharedCall(self._columns, self._counters, steps, after)
        due = tf.constant(call.due)
        before = int(self._applied.numpy())
        work = Work(after, steps, 2 * self._workers)
        shares = [
            _Share(start, due[:, start - after : start - after + n], self._take(n, start))
            for start, n in iter(work.take, None)
        ]
        results: list[CallResult] = []
        bad = 0
        while shares:
            done = self._send(shares, heavy=heavy)
            results.extend(done)
            # A step that was not applied ends its share: the rest of it is sent once more.
            bad += sum(r.nonfinite is not None for r in done)
            pairs = zip(shares, done, strict=False)
            shares = [share.after(r.steps + 1) for share, r in pairs if r.nonfinite is not None]
            shares = [share for share in shares if share.size]
        result = joined(results) if results else self._nothing()
        self._counted.assign_add(result.steps)
        self._data.consumed(max(bad - 1, 0))
        applied = int(self._applied.numpy()) - before
        call.end(result.steps, applied=applied)
        if applied > result.steps and self.failed is None:
            again = applied - result.steps
            _LOG.warning("A worker was lost: %d of its steps have been applied twice.", again)
        return result

    def _send(self, shares: Sequence[_Share], *, heavy: bool) -> list[CallResult]:
        """What the workers make of shares; of the first ones, if the run cannot go on."""
        function = self._remote[heavy]
        values = [
            self._coordinator.schedule(
                function, args=(s.due, tf.constant(s.start, tf.int64), *s.batches)
            )
            for s in shares
        ]
        given: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def collect() -> None:
            try:
                for value in values:
                    given.put(self._fetched(value))
            except Exception as error:  # noqa: BLE001 - raised below
                given.put(error)

        threading.Thread(target=collect, name="towerpack-collect", daemon=True).start()
        results: list[CallResult] = []
        for share in shares:
            value = self._wait(given)
            if isinstance(value, PeerError):
                self.failed = value
                break
            if isinstance(value, tf.errors.OpError):
                last = share.start + share.size
                what = f"One of the steps {share.start + 1} to {last}, or of those sent with them,"
                raise step_error(value, what, Path(), no_batch) from value
            if isinstance(value, Exception):
                raise value
            results.append(
                self._result(int(value[0]), bool(value[1]), *value[2:], *[[]] * (not heavy))
            )
        return results

    def _fetched(self, value: Any) -> Any:
        """What a share gives, though its worker be lost before it has been fetched."""
        try:
            return value.get()
        except (tf.errors.UnavailableError, tf.errors.AbortedError):
            # The coordinator has the same error and gives the share to another worker.
            self._coordinator.join()
            return value.get()

    def _wait(self, given: queue.SimpleQueue[Any]) -> Any:
        """The next share's outcome; an error if there is none, since some peer does not answer."""
        while True:
            try:
                return given.get(timeout=self._seconds / 2)
            except queue.Empty:
                silent = silent_peers(self._peers, self._seconds / 2)
                if silent:
                    return missing_peers(silent, f"has not answered for {self._seconds:g} s")

    def _nothing(self) -> CallResult:
        nothing = np.empty(0)
        outputs: dict[str, Any] = {name: [] for name in self._packing.names}
        summaries = {name: nothing for name in self._scalars}
        return CallResult(0, {**outputs, COST: nothing}, summaries, {}, None)

    # ------------------------------------------------------------------ in the graph

    def _batches(self, steps: tf.Tensor, after: tf.Tensor) -> list[tf.Tensor]:
        """Batches of some steps, stacked."""
        return tf.map_fn(
            self._data.get,
            tf.range(after, after + steps),
            parallel_iterations=1,
            fn_output_signature=[tf.TensorSpec(s.shape[1:], s.dtype) for s in self._stacked],
        )

    def _traced(self, body: Callable[[tf.Tensor], Any], signature: Sequence[Any]) -> Any:
        def share(due: tf.Tensor, after: tf.Tensor, *stacked: tf.Tensor) -> Any:
            steps = tf.shape(due, tf.int64)[1]
            self._columns.more = [tf.range(after, after + steps), *stacked]
            return body(due)

        # Concrete, since the coordinator would trace it once more in its strategy's scope, in
        # which an optimizer cannot be applied.
        function = tf.function(share, input_signature=signature, autograph=False)
        return function.get_concrete_function()

    def _one_step(self, due: Sequence[tf.Tensor]) -> Any:
        size = len(self._columns.pairs)
        self._at, *self._batch = due[size:]
        return super()._one_step(due[:size])


class _Share(NamedTuple):
    """Steps for one worker.

    Attributes:
        start: The step before them.
        due: What schedules give for them, [schedules, steps].
        batches: Of each input, [steps, …].
    """

    start: int
    due: tf.Tensor
    batches: Sequence[tf.Tensor]

    @property
    def size(self) -> int:
        return len(self.batches[0])

    def after(self, steps: int) -> _Share:
        return _Share(self.start + steps, self.due[:, steps:], [b[steps:] for b in self.batches])


class _Columns(Schedules):
    """What differs from step to step of a share: values of schedules, its number, its batch.

    Attributes:
        more: All but the values, [steps, …]; set while a share is traced.
    """

    def __init__(self, schedules: Schedules) -> None:
        super().__init__(schedules.pairs)
        self.more: list[tf.Tensor] = []

    def rows(self, due: tf.Tensor) -> list[tf.Tensor]:
        """All of them."""
        return [*super().rows(due), *self.more]
