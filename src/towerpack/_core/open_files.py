"""Open files and other resources that each process opens for itself."""

import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class PerProcess(Generic[T]):
    """Resource that each process opens at first use. Pickling leaves out the open resource."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._opened: tuple[int, T] | None = None

    def get(self) -> T:
        opened = self._opened
        pid = os.getpid()
        if opened is None or opened[0] != pid:
            opened = (pid, self._make())
            self._opened = opened  # one assignment, so this is thread-safe
        return opened[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}


class OpenFile:
    """Thread-safe reader of a file, which is closed when the last reference is dropped."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read_at(self, offset: int, nbytes: int) -> bytes:
        data = os.pread(self._fd, nbytes, offset)
        if len(data) in (0, nbytes):
            return data
        # One call reads at most 2 GB.
        return data + self.read_at(offset + len(data), nbytes - len(data))

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        if hasattr(self, "_fd"):
            close(self._fd)
