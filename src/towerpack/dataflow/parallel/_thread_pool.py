"""Worker threads, for maps that release the GIL and for interpreters without a GIL."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
import traceback
from typing import Any, cast

from towerpack.dataflow._arena import Arena, lend
from towerpack.dataflow.datapoints import Datapoint, to_rows
from towerpack.dataflow.parallel._options import Options
from towerpack.dataflow.parallel._pool import Member, Pool
from towerpack.dataflow.parallel._slot_packing import WORTH_LENDING
from towerpack.dataflow.parallel._slots import Bytes, SlotPool
from towerpack.dataflow.parallel._work_units import Result, Unit

_Task = tuple[Unit, Any, Bytes | None]
_Done = tuple[int, Result, int, float]


class ThreadMember(Member):
    """Worker thread without a reference to its pool, so that the pool can be garbage-collected."""

    def __init__(self, number: int, results: queue.SimpleQueue[_Done | None]) -> None:
        super().__init__()
        self.tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        name, arguments = f"towerpack-data-{number}", (number, self.tasks, results)
        self.thread = threading.Thread(target=_serve, args=arguments, name=name, daemon=True)
        self.thread.start()

    def stacks(self) -> str:
        frames: Any = sys
        frame = frames._current_frames().get(self.thread.ident or 0)
        return "" if frame is None else "".join(traceback.format_stack(frame))


def _serve(
    number: int, tasks: queue.SimpleQueue[_Task | None], results: queue.SimpleQueue[_Done | None]
) -> None:
    while (task := tasks.get()) is not None:
        unit, job, memory = task
        begin = time.perf_counter()
        arena = None if memory is None else Arena(memory)
        result = Result([], 0)
        if not unit.abandoned:
            try:
                with lend(arena):
                    result = job.run(unit.work, unit.inputs)
            except BaseException as error:  # noqa: BLE001  the consumer waits for an answer
                result = Result([], 0, error)
        needed = 0 if arena is None else max(1, arena.needed)
        results.put((number, result, needed, time.perf_counter() - begin))
        del task, unit, job, memory, arena, result  # frees memory while the thread waits


class ThreadPool(Pool):
    members: list[ThreadMember]

    def __init__(self, options: Options) -> None:
        super().__init__(options, SlotPool(shared=False))
        self._results: queue.SimpleQueue[_Done | None] = queue.SimpleQueue()
        self._needed = 0

    @property
    def usable(self) -> bool:
        # After a fork, the threads do not exist.
        return not self._closed and all(member.thread.is_alive() for member in self.members)

    def start_members(self) -> None:
        while len(self.members) < self.options.workers:
            self.members.append(ThreadMember(len(self.members), self._results))

    def submit(self, unit: Unit, member: Member) -> None:
        member.assign(unit)
        memory = None
        # Small results are cheaper in separate memory.
        small = 0 < self._needed < WORTH_LENDING
        if not (small or self.must_copy()):
            memory = self.slots.lend(self.slots.take())
        cast("ThreadMember", member).tasks.put((unit, self.job, memory))

    def wait(self, timeout_s: float) -> None:
        with contextlib.suppress(queue.Empty):
            if timeout_s > 0:
                self._process_result(self._results.get(timeout=timeout_s))
            while True:
                self._process_result(self._results.get_nowait())

    def wake(self) -> None:
        self._results.put(None)

    def _process_result(self, done: _Done | None) -> None:
        if done is None:  # sent by `wake`
            return
        number, result, needed, seconds = done
        unit = self.members[number].finished()
        if unit.abandoned:
            return
        self._needed = max(self._needed, needed)
        self.slots.expect(needed)
        unit.finish(result.block, result.count, result.error)
        unit.seconds, unit.nbytes = seconds, needed

    def take(self, unit: Unit) -> list[Datapoint]:
        block, unit.value = unit.value, None
        return to_rows(block)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for member in self.members:
            for unit in member.queue:
                unit.abandoned = True
            member.tasks.put(None)
        self.members.clear()
        self.slots.close()
