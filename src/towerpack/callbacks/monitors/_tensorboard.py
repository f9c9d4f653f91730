"""Event files for TensorBoard, written with the `tensorboard` package and without TensorFlow."""

from __future__ import annotations

import io
import itertools
import os
import platform
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import numpy as np

from towerpack._core.errors import MissingExtraError
from towerpack._core.extras import require
from towerpack._core.files import append_whole, open_plain
from towerpack._core.logs import get_logger
from towerpack._core.pictures import png
from towerpack.callbacks.monitors._base import Monitor, Scalar

_BINS: Final = 30
_FLUSH_S: Final = 10.0
_NUMBERS: Final = itertools.count()
_logger = get_logger(__name__)


class TensorBoardMonitor(Monitor):
    """Write scalars, images, histograms, settings and the graph for `tensorboard --logdir`.

    If the `tensorboard` package is missing, a warning is logged and nothing is written. After a
    resume, TensorBoard hides the later steps of earlier starts once a step is written again.

    Args:
        logdir: Directory of event files, such as the run's `events`; created if absent.
        clock: Returns seconds since 1970.
    """

    def __init__(
        self, logdir: str | os.PathLike[str], *, clock: Callable[[], float] = time.time
    ) -> None:
        self.logdir = Path(logdir)
        self._clock = clock
        self._file: _EventFile | None = None
        self._written_at = clock()
        self.active = True
        try:
            require("tensorboard", extra="tensorboard", needed_for="TensorBoardMonitor")
        except MissingExtraError as error:
            self.active = False
            _logger.warning("No TensorBoard events are written: %s", error)

    def put_scalar(self, name: str, value: float, step: int) -> None:
        if self.active:
            self._put(name, step, "scalar", np.asarray(value, np.float32))

    def put_image(self, name: str, image: np.ndarray, step: int) -> None:
        if self.active:
            size = (str(image.shape[1]).encode(), str(image.shape[0]).encode())
            self._put(name, step, "image", np.array([*size, png(image)], dtype=object))

    def put_histogram(self, name: str, values: np.ndarray, step: int) -> None:
        if self.active:
            self._put(name, step, "histogram", _bins(values))

    def put_settings(self, settings: Mapping[str, bool | int | float | str]) -> None:
        if self.active:
            summary = _part("plugins.hparams.summary_v2").hparams_pb(dict(settings))
            file = self._open()
            file.write(summary=file.summary.FromString(summary.SerializeToString()))

    def put_graph(self, graph: Callable[[], bytes]) -> None:
        if self.active:
            self._open().write(graph_def=graph())

    def resume(self, step: int) -> Iterable[Scalar]:
        if self.active:
            self._open().write(step=step + 1, session_log={"status": "START"})
        return ()

    def flush(self) -> None:
        if self._file is not None:
            self._file.flush()
            self._written_at = self._clock()

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def __repr__(self) -> str:
        return f"TensorBoardMonitor({str(self.logdir)!r})"

    def _open(self) -> _EventFile:
        if self._file is None:
            self._file = _EventFile(self.logdir, self._clock)
        return self._file

    def _put(self, name: str, step: int, plugin: str, value: np.ndarray) -> None:
        file = self._open()
        if self._clock() - self._written_at > _FLUSH_S:
            self.flush()  # Before the new value: if it fails, the value is put again.
        summary = file.summary()
        entry = summary.value.add(tag=name, metadata=file.metadata[plugin])
        entry.tensor.CopyFrom(file.tensor(value))
        file.write(step=step, summary=summary)


class _EventFile:
    def __init__(self, logdir: Path, clock: Callable[[], float]) -> None:
        self._event: Any = _part("compat.proto.event_pb2").Event
        self.summary: Any = _part("compat.proto.summary_pb2").Summary
        self.tensor: Any = _part("util.tensor_util").make_tensor_proto
        self.metadata: dict[str, Any] = {
            plugin: _part(f"plugins.{plugin}.metadata").create_summary_metadata("", "")
            for plugin in ("scalar", "image", "histogram")
        }
        self._clock = clock
        logdir.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        # TensorBoard reads a directory's files in the order of their names.
        name = f"events.out.tfevents.{int(clock()):010d}.{platform.node()}.{os.getpid()}"
        self._fd = open_plain(logdir / f"{name}.{next(_NUMBERS):06d}", flags)
        self._buffer = io.BytesIO()
        self._records: Any = _part("summary.writer.record_writer").RecordWriter(self._buffer)
        self.write(file_version="brain.Event:2")

    def write(self, **fields: Any) -> None:
        event = self._event(wall_time=self._clock(), **fields)
        self._records.write(event.SerializeToString())

    def flush(self) -> None:
        append_whole(self._fd, self._buffer.getvalue())
        self._buffer.seek(0)
        self._buffer.truncate()

    def close(self) -> None:
        try:
            self.flush()
        finally:
            os.close(self._fd)


def _part(name: str) -> ModuleType:
    return require(f"tensorboard.{name}", extra="tensorboard", needed_for="TensorBoardMonitor")


def _bins(values: np.ndarray) -> np.ndarray:
    """Return rows (left edge, right edge, count) of a histogram, as TensorBoard's plugin needs."""
    finite = values[np.isfinite(values)]
    if finite.size == 0:
        return np.zeros((0, 3))
    counts, edges = np.histogram(finite, bins=_BINS)
    return np.stack([edges[:-1], edges[1:], counts.astype(np.float64)], axis=1)
