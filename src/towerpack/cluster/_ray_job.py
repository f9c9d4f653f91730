"""Job on Ray, as its launcher sees it: start, signals, patience and the end."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
from __future__ import annotations

import contextlib
import os
import secrets
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import ray
from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

from towerpack._core.errors import PeerError
from towerpack._core.logs import get_logger
from towerpack.cluster._launcher import handling_signals
from towerpack.cluster._ray_worker import PREEMPTED, WorkersConfig, work

_LOG = get_logger(__name__)


class _Board:
    """Actor through which the launcher and the first worker exchange signs of life and signals."""

    def __init__(self) -> None:
        self._beats = self._signal = 0

    def beat(self) -> int:
        self._beats += 1
        return self._signal

    def beats(self) -> int:
        return self._beats

    def ask(self, number: int) -> None:
        self._signal = number


@dataclass
class RayJob:
    """Arguments of `towerpack.cluster.ray.train`, and the job's life."""

    program: list[str]
    workers: tuple[int, int]
    resources: dict[str, float]
    storage: Path
    max_restarts: int
    grace_s: float
    patience_s: float
    resize_every_s: float
    _signal: int = 0

    def run(self) -> int:
        """Run the job and return its exit status."""
        self.storage.mkdir(parents=True, exist_ok=True)
        probe = self.storage / f".shared-{secrets.token_hex(8)}"
        probe.touch()
        if not ray.is_initialized():
            ray.init()
        board = ray.remote(num_cpus=0)(_Board).remote()
        try:
            in_main = threading.current_thread() is threading.main_thread()
            with handling_signals(self._on_signal) if in_main else contextlib.nullcontext():
                job = {
                    "program": self.program,
                    "directory": os.getcwd(),
                    "storage": str(self.storage),
                    "probe": probe.name,
                    "grace_s": self.grace_s,
                    "board": board,
                }
                restarts = 0
                while (status := self._fit(job, restarts)) == PREEMPTED and not self._signal:
                    restarts += 1
                    _LOG.warning("A node is being drained. The run is saved, and starts again.")
            return 128 + self._signal if self._signal else status
        except PeerError:
            ray.shutdown()  # ends all processes of the job
            raise
        finally:
            probe.unlink(missing_ok=True)

    def _fit(self, job: dict[str, Any], restarts: int) -> int:
        least, most = self.workers
        trainer = DataParallelTrainer(
            work,
            train_loop_config=job,
            backend_config=WorkersConfig(self.grace_s, restarts),
            scaling_config=ScalingConfig(
                num_workers=most if least == most else self.workers,
                resources_per_worker=self.resources,
                use_gpu="GPU" in self.resources,
                elastic_resize_monitor_interval_s=self.resize_every_s,
            ),
            run_config=RunConfig(
                name=f"job-{secrets.token_hex(4)}",
                storage_path=str(self.storage),
                failure_config=FailureConfig(
                    max_failures=self.max_restarts, controller_failure_limit=self.max_restarts
                ),
                checkpoint_config=CheckpointConfig(num_to_keep=1),
            ),
        )
        outcome: list[Any] = []

        def fit() -> None:
            try:
                outcome.append(trainer.fit().return_value)
            except Exception as error:  # noqa: BLE001 - raised below
                outcome.append(error)

        # In a thread, so that Ray leaves signals to this process.
        threading.Thread(target=fit, name="towerpack-ray", daemon=True).start()
        self._watch(job["board"], outcome)
        if isinstance(outcome[0], Exception):
            raise PeerError(
                f"The workers failed more than {self.max_restarts} times.",
                got=str(outcome[0]).strip()[-3000:],
                fix=f"read the logs rank-N.log in {self.storage}, then start the job again to "
                "continue the run",
            ) from None
        return outcome[0]

    def _watch(self, board: Any, outcome: list[Any]) -> None:
        beats, since, asked = 0, time.monotonic(), 0.0
        while not outcome:
            time.sleep(0.2)
            if self._signal and not asked:
                asked = time.monotonic()
                board.ask.remote(self._signal)
            before, beats = beats, ray.get(board.beats.remote())
            since = time.monotonic() if beats != before else since
            silent_s = time.monotonic() - since
            late = asked and time.monotonic() - asked > self.grace_s + 30 and silent_s > 10
            if late or silent_s > self.patience_s:
                raise PeerError(
                    f"The job has had fewer than {self.workers[0]} workers for {silent_s:.0f} s.",
                    got=f"free resources {ray.available_resources()}",
                    expected=f"{self.workers[0]} times {self.resources}",
                    fix="add machines, request less with resources=, or reduce the smallest number "
                    "of workers; then start the job again to continue the run",
                )

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signal = self._signal or number
        _LOG.warning("%s: the workers save the run and end.", signal.Signals(number).name)
