"""Steps of a call, run by the workers of a cluster with parameter servers."""

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
from towerpack.training.distribution.peers import (
    missing_peers,
    silent_peers,
)
from towerpack.training.loop.executor import Executor, StepParts
from towerpack.training.loop.shared_call import SharedCall, Work, counters, joined, no_batch
from towerpack.training.loop.tensorflow_error import step_error
from towerpack.training.optim.schedules import Schedules
from towerpack.training.steps.step_runner import CallResult

_LOG = get_logger(__name__)
# Longer than on one machine: a call waits for the last of its shares.
_BUDGET_S = 0.5


class RemoteExecutor(Executor):
    """Send the workers shares of a call's steps, each with its batches.

    Args:
        parts: Parts of the step.
        coordinator: TensorFlow's, of the cluster.
        peers: Whom it needs, with their addresses.
        seconds: After which one that does not answer ends the run.

    Attributes:
        failed: The run cannot go on; what was done until then has been given back.
    """

    def __init__(
        self, parts: StepParts, coordinator: Any, peers: Mapping[str, str], seconds: float
    ) -> None:
        self.failed: PeerError | None = None
        self._coordinator = coordinator
        self._peers = dict(peers)
        self._seconds = seconds
        self._workers = sum(name.startswith("worker") for name in peers)
        self._counted = parts.global_step
        self._data = parts.source
        self._columns = _Columns(parts.schedules)
        self._batch: Sequence[tf.Tensor] = ()
        specs = parts.tower.specs
        given = TensorInput(lambda: self._batch)
        given.setup(specs, seed=0)
        with parts.distribution.scope():
            self._applied = tf.Variable(tf.constant(0, tf.int64), trainable=False, name="applied")
        local = replace(parts, source=given, global_step=self._applied, schedules=self._columns)
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
        self._tell_untrained()
        self._counters = counters(self.optimizers)
        # Where the garbage collector takes a function, TensorFlow removes it from all processes,
        # and for one that does not answer it would wait for ever.
        gc.collect()

    def run(self, steps: int, *, after: int) -> CallResult:
        return self._run_shares(steps, after, heavy=False)

    def run_heavy(self, *, after: int) -> CallResult:
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

    def one_step(self, due: Sequence[tf.Tensor]) -> Any:
        size = len(self._columns.pairs)
        self._at, *self._batch = due[size:]
        return super().one_step(due[:size])


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
        return [*super().rows(due), *self.more]
