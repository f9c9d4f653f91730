from __future__ import annotations

from typing import Any

from towerpack.dataflow import RemoteDataZMQ
from towerpack.inputs._queue import QueueInput


class ZMQInput(QueueInput):
    """Input source that receives batches over ZMQ from processes that run `send_dataflow_zmq`.

    It is a `QueueInput` whose flow is a `RemoteDataZMQ`.

    Args:
        end_point: Address: `tcp://host:port`, `ipc://path` or `inproc://name`.
        hwm: Number of batches that each sender may send ahead.
        bind: Whether to listen at the address, to which the senders connect. If False, this source
            connects to the address.
        infinite: Whether to start over after the senders' last batch. If False, training ends
            there.
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
