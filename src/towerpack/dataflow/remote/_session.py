"""What a producer makes for one consumer: the flow from one datapoint on, in parcels."""

from __future__ import annotations

import importlib
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from towerpack._core.errors import DataFlowError, InternalError
from towerpack._core.logs import get_logger
from towerpack._core.randomness import derive_seed
from towerpack.dataflow._datapoints import Datapoint
from towerpack.dataflow._flow import DataFlow
from towerpack.dataflow._iterator import DataIterator
from towerpack.dataflow._stream import ended_early
from towerpack.dataflow.formats._wire import frames_of
from towerpack.dataflow.formats._wire_rows import Bundle
from towerpack.dataflow.formats._wire_tree import Writer
from towerpack.dataflow.remote._outbox import Outbox, Parcel
from towerpack.dataflow.remote._protocol import GROUP_NBYTES, Kind, Message, unpacked

log = get_logger(__name__)

# States go with the data this often, but may not cost more than one part in twenty.
_STATE_EVERY_S: Final = 0.1
_STATE_SHARE: Final = 20
_MOST_STATE: Final = 1 << 25
_MOST_TEXT: Final = 1 << 16


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


@dataclass(slots=True)
class Made:
    """What was put into the outbox at once.

    Attributes:
        ready_s: When the last datapoint was there; before there is one, when it was asked for.
        count: How many there are.
        nbytes: How many bytes they have.
    """

    ready_s: float
    count: int = 0
    nbytes: int = 0


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
        self.outbox = Outbox(order.session, order.number, room)
        # What travels together, and each of it.
        group_nbytes = min(GROUP_NBYTES, order.max_nbytes)
        self._bundle = Bundle(group_nbytes // 4)
        self._enough = group_nbytes - group_nbytes // 4
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

    def produce(self, most: int, may_wait: Callable[[float, float], bool]) -> Made:
        """Put a datapoint into the outbox, or several small ones that travel together.

        Args:
            most: How many at most.
            may_wait: Whether a small one that was asked for and came at these times can wait for
                the next one.
        """
        made = Made(self._clock())
        try:
            self._make(made, most, may_wait)
        except StopIteration:
            self._add_bundle()
            self.over = True
            self.outbox.add(Parcel(Kind.END, []))
        except Exception as error:  # noqa: BLE001 - sent to the consumer, and raised by the producer
            self._add_bundle()
            self.error = error
            self._fail(error)
        return made

    def close(self) -> None:
        """Let the flow's iterator go."""
        if self._iterator is not None:
            self._iterator.close()

    def _running(self) -> Iterator[Datapoint]:
        if self._iterator is None:
            raise InternalError("A session that could not begin was to produce.")
        return self._iterator

    def _make(self, made: Made, most: int, may_wait: Callable[[float, float], bool]) -> None:
        iterator, bundle, clock = self._running(), self._bundle, self._clock
        while made.count < most and bundle.nbytes <= self._enough:
            asked = made.ready_s
            datapoint = next(iterator)
            made.ready_s = clock()
            large = bundle.add(datapoint)
            if large is not None:
                parcel = self._large(large)
                self._add_bundle()
                self.outbox.add(parcel)
                made.count, made.nbytes = made.count + 1, made.nbytes + large.nbytes
                return
            made.count += 1
            if not may_wait(asked, made.ready_s):
                break
        self._add_bundle(self._state())

    def _add_bundle(self, state: bytes = b"") -> None:
        """The small datapoints travel, with the flow's state behind the last of them."""
        bundle = self._bundle
        if bundle:
            frames = [self._keep(bundle.pack()), *([state] if state else [])]
            self.outbox.add(Parcel(Kind.GROUP, frames, len(bundle)))
            bundle.clear()

    def _large(self, parts: Writer) -> Parcel:
        frames = [memoryview(frame).cast("B") for frame in frames_of(parts)]
        longest = max(frame.nbytes for frame in frames)
        if longest > self.order.max_nbytes:
            raise DataFlowError(
                f"A component of {longest:,} bytes is too large for the consumer.",
                expected=f"at most {self.order.max_nbytes:,} bytes",
                fix="RemoteDataZMQ(..., max_nbytes=...)",
            )
        # The flow may use the memory again.
        return Parcel(Kind.DATA, [self._state(), *map(self._keep, frames)])

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

    def _fail(self, error: Exception) -> None:
        self.over = True
        log.error("%s failed at datapoint %d: %s", self.order.name, self.outbox.end, error)
        facts = {
            "type": type(error).__name__,
            "what": str(error)[:_MOST_TEXT],
            "traceback": "".join(traceback.format_exception(error))[-_MOST_TEXT:],
        }
        msgpack: Any = importlib.import_module("msgpack")
        raw = msgpack.packb(facts, unicode_errors="replace")
        self.outbox.add(Parcel(Kind.ERROR, [raw]))


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
        raise ended_early(order.name, order.base + skipped, order.number)
    return iterator
