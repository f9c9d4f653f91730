"""What is measured of the machine, and what is said where there is nothing."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

from own_threads import threads
from small_host import SmallHost
from towerpack import ConfigError, NumericsError
from towerpack.callbacks import (
    CallbackFactory,
    GPUMemoryTracker,
    GPUUtilizationTracker,
    HostMemoryTracker,
    NaNWatch,
)

# Three GPUs, of which each is busy by ten percent more than the one before.
NVML = """
typedef unsigned int uint;
int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(uint *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(uint index, void **device) {
    *device = (void *)(index + 1ul);
    return index < 3 ? 0 : 2;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) { *device = (void *)9ul; return 0; }
int nvmlDeviceGetUtilizationRates(void *device, uint *rates) {
    rates[0] = 10 * (uint)(unsigned long)device;
    rates[1] = 1;
    return 0;
}
"""


def test_main_memory(tmp_path: Path) -> None:
    host = SmallHost(tmp_path, [HostMemoryTracker()]).run()
    process, free = (host.monitors.history(f"memory/{n}") for n in ("process", "host_free"))
    assert [step for step, _ in process] == [4, 8, 12]
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    assert 0.01 < process[-1][1] < total and 0 < free[-1][1] < total


def test_without_gpu_one_line_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trackers = [GPUMemoryTracker(), GPUUtilizationTracker(library="libno-such.so.1")]
    with caplog.at_level(logging.INFO):
        host = SmallHost(tmp_path, trackers).run()
    assert caplog.text.count("has nothing to measure on this machine") == 2
    assert host.monitors.names() == []


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    ("devices", "expected"), [(None, [10, 20, 30]), ([2, "GPU-8f"], [30, 90]), ("1", [20])]
)
def test_utilization_by_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: object, expected: list[float]
) -> None:
    library = tmp_path / "libnvml.so"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=NVML, text=True, check=True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if isinstance(devices, str):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    given = None if isinstance(devices, str) else devices
    tracker = GPUUtilizationTracker(given, 0.01, library=str(library))  # type: ignore[arg-type]
    wait = CallbackFactory(after_epoch=lambda self: time.sleep(0.1))
    host = SmallHost(tmp_path, [wait, tracker], max_epoch=1).run()
    assert [host.monitors.latest(n) for n in host.monitors.names()] == expected
    assert not [name for name in threads() if "GPU" in name]
    with pytest.raises(ConfigError):
        GPUUtilizationTracker(interval_s=0)


def test_weights_that_are_not_finite(tmp_path: Path) -> None:
    weights = {
        "fc/kernel": np.ones((2, 3)),
        "bn/mean": np.array([1, np.nan, np.inf]),
        "n": np.ones(1, int),
    }
    host = SmallHost(tmp_path, [NaNWatch()])
    host.get_weights = lambda *, ema=False: weights  # type: ignore[method-assign]
    with pytest.raises(NumericsError, match=r"(?s)1 variables.*step 4.*bn/mean: 2 of 3"):
        host.run()
    weights["bn/mean"] = np.ones(3)
    assert host.run().global_step == 12
