"""Search for the largest batch size that fits into memory, by training in child processes."""

from __future__ import annotations

import dataclasses
import json
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle
import tensorflow as tf

from towerpack._core.errors import ConfigError, TowerpackError
from towerpack._core.files import replace_file
from towerpack._core.logs import console, get_logger
from towerpack.callbacks import Callback
from towerpack.training.config import TrainConfig
from towerpack.training.trainers.base import SimpleTrainer, Trainer

_LOG = get_logger(__name__)
_BOOT = (
    "import sys; sys.path[:] = sys.argv[1:]; "
    "from towerpack.training.trainers.batch_size import main; main()"
)
_NO_MEMORY = ("ResourceExhausted", "RESOURCE_EXHAUSTED", "MemoryError", "bad_alloc")


def find_batch_size(
    make_config: Callable[[int], TrainConfig],
    *,
    trainer: Callable[[TrainConfig], Trainer] = SimpleTrainer,
    limit: int = 1 << 16,
    steps: int = 10,
    memory: int | None = None,
    timeout_s: float = 600.0,
) -> dict[int, float]:
    """Find the largest batch size that fits into memory, to within a sixteenth.

    The size is doubled until training fails, and then bisected. Each size is trained in a new
    process for two epochs of `steps` steps. The second one is timed. Only this process ends if
    memory runs out: on Linux, it is the first that the kernel kills. Without a GPU, its memory is
    limited too. Callbacks and monitors of the configuration are left out, and no run directory is
    written.

    Call this function before the calling process uses a GPU, whose memory it would keep.

    Args:
        make_config: Function that returns the configuration for a batch size.
        trainer: Function that returns the trainer of a configuration.
        limit: Largest batch size to try.
        steps: Steps in an epoch.
        memory: Limit of the process's data in bytes, without a GPU. By default, nine tenths of the
            memory that is available.
        timeout_s: Seconds after which a process that is not done is killed. Its size is too large.

    Returns:
        Datapoints that one replica trains on in a second, by batch size, ascending. The last batch
        size is the largest that fits.

    Raises:
        TowerpackError: Training with batch size 1 fails.
    """
    console()
    job = make_config, trainer, steps, memory or _available_memory()
    rates: dict[int, float] = {}
    fits, fails, size = 0, limit + 1, 1
    while True:
        rate, problem = _tried((*job, size), timeout_s)
        _LOG.info("Batch size %d: %s", size, problem or f"{rate:,.1f} rows/s")
        if problem:
            fails = size
        else:
            fits, rates[size] = size, rate
        if fails - fits <= max(1, fails // 16):
            break
        size = min(2 * size, limit) if fails > limit else (fits + fails) // 2
    if not fits:
        raise TowerpackError(
            f"Training with batch size 1 failed: {problem}.",
            fix="correct the error, or use a smaller model, smaller inputs or more memory",
        )
    return dict(sorted(rates.items()))


def _available_memory() -> int | None:
    with suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024 * 9 // 10
    return None


def _tried(job: tuple[Any, ...], timeout_s: float) -> tuple[float, str]:
    """Train in a child process. Return the datapoints in a second, and the problem or ""."""
    command = [sys.executable, "-c", _BOOT, *sys.path]
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        content, result = cloudpickle.dumps((folder, *job)), Path(folder, "result")
        try:
            child = subprocess.run(command, input=content, capture_output=True, timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return 0.0, f"not done after {timeout_s:g} s"
        if result.is_file():
            rate, problem = json.loads(result.read_bytes())
            return rate, problem
    last, code = child.stderr.decode(errors="replace").strip().rpartition("\n")[2], child.returncode
    killed = code in (-signal.SIGKILL, -signal.SIGABRT)  # by the kernel, or by a C++ library
    return 0.0, "out of memory (killed)" if killed else f"ended with code {code}: {last}"


def main() -> None:
    """Train in a child process, and write the throughput or the problem."""
    with suppress(OSError):  # so that the kernel kills this process first
        Path("/proc/self/oom_score_adj").write_text("1000")
    folder, *job = pickle.load(sys.stdin.buffer)  # noqa: S301 - of the parent
    try:
        result = _rows_per_s(Path(folder), *job), ""
    except Exception as error:  # noqa: BLE001 - the parent reports it
        story, problem = traceback.format_exc(), f"{type(error).__name__}: {error}"
        no_memory = any(name in story for name in _NO_MEMORY)
        result = 0.0, "out of memory" if no_memory else problem.partition("\n")[0]
    replace_file(Path(folder, "result"), json.dumps(result).encode())


class _Watch(Callback):
    def before_epoch(self) -> None:
        self.began = time.perf_counter()

    def after_epoch(self) -> None:
        self.seconds = time.perf_counter() - self.began


def _rows_per_s(
    folder: Path,
    make_config: Callable[[int], TrainConfig],
    trainer: Callable[[TrainConfig], Trainer],
    steps: int,
    memory: int | None,
    size: int,
) -> float:
    if memory and not tf.config.list_physical_devices("GPU"):
        resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    watch = _Watch()
    config = dataclasses.replace(
        make_config(size),
        callbacks=[watch],
        extra_callbacks=[],
        monitors=[],
        steps_per_epoch=steps,
        max_epoch=2,
        run_dir=folder / "run",
        resume="never",
        on_existing="new",
        fast_dev_run=False,
        overfit_batches=None,
        skip_steps=(),
    )
    run = trainer(config)
    run.train()
    if run.global_step < 2 * steps:
        raise ConfigError(
            f"The data ended after {run.global_step} of {2 * steps} steps.",
            fix="repeat the data, or pass a smaller steps=",
        )
    return steps * size / watch.seconds
