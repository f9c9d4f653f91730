"""Sending a flow to another process or machine."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from collections.abc import Generator
from types import FrameType

from towerpack._core.errors import ConfigError
from towerpack.dataflow._flow import DataFlow, check_seed
from towerpack.dataflow.remote._address import Keys
from towerpack.dataflow.remote._post import Post
from towerpack.dataflow.remote._producer import Producer
from towerpack.dataflow.remote._progress import Progress
from towerpack.dataflow.stages._repeat import RepeatedData

# Consumers send small messages only.
_MOST_FROM_CONSUMER = 1 << 26


def send_dataflow_zmq(
    df: DataFlow,
    addr: str,
    hwm: int = 50,
    format: str | None = None,
    bind: bool = False,
    *,
    passes: int | None = None,
    stay: bool = False,
    name: str | None = None,
    seed: int | None = None,
    keys: Keys = None,
    progress: bool | None = None,
) -> None:
    """Send the datapoints of a flow to a `RemoteDataZMQ`, for ever or until the passes are over.

    The consumer says where to begin. A producer that was killed and is started again with the same
    name and flow therefore goes on where it was, without losing or repeating a datapoint. While no
    consumer is there, it waits. On SIGTERM and Ctrl-C it closes everything and ends.

    Args:
        df: What to send. Each process with a part of its own is best; processes with the same
            random flow send different orders of it.
        addr: Where the consumer listens; with `bind` where to listen.
        hwm: Datapoints to keep until they are acknowledged; the consumer's `hwm` counts too.
        format: Nothing but None: there is one format, which holds no pickle.
        bind: Listen, and let the consumer connect; one at a time.
        passes: How many passes of `df` make a pass of the consumer's; by default one never ends.
        stay: Wait for the consumer's next pass when one is over, and when the flow has failed.
            Otherwise this returns when all is sent and acknowledged, and raises what `df` raised.
        name: By which the consumer knows this producer. By default the host's name, with a number
            behind it if there are several: a producer that comes takes over from one with the same
            flow that is gone.
        seed: What the randomness of `df` is a function of; by default it depends on the consumer's
            seed and the name.
        keys: The folder of `generate_keys`, or one secret file in it. Needed for addresses that
            other machines reach.
        progress: Show a line on stderr; by default if that is a terminal.

    Raises:
        ConfigError: The address, keys or name do not do; the name is another producer's.
    """
    if format is not None:
        raise ConfigError(
            f"There is no format={format!r}.",
            expected="None: datapoints travel as raw arrays, and never as pickles",
            fix="leave it out; the consumer is RemoteDataZMQ",
        )
    if hwm < 1:
        raise ConfigError(f"hwm={hwm} would let nothing through.", expected="1 or more")
    if name is not None and not 0 < len(name) <= 200:
        raise ConfigError("The name of a producer has 1 to 200 characters.", got=repr(name)[:250])
    flow = RepeatedData(df, -1 if passes is None else passes)
    line = Progress(progress)
    with _terminated_as_exit():
        post = Post([addr], bind=bind, keys=keys, hwm=hwm, max_nbytes=_MOST_FROM_CONSUMER)
        try:
            Producer(
                flow,
                post,
                name=socket.gethostname()[:100] if name is None else name,
                exact=name is not None,
                hwm=hwm,
                seed=None if seed is None else check_seed(seed),
                stay=stay,
                progress=line,
            ).run()
        finally:
            line.close()
            post.close()


@contextlib.contextmanager
def _terminated_as_exit() -> Generator[None]:
    """Let SIGTERM unwind the stack, where the program has no plan of its own for it."""
    mine = threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
