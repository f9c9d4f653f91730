"""Utilization of NVIDIA's GPUs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any


class Nvml:
    """Bindings to NVIDIA's management library (NVML API reference). A failure is an OSError.

    Args:
        library: Name of its shared library.
        devices: Numbers or UUIDs; None for all.
    """

    def __init__(self, library: str, devices: Sequence[int | str] | None) -> None:
        self._library = ctypes.CDLL(library)
        self._call("nvmlInit_v2")
        count = ctypes.c_uint()
        self._call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        chosen = range(count.value) if devices is None else devices
        self.handles = [self._handle(str(device)) for device in chosen]

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise OSError(f"{name} gives the status {status}")

    def _handle(self, device: str) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        if device.strip().isdigit():
            which = "Index_v2", ctypes.c_uint(int(device))
        else:
            which = "UUID", device.encode()
        self._call(f"nvmlDeviceGetHandleBy{which[0]}", which[1], ctypes.byref(handle))
        return handle

    def utilization(self) -> list[float]:
        """Percent of the last sample period, of each device."""
        found: list[float] = []
        for handle in self.handles:
            rates = (ctypes.c_uint * 2)()  # of the GPU, of its memory
            self._call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(rates))
            found.append(float(rates[0]))
        return found
