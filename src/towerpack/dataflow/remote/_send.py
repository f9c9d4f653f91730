from __future__ import annotations

import math
import os
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from typing import Any, Final

from towerpack._core.errors import ConfigError
from towerpack._core.extras import require
from towerpack._core.logs import get_logger
from towerpack._core.randomness import derive_seed
from towerpack.dataflow._flow import DataFlow, check_seed
from towerpack.dataflow.arguments import integer_of
from towerpack.dataflow.datapoints import Datapoint, values_of
from towerpack.dataflow.formats._wire import pack_frames, pack_list, pack_values
from towerpack.dataflow.remote._keys import Keys
from towerpack.dataflow.remote._protocol import LONGEST_NAME, REPORT_S, Kind, header, socket_at
from towerpack.dataflow.stages._repeat import RepeatedData

log = get_logger(__name__)

# Small datapoints that follow each other quickly are sent in groups.
_SMALL: Final = 1 << 15
_GROUP: Final = 128
_GROUP_BYTES: Final = 1 << 17
_QUICKLY_S: Final = 0.002
_SHOW_S: Final = 0.5
_ERROR_S: Final = 10.0  # limit for the consumer to acknowledge an error
_END_AGAIN_S: Final = 1.0
_LONGEST_TEXT: Final = 1 << 16


def send_dataflow_zmq(
    df: DataFlow,
    addr: str,
    hwm: int = 50,
    format: str | None = None,
    bind: bool = False,
    *,
    passes: int | None = None,
    name: str | None = None,
    seed: int | None = None,
    keys: Keys = None,
    progress: bool | None = None,
) -> None:
    """Send the datapoints of a flow to a `RemoteDataZMQ`.

    The function waits while there is no consumer. Messages in transit are lost when a process ends.
    A producer that is restarted begins its flow again.

    Args:
        df: Flow to send. Each producer should have its own part of the data. Producers of the same
            random flow send different orders.
        addr: Address of the consumer, or with `bind` the address at which to listen.
        hwm: Maximum number of waiting datapoints on this side.
        format: Must be `None`; accepted for programs written for Tensorpack.
        bind: Whether to listen, so that the consumer connects.
        passes: Number of passes to send before returning; by default unlimited.
        name: Name of this producer; by default host and process id.
        seed: Seed of `df`, combined with the name; by default a random seed.
        keys: Folder created by `generate_keys`, or one secret file in it. Required for addresses
            that other machines can reach.
        progress: Whether to show progress on stderr; by default if it is a terminal.

    Raises:
        ConfigError: An argument is invalid.
        DataFlowError: `df` raised. The consumer receives the error too.
    """
    if format is not None:
        raise ConfigError(f"format must be None, got {format!r}.", fix="leave out format=")
    hwm = integer_of(hwm, "hwm", 1)
    name = f"{socket.gethostname()[:100]}-{os.getpid()}" if name is None else name
    if not 0 < len(name.encode()) <= LONGEST_NAME:
        what = f"name must have 1 to {LONGEST_NAME} bytes, got {name!r:.250}."
        raise ConfigError(what)
    flow = RepeatedData(df, -1 if passes is None else passes)
    seed = None if seed is None else derive_seed(check_seed(seed), name)
    shown = sys.stderr.isatty() if progress is None else progress
    group = max(1, min(_GROUP, hwm // 4))
    with socket_at("DEALER", addr, bind=bind, keys=keys, hwm=-(-hwm // group)) as link:
        sender = _Sender(link, addr, name, group, shown)
        try:
            for datapoint in flow.iterate(seed=seed):
                sender.add(datapoint)
            sender.flush()
        except Exception as error:
            sender.flush()
            log.error("%s failed after %d datapoints: %s", name, sender.number, error)
            texts = type(error).__name__, str(error), traceback.format_exc()
            frames = [text[-_LONGEST_TEXT:].encode(errors="replace") for text in texts]
            sender.end(Kind.ERROR, frames, _ERROR_S)
            raise
        sender.end(Kind.END, [], math.inf)


class _Sender:
    def __init__(self, link: Any, address: str, name: str, group: int, shown: bool) -> None:
        self._zmq: Any = require("zmq", extra="remote", needed_for="Remote data")
        self._link, self._address, self._group, self._shown = link, address, group, shown
        self._name, self._run = name.encode(), os.urandom(8)
        self._waiting: list[bytes] = []
        self._quick = 0
        self._added_s = self._waited_s = 0.0
        self._started = self._drawn = time.monotonic()
        self.number = 0

    def add(self, datapoint: Datapoint) -> None:
        now = time.monotonic()
        self._quick = self._quick + 1 if now - self._added_s < _QUICKLY_S else 0
        self._added_s = now
        if self._group == 1 or _size(datapoint) > _SMALL:
            self.flush()
            self._send(Kind.DATA, pack_frames([datapoint]), 1)
            return
        # Packed now, since the flow may reuse its memory.
        values = pack_values(datapoint)
        self._waiting.append(values)
        count = len(self._waiting)
        # A slow flow would delay a group for too long.
        if self._quick < _GROUP or count >= self._group or count * len(values) >= _GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._send(Kind.DATA, [pack_list(self._waiting)], len(self._waiting))
            self._waiting.clear()

    def end(self, kind: Kind, frames: Sequence[Any], limit_s: float) -> None:
        """Send the end repeatedly until the consumer acknowledges it or the time limit is over."""
        # ZeroMQ loses unread messages when a connection is closed.
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            self._send(kind, frames)
            if self._link.poll(1000 * _END_AGAIN_S):
                return

    def _send(self, kind: Kind, frames: Sequence[Any], count: int = 0) -> None:
        message = [header(kind, self._run, self.number, self._name), *frames]
        try:
            # `send_multipart` copies, since the flow may reuse its memory.
            self._link.send_multipart(message, self._zmq.NOBLOCK)
        except self._zmq.Again:
            self._wait()
            self._link.send_multipart(message)
        self.number += count
        if self._shown:
            self._show(last=count == 0)

    def _wait(self) -> None:
        begin = time.monotonic()
        while not self._link.poll(1000 * REPORT_S, self._zmq.POLLOUT):
            log.warning(
                "No data were taken at %s for %.0f s. Check that the consumer runs, and that "
                "both sides have matching keys or none.",
                self._address,
                time.monotonic() - begin,
            )
        self._waited_s += time.monotonic() - begin

    def _show(self, last: bool) -> None:
        now = time.monotonic()
        if now - self._drawn < _SHOW_S and not last:
            return
        self._drawn, seconds = now, max(now - self._started, 1e-3)
        line = f"\r{self.number:,} sent, {self.number / seconds:,.1f} /s, "
        line += f"{min(1.0, self._waited_s / seconds):4.0%} of the time waiting"
        sys.stderr.write(line + ("\n" if last else ""))
        sys.stderr.flush()


def _size(datapoint: Datapoint) -> int:
    values = values_of(datapoint)
    return sum(len(v) if isinstance(v, str | bytes) else getattr(v, "nbytes", 0) for v in values)
