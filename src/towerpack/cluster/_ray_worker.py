"""Worker of a job on Ray: an actor that runs the program in a process and reports to Ray."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import contextlib
import json
import os
import platform
import select
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final, cast

import ray
import ray.train
from ray.train.backend import Backend, BackendConfig
from ray.train.collective import broadcast_from_rank_zero

from towerpack._core.errors import ConfigError, PeerError
from towerpack.cluster._cluster import Cluster
from towerpack.cluster._launcher import free_ports
from towerpack.cluster._task import Task, guarded

COMPLETE, PREEMPTED = 0, -1
_ASKED_TO_END: Final = (130, 143)
_TICK_S: Final = 1.0
_REPORT_S: Final = 5.0
_FINAL_S: Final = 60.0


@dataclass
class _Actor:
    """State that the threads of this actor share."""

    cluster: Cluster | None = None
    restarts: int = 0
    ask: int = 0  # signal to send to the process
    ended: threading.Event = field(default_factory=threading.Event)


_actor = _Actor()


class WorkersConfig(BackendConfig):
    """Configuration of `_Workers`: seconds until a worker is killed, and restarts so far."""

    def __init__(self, grace_s: float, restarts: int) -> None:
        self.grace_s, self.restarts = grace_s, restarts

    @property
    def backend_cls(self) -> type[Backend]:
        return _Workers


class _Workers(Backend):
    """Tells each worker its cluster, and ends the processes before Ray kills their actors."""

    _starts = 0

    def on_start(self, worker_group: Any, backend_config: Any) -> None:
        addresses = worker_group.execute(_address)
        restarts = backend_config.restarts + self._starts
        self._starts += 1
        for i in range(len(addresses)):
            ray.get(worker_group.execute_single_async(i, _prepare, addresses, i, restarts))

    def on_shutdown(self, worker_group: Any, backend_config: Any) -> None:
        grace_s = backend_config.grace_s
        ending = worker_group.execute_async(_end, grace_s)
        ray.wait(ending, num_returns=len(ending), timeout=grace_s + 10)


def _address() -> str:
    return f"{ray.util.get_node_ip_address()}:{free_ports(1)[0]}"


def _prepare(addresses: Sequence[str], index: int, restarts: int) -> None:
    global _actor
    _actor = _Actor(Cluster({"worker": addresses}, "worker", index), restarts)


def _end(grace_s: float) -> None:
    _actor.ask = _actor.ask or signal.SIGTERM
    _actor.ended.wait(grace_s)


class _Copies:
    """Output of a worker, which goes to its log and to Ray's console."""

    def __init__(self, log: BinaryIO) -> None:
        self._targets = (log, sys.stdout.buffer)

    def write(self, line: bytes) -> None:
        for target in self._targets:
            target.write(line)

    def flush(self) -> None:
        for target in self._targets:
            target.flush()


def work(job: dict[str, Any]) -> int:
    """Run the program in a process until its end. Ray calls this in a thread of each actor.

    Returns:
        `COMPLETE`, the exit status of a run that was asked to end, or `PREEMPTED`.
    """
    rank = ray.train.get_context().get_world_rank()
    storage = Path(job["storage"])
    check_shared(storage / job["probe"], Path(job["directory"]))
    with contextlib.ExitStack() as stack:
        log = stack.enter_context((storage / f"rank-{rank}.log").open("a+b"))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        process = _Process(job, folder / "run", log)
        stack.callback(process.join)
        return _follow(process, job["board"], rank, folder)


def check_shared(probe: Path, directory: Path) -> None:
    for path, name in ((probe, "storage"), (directory, "working directory")):
        if not path.exists():
            raise ConfigError(
                f"The {name} of the job is not visible on {platform.node()}.",
                got=f"no {path}",
                expected="a path on storage that all machines of the job share",
                fix="start the job in a shared directory, and pass a shared storage=",
            )


class _Process:
    """The program of a worker, served by a thread: output, signals and its end."""

    def __init__(self, job: dict[str, Any], run_file: Path, log: BinaryIO) -> None:
        self.run_file, self._log = run_file, log
        self.status: int | None = None
        self.actor = _actor
        self._job = job
        self._thread = threading.Thread(target=self._serve, name="towerpack-worker", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        actor = self.actor
        variables = {
            "PYTHONUNBUFFERED": "1",
            "TOWERPACK_RESTART": str(actor.restarts),
            "TOWERPACK_RUN_FILE": str(self.run_file),
        }
        command = [sys.executable, *self._job["program"]]
        try:
            with guarded() as guard:
                task = Task(
                    cast("Cluster", actor.cluster), command, variables, guard,
                    directory=self._job["directory"], output=cast("BinaryIO", _Copies(self._log)),
                )  # fmt: skip
                try:
                    while task.status is None:
                        if actor.ask:
                            task.end(actor.ask, self._job["grace_s"])
                        task.kill_if_late()
                        outputs = [output for output in task.outputs if output.open]
                        for output in select.select(outputs, [], [], 0.1)[0]:
                            output.pass_on()
                    status = task.status
                finally:
                    task.close()
                self.status = status if status >= 0 else 128 - status
        finally:
            self.status = 1 if self.status is None else self.status
            actor.ended.set()

    def check(self) -> None:
        """Raise `PeerError` if the program has failed."""
        if self.status and self.status not in _ASKED_TO_END:
            self._log.seek(max(0, self._log.tell() - 3000))
            raise PeerError(
                f"{self.actor.cluster and self.actor.cluster.name} on {platform.node()} ended with "
                f"exit status {self.status}.",
                got=self._log.read().decode(errors="replace"),
            )

    def join(self) -> None:
        """End the process, if it still runs, and wait for it."""
        self.actor.ask = self.actor.ask or signal.SIGTERM
        self._thread.join()


def _follow(process: _Process, board: Any, rank: int, folder: Path) -> int:
    """Exchange news with the other workers once per second, until the process has ended."""
    reader = _News(process.run_file)
    preempted = False
    while True:
        began = time.monotonic()
        over = process.status is not None
        process.check()
        message: Any = None
        news = None
        if rank == 0:
            news = reader.read(over=over)
            ask = ray.get(board.beat.remote())
            message = {"ask": ask, "over": over, "report": news is not None}
        message = broadcast_from_rank_zero(message)
        preempted = preempted or ray.train.get_preemption_info() is not None
        if message["ask"] or preempted:
            _actor.ask = _actor.ask or message["ask"] or signal.SIGTERM
        if message["report"]:  # all workers report, as Ray demands, but only the first has news
            metrics, newest = news or ({}, None)
            ray.train.report(metrics, _pointer(newest, folder))
        if message["over"]:
            break
        time.sleep(max(0.0, _TICK_S - (time.monotonic() - began)))
    process.actor.ended.wait(_FINAL_S)
    process.check()
    return PREEMPTED if process.status and preempted else process.status or 0


class _News:
    """Newest metrics and checkpoint in the run directory, whose path the program writes."""

    def __init__(self, run_file: Path) -> None:
        self._run_file, self._due = run_file, 0.0
        self._read: Any = None

    def read(self, *, over: bool) -> tuple[dict[str, float], Path | None] | None:
        """Return the news if a report is due, or at the end. None if there are no news."""
        if not self._run_file.exists() or (not over and time.monotonic() < self._due):
            return None
        run = Path(self._run_file.read_text())
        newest = max((run / "checkpoints").glob("step-*"), default=None)
        news = _last_record(run / "stats.jsonl"), newest
        before, self._read = self._read, news
        self._due = time.monotonic() + _REPORT_S
        return None if news in (before, ({}, None)) else news


def _pointer(newest: Path | None, folder: Path) -> Any:
    """Return a checkpoint for Ray, which contains only the path of the newest one."""
    if newest is None:
        return None
    pointer = folder / newest.name
    pointer.mkdir(exist_ok=True)
    (pointer / "checkpoint.json").write_text(json.dumps({"path": str(newest)}))
    return ray.train.Checkpoint.from_directory(os.fspath(pointer))


def _last_record(path: Path) -> dict[str, float]:
    with contextlib.suppress(OSError, ValueError):
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - (1 << 16)))
            record = json.loads(file.read().splitlines()[-1])
        numbers = {**record, **record.get("scalars", {})}
        return {n: v for n, v in numbers.items() if isinstance(v, int | float)}
    return {}
