"""Inputs from other processes and machines."""

from __future__ import annotations

from typing import Any

from towerpack.dataflow import RemoteDataZMQ
from towerpack.inputs._queue import QueueInput


class ZMQInput(QueueInput):
    """Batches that `send_dataflow_zmq` sends: a `QueueInput` over `RemoteDataZMQ`.

    Args:
        end_point: `tcp://host:port`, `ipc://path` or `inproc://name`.
        hwm: How many batches each producer may be ahead.
        bind: Listen there, so that producers connect.
        infinite: Start over where the producers' passes end; otherwise training ends there.
        options: Further arguments of `RemoteDataZMQ`: `keys`, `producers`, …
    """

    def __init__(
        self,
        end_point: str,
        hwm: int = 50,
        bind: bool = True,
        *,
        infinite: bool = True,
        **options: Any,
    ) -> None:
        flow = RemoteDataZMQ(end_point, hwm=hwm, bind=bind, **options)
        super().__init__(flow, infinite=infinite)
