"""Execution of steps by the workers of a cluster with parameter servers."""

from __future__ import annotations

import gc
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from towerpack._core.errors import PeerError
from towerpack._core.logs import get_logger
from towerpack.inputs import TensorInput
from towerpack.tower import COST
from towerpack.training.distribution.peers import missing_peers, silent_peers
from towerpack.training.loop.executor import Executor, StepParts
from towerpack.training.loop.shared_call import SharedCall, Work, counters, joined, no_batch
from towerpack.training.loop.tensorflow_error import step_error
from towerpack.training.optim.schedules import Schedules
from towerpack.training.steps.step_runner import CallResult

_LOG = get_logger(__name__)
# Longer than on one machine, because a call waits for its slowest share.
_BUDGET_S = 0.5


class RemoteExecutor(Executor):
    """`StepRunner` that divides the steps of a call among the workers of a cluster.

    If a process does not answer for `seconds`, `failed` holds the error, and only the results of
    earlier steps are returned.
    """

    _keeps_inputs = False  # The coordinator has the batches of all shares.

    def __init__(
        self, parts: StepParts, coordinator: Any, peers: Mapping[str, str], seconds: float
    ) -> None:
        self.failed: PeerError | None = None
        self._coordinator = coordinator
        self._peers = dict(peers)
        self._seconds = seconds
        self._workers = sum(name.startswith("worker") for name in peers)
        self._done = parts.global_step
        self._data = parts.source
        self._columns = _Columns(parts.schedules)
        self._batch: Sequence[tf.Tensor] = ()
        specs = parts.tower.specs
        source = TensorInput(lambda: self._batch)
        source.setup(specs, seed=0)
        with parts.distribution.scope():
            self._applied = tf.Variable(tf.constant(0, tf.int64), trainable=False, name="applied")
        local = replace(parts, source=source, global_step=self._applied, schedules=self._columns)
        super().__init__(local, budget_s=_BUDGET_S)
        many = tf.TensorShape([None])
        self._stacked = [tf.TensorSpec(many.concatenate(s.shape), s.dtype) for s in specs]
        number = tf.TensorSpec([], tf.int64)
        self._remote: list[Any] = []
        self._counters: list[tf.Variable] = []
        self._take = tf.function(self._batches, input_signature=[number, number], autograph=False)

    def compile(self) -> None:
        signature = [self._columns.spec, tf.TensorSpec([], tf.int64), *self._stacked]
        self._take.get_concrete_function()
        self._remote = [self._traced(self._many_steps, signature)]
        if self.has_heavy:
            self._remote.append(self._traced(self._heavy_step, signature))
        self._warn_of_untrained()
        self._counters = counters(self.optimizers)
        # When a function is collected, TensorFlow removes it from all processes, and would wait
        # forever for one that does not answer. So collect while all processes answer.
        gc.collect()

    def run(self, steps: int, *, after: int) -> CallResult:
        return self._run_shares(steps, after, heavy=False)

    def run_heavy(self, *, after: int) -> CallResult:
        return self._run_shares(1, after, heavy=True)

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
        skipped = 0
        while shares:
            done = self._send(shares, heavy=heavy)
            results.extend(done)
            # A step that was not applied ends its share. Send the remaining steps again.
            skipped += sum(r.nonfinite is not None for r in done)
            pairs = zip(shares, done, strict=False)
            shares = [share.after(r.steps + 1) for share, r in pairs if r.nonfinite is not None]
            shares = [share for share in shares if share.size]
        result = joined(results) if results else self._no_result()
        self._done.assign_add(result.steps)
        self._data.consumed(max(skipped - 1, 0))
        applied = int(self._applied.numpy()) - before
        call.end(result.steps, applied=applied)
        if applied > result.steps and self.failed is None:
            again = applied - result.steps
            _LOG.warning("A worker was lost, and %d of its steps were applied twice.", again)
        return result

    def _send(self, shares: Sequence[_Share], *, heavy: bool) -> list[CallResult]:
        """Return the results of the shares in order, up to the first share that failed."""
        function = self._remote[heavy]
        values = [
            self._coordinator.schedule(
                function, args=(s.due, tf.constant(s.start, tf.int64), *s.batches)
            )
            for s in shares
        ]
        fetched: queue.SimpleQueue[Any] = queue.SimpleQueue()

        def collect() -> None:
            try:
                for value in values:
                    fetched.put(self._fetch(value))
            except Exception as error:  # noqa: BLE001 - raised below
                fetched.put(error)

        threading.Thread(target=collect, name="towerpack-collect", daemon=True).start()
        results: list[CallResult] = []
        for share in shares:
            value = self._wait(fetched)
            if isinstance(value, PeerError):
                self.failed = value
                break
            if isinstance(value, tf.errors.OpError):
                last = share.start + share.size
                what = f"A step from {share.start + 1} to {last}, or one sent with these,"
                raise step_error(value, what, Path(), no_batch) from value
            if isinstance(value, Exception):
                raise value
            result = self._result(*value)
            if result.nonfinite is not None:
                batch = [rows[result.steps].numpy() for rows in share.batches]
                result = replace(result, nonfinite=batch)
            results.append(result)
        return results

    def _fetch(self, value: Any) -> Any:
        """Return the result of a share, even if its worker is lost in the meantime."""
        try:
            return value.get()
        except (tf.errors.UnavailableError, tf.errors.AbortedError):
            # The coordinator notices the error too and sends the share to another worker.
            self._coordinator.join()
            return value.get()

    def _wait(self, fetched: queue.SimpleQueue[Any]) -> Any:
        """Return the result of the next share, or a `PeerError` if some process does not answer."""
        while True:
            try:
                return fetched.get(timeout=self._seconds / 2)
            except queue.Empty:
                silent = silent_peers(self._peers, self._seconds / 2)
                if silent:
                    return missing_peers(silent, f"has not answered for {self._seconds:g} s")

    def _no_result(self) -> CallResult:
        empty = np.empty(0)
        outputs: dict[str, Any] = {name: [] for name in self._packing.names}
        summaries = {name: empty for name in self._scalars}
        return CallResult(0, {**outputs, COST: empty}, summaries, {}, None)

    def _batches(self, steps: tf.Tensor, after: tf.Tensor) -> list[tf.Tensor]:
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

        # The coordinator would trace a `tf.function` again in its strategy's scope, in which an
        # optimizer cannot be applied. So pass a concrete function.
        function = tf.function(share, input_signature=signature, autograph=False)
        return function.get_concrete_function()

    def one_step(self, due: Sequence[tf.Tensor]) -> Any:
        size = len(self._columns.pairs)
        self._step_number, *self._batch = due[size:]
        return super().one_step(due[:size])


class _Share(NamedTuple):
    """Steps after `start` for one worker: values of schedules, and batches of shape [steps, …]."""

    start: int
    due: tf.Tensor
    batches: Sequence[tf.Tensor]

    @property
    def size(self) -> int:
        return len(self.batches[0])

    def after(self, steps: int) -> _Share:
        return _Share(self.start + steps, self.due[:, steps:], [b[steps:] for b in self.batches])


class _Columns(Schedules):
    """Schedules, and in `more` the number and the batch, of each step of a share."""

    def __init__(self, schedules: Schedules) -> None:
        super().__init__(schedules.pairs)
        self.more: list[tf.Tensor] = []

    def rows(self, due: tf.Tensor) -> list[tf.Tensor]:
        return [*super().rows(due), *self.more]
