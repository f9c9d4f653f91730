"""Sending a flow to another process or machine."""

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

# Small datapoints that come quickly travel together.
_SMALL: Final = 1 << 15
_GROUP: Final = 128
_GROUP_BYTES: Final = 1 << 17
_QUICKLY_S: Final = 0.002
_SHOW_S: Final = 0.5
_ERROR_S: Final = 10.0  # for a consumer to hear of it
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
    """Send the datapoints of a flow to a `RemoteDataZMQ`, for ever or until the passes are over.

    While no consumer is there, it waits. What is on its way when a process ends is lost, and a
    producer that is started again begins its flow anew.

    Args:
        df: What to send. Each process with a part of its own is best; processes with the same
            random flow send different orders of it.
        addr: Where the consumer listens; with `bind` where to listen.
        hwm: Datapoints that may wait on this side.
        format: Nothing but None: there is one format, which holds no pickle.
        bind: Listen, and let the consumer connect.
        passes: Passes of `df`, after which this returns, when the consumer's side has taken all; by
            default it never ends.
        name: By which the consumer knows this producer; by default host and process.
        seed: With the name, what the randomness of `df` is a function of; by default a new one.
        keys: The folder of `generate_keys`, or one secret file in it. Needed for addresses that
            other machines reach.
        progress: Show a line on stderr; by default if that is a terminal.

    Raises:
        ConfigError: The address, keys or name do not do.
        DataFlowError: What `df` raised, which the consumer is told, too.
    """
    if format is not None:
        raise ConfigError(f"There is no format={format!r}.", expected="None", fix="leave it out")
    hwm = integer_of(hwm, "hwm", 1)
    name = f"{socket.gethostname()[:100]}-{os.getpid()}" if name is None else name
    if not 0 < len(name.encode()) <= LONGEST_NAME:
        what = f"The name of a producer has 1 to {LONGEST_NAME} bytes."
        raise ConfigError(what, got=repr(name)[:250])
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
            told = type(error).__name__, str(error), traceback.format_exc()
            frames = [text[-_LONGEST_TEXT:].encode(errors="replace") for text in told]
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
        self._came_s = self._waited_s = 0.0
        self._begun = self._drawn = time.monotonic()
        self.number = 0

    def add(self, datapoint: Datapoint) -> None:
        """Send it, at once or with those that come after it."""
        now = time.monotonic()
        self._quick = self._quick + 1 if now - self._came_s < _QUICKLY_S else 0
        self._came_s = now
        if self._group == 1 or _size(datapoint) > _SMALL:
            self.flush()
            self._send(Kind.DATA, pack_frames([datapoint]), 1)
            return
        # Packed now, since the flow may use its memory again.
        values = pack_values(datapoint)
        self._waiting.append(values)
        count = len(self._waiting)
        # A flow that pauses between datapoints would hold them back.
        if self._quick < _GROUP or count >= self._group or count * len(values) >= _GROUP_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._waiting:
            self._send(Kind.DATA, [pack_list(self._waiting)], len(self._waiting))
            self._waiting.clear()

    def end(self, kind: Kind, frames: Sequence[Any], limit_s: float) -> None:
        """Say that nothing follows, until the consumer has answered.

        ZeroMQ loses unread messages when a connection is closed.
        """
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            self._send(kind, frames)
            if self._link.poll(1000 * _END_AGAIN_S):
                return

    def _send(self, kind: Kind, frames: Sequence[Any], count: int = 0) -> None:
        message = [header(kind, self._run, self.number, self._name), *frames]
        try:
            # A copy, since the flow may use its memory again.
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
                "Nobody has taken data at %s for %.0f s: see whether the consumer runs, and "
                "whether both sides have keys that fit, or none.",
                self._address,
                time.monotonic() - begin,
            )
        self._waited_s += time.monotonic() - begin

    def _show(self, last: bool) -> None:
        now = time.monotonic()
        if now - self._drawn < _SHOW_S and not last:
            return
        self._drawn, seconds = now, max(now - self._begun, 1e-3)
        line = f"\r{self.number:,} sent, {self.number / seconds:,.1f} /s, "
        line += f"{min(1.0, self._waited_s / seconds):4.0%} of the time waiting"
        sys.stderr.write(line + ("\n" if last else ""))
        sys.stderr.flush()


def _size(datapoint: Datapoint) -> int:
    values = values_of(datapoint)
    return sum(len(v) if isinstance(v, str | bytes) else getattr(v, "nbytes", 0) for v in values)
