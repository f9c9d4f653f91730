"""Jobs that run one after another in a thread, and whose failures are raised in the caller's."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Background:
    """Runs jobs in order, in a thread that lives only while there are any.

    The thread is no daemon: a program that ends waits for its jobs. After a failure the jobs behind
    it are dropped, and `report` raises it, once.

    Args:
        name: The thread's.
        explain: Makes the error to report out of the one that a job raised; told in the thread.
    """

    def __init__(self, name: str, explain: Callable[[BaseException], Exception]) -> None:
        self._name = name
        self._explain = explain
        self._lock = threading.Lock()
        self._jobs: list[Callable[[], object]] = []
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    @property
    def busy(self) -> bool:
        """Whether jobs are running or waiting."""
        with self._lock:
            return self._thread is not None

    def start(self, job: Callable[[], object]) -> None:
        """Run a job after those before it. Call `report` first."""
        with self._lock:
            self._jobs.append(job)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name)
                self._thread.start()

    def wait(self) -> None:
        """Return when no job is left, whether or not one failed."""
        with self._lock:
            thread = self._thread
        if thread is not None:
            thread.join()

    def report(self) -> None:
        """Raise the failure since the last report, if there is one."""
        with self._lock:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._thread = None
                    return
                job = self._jobs.pop(0)
            try:
                job()
            except BaseException as cause:  # noqa: BLE001 - it is raised by `report`
                error = self._explain(cause)
                if error is not cause:
                    error.__cause__ = cause
                with self._lock:
                    self._error = error
                    self._jobs.clear()
