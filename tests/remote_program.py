"""Producers and consumers as processes of their own, for tests that kill them.

remote_program.py send ADDRESS '{"name": "a", ...}'
remote_program.py receive ADDRESS FILE
"""

from __future__ import annotations

import io
import json
import sys
import time
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from towerpack.dataflow import DataFromList, MapData, RemoteDataZMQ, send_dataflow_zmq


def flow(name: str, count: int, nbytes: int = 8, pause_s: float = 0.0) -> MapData:
    """Datapoints (name, number, array full of the number)."""

    def make(dp: tuple[int]) -> tuple[str, int, Any]:
        time.sleep(pause_s)
        return name, dp[0], np.full(nbytes // 8, dp[0])

    return MapData(DataFromList([(i,) for i in range(count)]), make)


def receive(address: str, path: Path) -> None:
    """Write every datapoint with the state behind it; go on from what is there already."""
    data = io.BytesIO(path.read_bytes() if path.exists() else b"")
    states = [state for _, _, state in msgpack.Unpacker(data)]
    ds = RemoteDataZMQ(address, producers=2, hwm=4)
    iterator = ds.iterate(state=states[-1]) if states else ds.iterate(seed=1)
    with path.open("ab") as file:
        for name, number, _ in iterator:
            file.write(msgpack.packb((name, number, iterator.state())))
            file.flush()
            time.sleep(0.002)


if __name__ == "__main__":
    if sys.argv[1] == "send":
        options = json.loads(sys.argv[3])
        made = {key: options.pop(key) for key in ("count", "nbytes", "pause_s") if key in options}
        label = options.pop("label", options.get("name", ""))
        send_dataflow_zmq(flow(label, **made), sys.argv[2], **options)
    else:
        receive(sys.argv[2], Path(sys.argv[3]))
