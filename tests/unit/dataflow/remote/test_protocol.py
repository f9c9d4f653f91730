"""Messages from anybody."""

from __future__ import annotations

import resource
from collections.abc import Sequence

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from towerpack._core.errors import FormatError
from towerpack.dataflow.formats import pack, pack_frames
from towerpack.dataflow.formats._wire_rows import Bundle
from towerpack.dataflow.remote._outbox import Outbox, Parcel
from towerpack.dataflow.remote._peer import Peer
from towerpack.dataflow.remote._progress import Progress
from towerpack.dataflow.remote._protocol import (
    VERSION,
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
    other[4] = VERSION + 1
    with pytest.raises(VersionError, match=f"version {VERSION + 1}"):
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


def bundle(numbers: Sequence[int]) -> bytes:
    bundle = Bundle(1000)
    for number in numbers:
        assert bundle.add((number,)) is None
    return bundle.pack()


def group(number: int, numbers: Sequence[int]) -> list[bytes]:
    return [header(Kind.GROUP, SESSION, number, len(numbers)), bundle(numbers)]


@pytest.mark.parametrize("count", [1, 2, 4, 5])
def test_groups_hold_what_they_say(count: int) -> None:
    _, packed = group(0, [0, 1, 2])
    peer = Peer("a")
    with pytest.raises(FormatError):
        peer.accept(parse([header(Kind.GROUP, SESSION, 0, count), packed]), 9)
    assert peer.received == 0 and not peer.inbox


def test_groups_of_nothing_are_dropped() -> None:
    peer = Peer("a")
    assert peer.accept(parse(group(0, [])), 9) == 0
    assert peer.received == 0


def test_groups_are_not_longer_than_they_need_be() -> None:
    peer = Peer("a")
    message = [header(Kind.GROUP, SESSION, 0, 1), pack((b"x" * (1 << 17),))]
    with pytest.raises(FormatError, match="too large"):
        peer.accept(parse(message), 9)
    assert peer.received == 0


def small(*numbers: int) -> Parcel:
    return Parcel(Kind.GROUP, [bundle(numbers)], len(numbers))


def large(number: int) -> Parcel:
    return Parcel(Kind.DATA, [b"", *map(bytes, pack_frames((number,)))])


def test_groups_that_overlap_what_came_give_the_rest() -> None:
    peer = Peer("a")
    assert peer.accept(parse(group(0, range(4))), 10) == 4
    assert peer.accept(parse(group(2, range(2, 6))), 10) == 2
    assert [peer.hand() for _ in range(6)] == [(n,) for n in range(6)]
    assert peer.accept(parse(group(0, range(6))), 10) == 0
    assert peer.counts.repeated == 1
    assert peer.accept(parse(group(7, range(2))), 10) == 0, "a gap"
    assert peer.accept(parse(group(6, range(6))), 5) == 0, "beyond what was asked for"


def test_the_state_is_that_behind_the_last_of_a_group() -> None:
    peer = Peer("a")
    assert peer.accept(parse([*group(0, range(4)), b"state"]), 10) == 4
    # Also if the beginning came before; and a group without one changes nothing.
    assert peer.accept(parse([*group(2, range(2, 6)), b"later"]), 10) == 2
    assert peer.accept(parse(group(6, range(6, 8))), 10) == 2
    bases = [(peer.hand(), peer.base, peer.state)[1:] for _ in range(8)]
    assert bases == [(0, b"")] * 3 + [(4, b"state")] * 2 + [(6, b"later")] * 3


@given(
    room=st.integers(1, 6),
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=30),
    events=st.lists(
        st.tuples(st.sampled_from(["send", "lose", "ack", "again"]), st.integers(0, 40))
    ),
)
def test_an_outbox_sends_everything_in_order(
    room: int, sizes: list[int], events: list[tuple[str, int]]
) -> None:
    outbox = Outbox(SESSION, 10, room)
    peer = Peer("a", handed=10, received=10)
    left = [min(size, room) for size in sizes]
    for event, number in [*events, *[("again", 0), ("send", 99)] * 2 * len(sizes)]:
        while left and outbox.room >= max(1, left[0]):
            size, end = left.pop(0), outbox.end
            outbox.add(small(*range(end, end + size)) if size else large(end))
        if event in ("send", "lose") and (frames := outbox.message()):
            outbox.sent()
            if event == "send":
                peer.accept(parse(frames), 2 * room)
                while peer.inbox:
                    assert peer.hand() == (peer.handed - 1,)
        elif event == "ack":
            # Also of a time that is past, or by somebody who lies.
            outbox.acknowledge(min(number, peer.received))
        elif event == "again":
            outbox.acknowledge(peer.received)
            outbox.rewind(peer.received)
        assert outbox.begin <= outbox.cursor <= outbox.end
        assert outbox.begin <= max(10, peer.received)
        assert len(outbox) <= room
    assert peer.handed == 10 + sum(max(1, min(size, room)) for size in sizes)


def test_nobody_can_acknowledge_what_was_not_sent() -> None:
    outbox = Outbox(SESSION, 0, 4)
    for number in range(3):
        outbox.add(small(number))
    outbox.acknowledge(2**64 - 1)
    assert len(outbox) == 3
    outbox.sent()
    outbox.acknowledge(2**64 - 1)
    assert len(outbox) == 2 and outbox.cursor == 1
    outbox.rewind(2**64 - 1)
    outbox.rewind(0)
    assert outbox.cursor == 1


def test_progress_is_a_line_that_says_who_waits(capsys: pytest.CaptureFixture[str]) -> None:
    times = iter([0.0, 0.0, 0.4, 1.0, 3.0])
    progress = Progress(True, clock=lambda: next(times))
    progress.show("waiting for the consumer")
    progress.sent(1, 2_000_000, 0.01)
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
    progress.sent(1, 1, 1.0)
    progress.show("sending")
    progress.close()
    assert capsys.readouterr() == ("", "")
