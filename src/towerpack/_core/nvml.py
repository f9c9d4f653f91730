"""Utilization of NVIDIA's GPUs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any


class Nvml:
    """Bindings to the part of NVIDIA's management library that is needed (NVML API reference).

    Args:
        library: Name of its shared library.
        devices: Numbers or UUIDs; None for all.

    Raises:
        OSError: It is not there, or a call fails.
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
            number = ctypes.c_uint(int(device))
            self._call("nvmlDeviceGetHandleByIndex_v2", number, ctypes.byref(handle))
        else:
            self._call("nvmlDeviceGetHandleByUUID", device.encode(), ctypes.byref(handle))
        return handle

    def utilization(self) -> list[float]:
        """Percent of the last sample period, of each device."""
        found: list[float] = []
        for handle in self.handles:
            rates = (ctypes.c_uint * 2)()  # of the GPU, of its memory
            self._call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(rates))
            found.append(float(rates[0]))
        return found
