import ctypes
from collections.abc import Sequence
from typing import Any


class Nvml:
    """Bindings to NVIDIA's management library (NVML). Failed calls raise OSError.

    Args:
        library: File name of the shared library.
        devices: Indices or UUIDs of GPUs; None for all GPUs.
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
            raise OSError(f"{name} returned the status {status}")

    def _handle(self, device: str) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        by_index = device.strip().isdigit()
        key = ctypes.c_uint(int(device)) if by_index else device.encode()
        name = f"nvmlDeviceGetHandleBy{'Index_v2' if by_index else 'UUID'}"
        self._call(name, key, ctypes.byref(handle))
        return handle

    def utilization(self) -> list[float]:
        """Return the utilization of each GPU in percent, over NVML's last sample period."""
        percents: list[float] = []
        for handle in self.handles:
            rates = (ctypes.c_uint * 2)()  # Of the GPU and of its memory
            self._call("nvmlDeviceGetUtilizationRates", handle, ctypes.byref(rates))
            percents.append(float(rates[0]))
        return percents
