"""GPUs in processes that prepare data or run environments."""

import os


def hidden_gpus() -> dict[str, str]:
    """Return environment variables that hide GPUs from a worker process.

    Otherwise a framework that the worker imports would occupy the memory of the training's GPU.
    The dict is empty if the user sets TOWERPACK_WORKER_GPUS=1.
    """
    return {} if os.environ.get("TOWERPACK_WORKER_GPUS") == "1" else {"CUDA_VISIBLE_DEVICES": "-1"}
