"""Callbacks that monitor memory and GPU utilization after each epoch, if they can be measured."""

from __future__ import annotations

import os
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from towerpack._core.errors import ConfigError
from towerpack._core.extras import require
from towerpack._core.logs import get_logger
from towerpack._core.nvml import Nvml
from towerpack.callbacks._base import Callback
from towerpack.callbacks._host import TrainerHost

_log = get_logger(__name__)
_GIB: Final = 2**30


class _Tracker(Callback):
    _names: Sequence[str] = ()

    @abstractmethod
    def _measure(self) -> Mapping[str, float]: ...

    def setup(self, trainer: TrainerHost) -> None:
        self._names = [*self._measure()]
        if not self._names:
            _log.info("%r has nothing to measure on this machine.", self)

    def produces(self) -> Sequence[str]:
        return self._names

    def trigger(self) -> None:
        values = self._measure() if self._names else {}
        for name, value in values.items():
            self.trainer.monitors.put_scalar(name, value, self.global_step)


class HostMemoryTracker(_Tracker):
    """Monitor of main memory in GiB. Linux only.

    `memory/process` is the resident memory of the process, `memory/host_free` the available memory.
    """

    def _measure(self) -> Mapping[str, float]:
        sources = {
            "memory/process": ("/proc/self/status", "VmRSS:"),
            "memory/host_free": ("/proc/meminfo", "MemAvailable:"),
        }
        values = {}
        for name, (path, key) in sources.items():
            lines = Path(path).read_text().splitlines() if Path(path).exists() else []
            for kib in (line.split()[1] for line in lines if line.startswith(key)):
                values[name] = int(kib) * 1024 / _GIB
        return values


class GPUMemoryTracker(_Tracker):
    """Monitor of TensorFlow's peak memory since the last epoch, in GiB: `memory/gpu0_peak`."""

    def _measure(self) -> Mapping[str, float]:
        tf = require("tensorflow", extra="tf", needed_for="GPUMemoryTracker")
        peaks = {}
        for i in range(len(tf.config.list_logical_devices("GPU"))):
            peak = tf.config.experimental.get_memory_info(f"GPU:{i}")["peak"]
            tf.config.experimental.reset_memory_stats(f"GPU:{i}")
            peaks[f"memory/gpu{i}_peak"] = peak / _GIB
        return peaks


class GPUUtilizationTracker(_Tracker):
    """Monitor of mean GPU utilization since the last epoch, in percent: `utilization/gpu0`.

    A thread takes samples from NVML, NVIDIA's management library.

    Args:
        devices: Numbers or UUIDs of GPUs, as in `CUDA_VISIBLE_DEVICES`; None for the visible ones.
        interval_s: Seconds between two samples.
        library: Name of NVML's shared library.

    Raises:
        ConfigError: `interval_s` is not positive.
    """

    def __init__(
        self,
        devices: Sequence[int | str] | None = None,
        interval_s: float = 0.5,
        *,
        library: str = "libnvidia-ml.so.1",
    ) -> None:
        if not interval_s > 0:
            raise ConfigError(
                f"GPUUtilizationTracker: interval_s must be positive, got {interval_s}."
            )
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") if devices is None else devices
        self._devices = visible.split(",") if isinstance(visible, str) else visible
        self._interval_s, self._library = interval_s, library
        self._samples: list[Sequence[float]] = []
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def setup(self, trainer: TrainerHost) -> None:
        try:
            self._nvml = Nvml(self._library, self._devices)
        except OSError as error:
            _log.info("%r has nothing to measure on this machine: %s", self, error)
        else:
            self._names = [f"utilization/gpu{i}" for i in range(len(self._nvml.handles))]

    def before_train(self) -> None:
        if self._names:
            self._ended.clear()
            self._thread = threading.Thread(target=self._watch, name="towerpack GPU", daemon=True)
            self._thread.start()

    def _watch(self) -> None:
        try:
            while not self._ended.wait(self._interval_s):
                self._samples.append(self._nvml.utilization())
        except OSError as error:
            _log.warning("%r stopped taking samples: %s", self, error)

    def _measure(self) -> Mapping[str, float]:
        samples, self._samples = self._samples, []
        means = [sum(device) / len(samples) for device in zip(*samples, strict=True)]
        return dict(zip(self._names, means, strict=False))

    def after_train(self) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
