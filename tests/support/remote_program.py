"""A producer as a process of its own: remote_program.py ADDRESS '{"name": "a", "count": 9, …}'."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from towerpack.dataflow import DataFromList, MapData, send_dataflow_zmq


def flow(name: str, count: int, nbytes: int = 8, pause_s: float = 0.0) -> MapData:
    """Datapoints (name, number, array full of the number)."""

    def make(dp: tuple[int]) -> tuple[str, int, Any]:
        time.sleep(pause_s)
        return name, dp[0], np.full(nbytes // 8, dp[0])

    return MapData(DataFromList([(i,) for i in range(count)], shuffle=False), make)


if __name__ == "__main__":
    options = json.loads(sys.argv[2])
    made = {key: options.pop(key) for key in ("count", "nbytes", "pause_s") if key in options}
    send_dataflow_zmq(flow(options["name"], **made), sys.argv[1], **options)
