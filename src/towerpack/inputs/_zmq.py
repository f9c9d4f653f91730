from __future__ import annotations

from typing import Any

from towerpack.dataflow import RemoteDataZMQ
from towerpack.inputs._queue import QueueInput


class ZMQInput(QueueInput):
    """Input source of batches from `send_dataflow_zmq`: a `QueueInput` of a `RemoteDataZMQ`.

    Args:
        end_point: Address: `tcp://host:port`, `ipc://path` or `inproc://name`.
        hwm: Number of batches that each sender may send ahead.
        bind: Whether to listen at the address for senders, instead of connecting to it.
        infinite: Whether to start over after the senders' last batch. If not, training ends.
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
