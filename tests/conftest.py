"""What every test runs under."""

from __future__ import annotations

import gc
import os
import signal

# Read by TensorFlow and Keras when they are imported, which a test or its subprocess does later.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("MPLBACKEND", "agg")
# By default this depends on the CPU (AVX-512), and on it what works: NCHW, and relu(NaN) == 0.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

import pytest
from hypothesis import HealthCheck, settings

from own_threads import forget_threads
from scaling import SCALE

# A shell ignores it for what it starts in the background, and everything below inherits that; the
# tests of Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

gc.disable()  # until the tests begin

_COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("dev", **_COMMON)
settings.register_profile("ci", **_COMMON, max_examples=50, derandomize=True, print_blob=True)
settings.register_profile("full", **_COMMON, max_examples=1000)
settings.load_profile("full" if SCALE == 1 else "ci" if os.environ.get("CI") else "dev")


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """Bytes by their argument's name: some hold a time, by which two processes' names differ."""
    return argname if isinstance(val, bytes) else None


def pytest_collection_finish() -> None:
    # Full collections, through all that TensorFlow and Keras have made, were 5 % of all seconds.
    gc.freeze()
    gc.set_threshold(700, 10, 100)
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    forget_threads()
    if item.get_closest_marker("gpu") is not None:
        import tensorflow as tf

        if not tf.config.list_physical_devices("GPU"):
            pytest.skip("no GPU on this machine")
