"""Messages from anybody."""

from __future__ import annotations

import resource
from collections.abc import Sequence

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towerpack._core.errors import FormatError
from towerpack.dataflow.formats._wire import pack_all, pack_frames, take_apart
from towerpack.dataflow.remote._outbox import Outbox, Parcel
from towerpack.dataflow.remote._peer import Peer
from towerpack.dataflow.remote._progress import Progress
from towerpack.dataflow.remote._protocol import (
    Kind,
    Message,
    VersionError,
    header,
    parse,
    unpacked,
    with_facts,
)

SESSION = bytes(range(16))


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_garbage_is_an_error(frames: list[bytes]) -> None:
    with pytest.raises(FormatError):
        parse(frames)


@given(
    head=st.builds(
        lambda kind, rest: b"TPDF\x01" + bytes([kind]) + rest,
        st.integers(0, 15),
        st.binary(min_size=34, max_size=34),
    ),
    frames=st.lists(st.binary(max_size=40), max_size=4),
)
def test_garbage_behind_a_good_beginning_is_an_error_or_harmless(
    head: bytes, frames: list[bytes]
) -> None:
    peer = Peer("a")
    try:
        message = parse([head, *frames])
        for name, kind in (("name", str), ("run", bytes), ("attempt", int), ("exact", bool)):
            message.fact(name, kind)
    except FormatError:
        pass
    else:
        raise AssertionError("these facts are not in it")
    try:
        peer.accept(parse([head, *frames]), 5)
    except FormatError:
        assert peer.received == 0


@given(data=st.data())
def test_a_flipped_bit_is_an_error_or_another_message(data: st.DataObject) -> None:
    frames = pack_frames((list(range(20)), "text", b"x" * 2000))
    good = [header(Kind.DATA, SESSION, 0), b"state", *map(bytes, frames)]
    index = data.draw(st.integers(0, len(good) - 1))
    damaged = bytearray(good[index])
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    peer = Peer("a")
    try:
        peer.accept(parse([*good[:index], bytes(damaged), *good[index + 1 :]]), 5)
    except FormatError:
        assert peer.received == 0 and not peer.inbox


def test_other_versions_are_told_apart() -> None:
    other = bytearray(header(Kind.BEAT))
    other[4] = 2
    with pytest.raises(VersionError, match="version 2"):
        parse([bytes(other)])


def test_numbers_travel_whole() -> None:
    message = parse([header(Kind.ACK, SESSION, 2**63, 2**64 - 1)])
    assert (message.kind, message.session, message.number, message.limit) == (
        Kind.ACK,
        SESSION,
        2**63,
        2**64 - 1,
    )


def hello(**facts: object) -> Message:
    return parse(with_facts(header(Kind.HELLO), facts))


def test_facts_have_types_and_sizes() -> None:
    assert hello(name="a").fact("name", str) == "a"
    for message, kind in (
        (hello(), str),
        (hello(name=b"a"), str),
        (hello(name=True), int),
        (hello(name=1), bool),
        (hello(name="a" * 201), str),
        (hello(name=-1000), int),
    ):
        with pytest.raises(FormatError, match="'name'"):
            message.fact("name", kind, 200)
    with pytest.raises(FormatError, match="no map"):
        parse([header(Kind.HELLO), msgpack.packb([1])]).facts()


def test_lists_that_claim_more_than_there_is_allocate_nothing() -> None:
    claimed = 4_000_000
    bomb = (b"\xdd" + claimed.to_bytes(4, "big")) * 300 + bytes(claimed - 1500)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FormatError, match="msgpack"):
        unpacked(bomb)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        b"\x91",
        b"\x01\x01",
        b"\x91" * 5000 + b"\x01",
        b"\x81\x91\x01\x01",
        b"\xa1\xff",
    ],
)
def test_damaged_msgpack(raw: bytes) -> None:
    with pytest.raises(FormatError):
        unpacked(raw)


def group(number: int, numbers: Sequence[int]) -> list[bytes]:
    parts = [take_apart((n,)) for n in numbers]
    return [header(Kind.GROUP, SESSION, number, len(parts)), b"", pack_all(parts)]


@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_groups_hold_what_they_say(count: int) -> None:
    _, state, packed = group(0, [0, 1, 2])
    peer = Peer("a")
    with pytest.raises(FormatError):
        peer.accept(parse([header(Kind.GROUP, SESSION, 0, count), state, packed]), 9)
    assert peer.received == 0 and not peer.inbox


def test_groups_of_nothing_are_dropped() -> None:
    peer = Peer("a")
    assert peer.accept(parse(group(0, [])), 9) == 0
    assert peer.received == 0


def small(number: int) -> Parcel:
    return Parcel(Kind.DATA, [b""], 30, take_apart((number,)))


def large(number: int) -> Parcel:
    return Parcel(Kind.DATA, [b"", *map(bytes, pack_frames((number,)))], 30)


def test_groups_that_overlap_what_came_give_the_rest() -> None:
    peer = Peer("a")
    assert peer.accept(parse(group(0, range(4))), 10) == 4
    assert peer.accept(parse(group(2, range(2, 6))), 10) == 2
    assert [peer.hand().datapoint for _ in range(6)] == [(n,) for n in range(6)]
    assert peer.accept(parse(group(0, range(6))), 10) == 0
    assert peer.counts.repeated == 1
    assert peer.accept(parse(group(7, range(2))), 10) == 0, "a gap"
    assert peer.accept(parse(group(6, range(6))), 5) == 0, "beyond what was asked for"


def test_no_state_is_lost_in_a_group() -> None:
    outbox, peer = Outbox(SESSION, 0, 9), Peer("a")
    for number in range(6):
        outbox.add(small(number)._replace(frames=[b"state" if number in (0, 2, 3) else b""]))
    counts: list[int] = []
    while found := outbox.message(9):
        counts.append(peer.accept(parse(found[0]), 9))
        outbox.sent(found[1])
    assert counts == [2, 1, 3]
    assert [bool(peer.hand().state) for _ in range(6)] == [True, False, True, True, False, False]


@given(
    room=st.integers(1, 6),
    kinds=st.lists(st.booleans(), min_size=1, max_size=30),
    events=st.lists(
        st.tuples(st.sampled_from(["send", "lose", "ack", "again"]), st.integers(0, 40))
    ),
)
def test_an_outbox_sends_everything_in_order(
    room: int, kinds: list[bool], events: list[tuple[str, int]]
) -> None:
    outbox = Outbox(SESSION, 10, room)
    peer = Peer("a", handed=10, received=10)
    left = list(enumerate(kinds, 10))
    for event, number in [*events, *[("again", 0), ("send", 99)] * 2 * len(kinds)]:
        while left and not outbox.full:
            index, is_small = left.pop(0)
            outbox.add(small(index) if is_small else large(index))
        if event in ("send", "lose") and (found := outbox.message(peer.handed + room)):
            frames, count = found
            outbox.sent(count)
            if event == "send":
                peer.accept(parse(frames), room)
                while peer.inbox:
                    assert peer.hand().datapoint == (peer.handed - 1,)
        elif event == "ack":
            # Also of a time that is past, or by somebody who lies.
            outbox.acknowledge(min(number, peer.received))
        elif event == "again":
            outbox.acknowledge(peer.received)
            outbox.rewind(peer.received)
        assert outbox.begin <= outbox.cursor <= outbox.end
        assert len(outbox) <= room
    assert peer.handed == 10 + len(kinds)


def test_nobody_can_acknowledge_what_was_not_sent() -> None:
    outbox = Outbox(SESSION, 0, 4)
    for number in range(3):
        outbox.add(small(number))
    outbox.acknowledge(2**64 - 1)
    assert len(outbox) == 3
    outbox.rewind(2**64 - 1)
    assert outbox.cursor == 0


def test_progress_is_a_line_that_says_who_waits(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 0.0, 0.4, 1.0, 3.0])
    progress = Progress(True, clock=lambda: next(times))
    progress.show("waiting for the consumer")
    progress.sent(2_000_000, 0.01)
    progress.show("too soon to be read")
    progress.show("sending")
    progress.close()
    lines = capsys.readouterr().err.split("\r")[1:]
    assert lines[0].startswith("0 sent") and lines[0].endswith("waiting for the consumer")
    assert lines[1].split(": ")[0] == "1 sent, 1.0 /s, 2.0 MB/s, average send latency 10.00 ms"
    assert lines[1].rstrip().endswith(": sending") and lines[1].endswith("\n")
    assert len(lines[1].rstrip("\n")) >= len(lines[0]), "nothing is left of what stood there"


def test_progress_is_quiet_where_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Progress()
    progress.sent(1, 1.0)
    progress.show("sending")
    progress.close()
    assert capsys.readouterr() == ("", "")
