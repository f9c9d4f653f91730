"""What a producer makes for one consumer: the flow from one datapoint on, in parcels."""

from __future__ import annotations

import importlib
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from towerpack._core.errors import DataFlowError, InternalError, StateError
from towerpack._core.logs import get_logger
from towerpack._core.randomness import derive_seed
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._iterator import DataIterator
from towerpack.dataflow.formats._wire import frames_of, take_apart
from towerpack.dataflow.remote._outbox import GROUP_BYTES, Outbox, Parcel
from towerpack.dataflow.remote._protocol import Kind, Message, unpacked

log = get_logger(__name__)

# States go with the data this often, but may not cost more than one part in twenty.
_STATE_EVERY_S: Final = 0.1
_STATE_SHARE: Final = 20
_MOST_STATE: Final = 1 << 25
_MOST_TEXT: Final = 1 << 16
# Datapoints up to this size may travel together.
_SMALL_BYTES: Final = 1 << 14


@dataclass(frozen=True)
class Order:
    """What a consumer has asked for.

    Attributes:
        session: Its name for all that follows.
        consumer: Who asks.
        name: What it calls the producer.
        number: The datapoint to begin at.
        base: A number of datapoints, at most `number`.
        state: The flow's state behind them; empty: they are to be read from the beginning.
        epoch: Which pass.
        seed: From which the producer derives its own.
        max_nbytes: What a frame may have.
    """

    session: bytes
    consumer: bytes
    name: str
    number: int
    base: int
    state: bytes
    epoch: int
    seed: int
    max_nbytes: int

    @staticmethod
    def read(message: Message) -> Order:
        """From a START message.

        Raises:
            FormatError: It does not say all that.
        """
        return Order(
            session=message.session,
            consumer=message.fact("consumer", bytes, 16),
            name=message.fact("name", str),
            number=message.number,
            base=message.fact("base", int, 1 << 62),
            state=message.fact("state", bytes, _MOST_STATE),
            epoch=message.fact("epoch", int, 1 << 62),
            seed=message.fact("seed", int, 1 << 63),
            max_nbytes=message.fact("max_nbytes", int, 1 << 62),
        )


class Session:
    """One stream to one consumer.

    Args:
        flow: A pass of it is the stream.
        order: Where to begin.
        room: How many parcels to keep.
        seed: Of the flow; by default it depends on the order.
        keep: Copies large memory to where it can be sent from.
        clock: Seconds that pass.

    Attributes:
        outbox: What was made and is not acknowledged.
        over: The end, or an error, is in the outbox.
        error: What the flow raised; `None` if it ended, or could not even begin where the consumer
            wanted it to, which is the consumer's affair.
        opened: Whether it could begin.
    """

    def __init__(
        self,
        flow: DataFlow,
        order: Order,
        *,
        room: int,
        seed: int | None,
        keep: Callable[[Any], Any],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.order = order
        self.outbox = Outbox(order.session, order.number, room, min(GROUP_BYTES, order.max_nbytes))
        self._small = min(_SMALL_BYTES, order.max_nbytes)
        self.over = False
        self.error: Exception | None = None
        self.opened = False
        self._keep = keep
        self._clock = clock
        self._state_due = 0.0
        self._iterator: DataIterator | None = None
        try:
            self._iterator = _begin(flow, order, seed)
            self.opened = True
        except Exception as error:  # noqa: BLE001 - the consumer asked for it, and is told
            self._fail(error)

    def produce(self) -> tuple[Parcel, float]:
        """Make one parcel, and say when its datapoint was there."""
        ready = self._clock()
        try:
            datapoint = next(self._running())
            ready = self._clock()
            parcel = self._packed(datapoint)
        except StopIteration:
            self.over = True
            parcel = Parcel(Kind.END, [])
            self.outbox.add(parcel)
        except Exception as error:  # noqa: BLE001 - sent to the consumer, and raised by the producer
            self.error = error
            parcel = self._fail(error)
        else:
            self.outbox.add(parcel)
        return parcel, ready

    def close(self) -> None:
        """Let the flow's iterator go."""
        if self._iterator is not None:
            self._iterator.close()

    def _running(self) -> Iterator[Datapoint]:
        if self._iterator is None:
            raise InternalError("A session that could not begin was to produce.")
        return self._iterator

    def _packed(self, datapoint: Datapoint) -> Parcel:
        parts = take_apart(datapoint)
        state = self._state()
        nbytes = parts.nbytes
        if nbytes <= self._small:
            parts.keep()
            return Parcel(Kind.DATA, [state], nbytes, parts)
        frames = [memoryview(frame).cast("B") for frame in frames_of(parts)]
        longest = max(frame.nbytes for frame in frames)
        if longest > self.order.max_nbytes:
            raise DataFlowError(
                f"A component of {longest:,} bytes is too large for the consumer.",
                expected=f"at most {self.order.max_nbytes:,} bytes",
                fix="RemoteDataZMQ(..., max_nbytes=...)",
            )
        # The flow may use the memory again.
        return Parcel(Kind.DATA, [state, *map(self._keep, frames)], nbytes)

    def _state(self) -> bytes:
        """The flow's state behind the datapoint just produced, every now and then."""
        begin = self._clock()
        if begin < self._state_due or self._iterator is None:
            return b""
        msgpack: Any = importlib.import_module("msgpack")
        state = msgpack.packb(self._iterator.state())
        end = self._clock()
        self._state_due = end + max(_STATE_EVERY_S, _STATE_SHARE * (end - begin))
        return state if len(state) <= min(_MOST_STATE, self.order.max_nbytes) else b""

    def _fail(self, error: Exception) -> Parcel:
        self.over = True
        log.error("%s failed at datapoint %d: %s", self.order.name, self.outbox.end, error)
        facts = {
            "type": type(error).__name__,
            "what": str(error)[:_MOST_TEXT],
            "traceback": "".join(traceback.format_exception(error))[-_MOST_TEXT:],
        }
        msgpack: Any = importlib.import_module("msgpack")
        parcel = Parcel(Kind.ERROR, [msgpack.packb(facts, unicode_errors="replace")])
        self.outbox.add(parcel)
        return parcel


def _begin(flow: DataFlow, order: Order, seed: int | None) -> DataIterator:
    """The flow's iterator before datapoint `number` of the stream."""
    if order.state:
        iterator = flow.iterate(state=unpacked(order.state))
    else:
        derived = derive_seed(order.seed, order.name) if seed is None else seed
        iterator = flow.iterate(epoch=order.epoch, seed=derived)
    wanted = order.number - order.base
    skipped = sum(1 for _ in islice(iterator, wanted))
    if skipped != wanted:
        raise StateError(
            f"{order.name} ended before the place where it is to continue.",
            got=f"{order.base + skipped} datapoints",
            expected=f"at least {order.number}",
            fix="the data differ from those that the state was taken from",
        )
    return iterator
