from __future__ import annotations

from typing import Any

from towerpack.dataflow import RemoteDataZMQ
from towerpack.inputs._queue import QueueInput


class ZMQInput(QueueInput):
    """Input source of batches sent by `send_dataflow_zmq`: a `QueueInput` over `RemoteDataZMQ`.

    Args:
        end_point: Address: `tcp://host:port`, `ipc://path` or `inproc://name`.
        hwm: Number of batches that each producer may send ahead.
        bind: Listen at the address, so that producers connect.
        infinite: Start over when the producers' passes end. Otherwise training ends there.
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
