"""No loss and no repeat, whatever the network and the processes do: in a simulated world."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remote_network import Network, take
from scaling import scaled
from towerpack import DataFlowError, WorkerError
from towerpack.dataflow import DataFlow, DataFromGenerator, DataFromList, MapData, ShuffleData
from towerpack.dataflow.remote import RemoteDataZMQ, _pace

pytestmark = pytest.mark.timeout(60)
ADDRESS = "inproc://not-used"


def numbers(name: str, count: int) -> DataFromList:
    return DataFromList([(name, i) for i in range(count)])


def by_name(datapoints: list[tuple[str, int]]) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for name, number in datapoints:
        found.setdefault(name, []).append(number)
    return found


BAD = {"lose": 0.2, "repeat": 0.15, "delay": 0.15}


@pytest.fixture(params=[True, False], ids=["together", "alone"])
def together(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether small datapoints wait for one another from the first one on."""
    if request.param:
        monkeypatch.setattr(_pace, "_QUICK", -1)
        monkeypatch.setattr(_pace, "_HOLD_S", 0.01)


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("seed", range(scaled(200, at_least=8)))
@pytest.mark.parametrize("ordered", [False, True])
def test_a_bad_network_loses_and_repeats_nothing(seed: int, ordered: bool) -> None:
    network = Network(seed, **BAD)
    flow = RemoteDataZMQ(ADDRESS, hwm=1 + seed % 7, ordered=ordered, producers=["a", "b"])
    network.start(numbers("a", 40), "a")
    network.start(numbers("b", 25), "b")
    got = list(network.stream(flow))
    assert by_name(got) == {"a": list(range(40)), "b": list(range(25))}
    if ordered:
        assert [name for name, _ in got[:50]] == ["a", "b"] * 25
    assert not network.failed


def test_the_network_was_bad() -> None:
    network = Network(3, **BAD)
    flow = RemoteDataZMQ(ADDRESS, producers=["a"])
    network.start(numbers("a", 60), "a")
    list(network.stream(flow))
    counts = flow.counts["a"]
    assert counts.missing and counts.repeated
    assert counts.datapoints == 60


@pytest.mark.usefixtures("together")
@pytest.mark.parametrize("seed", range(scaled(200, at_least=8)))
@pytest.mark.parametrize("ordered", [False, True])
def test_killed_producers_and_consumers_lose_and_repeat_nothing(seed: int, ordered: bool) -> None:
    network = Network(seed, **BAD)
    flow = RemoteDataZMQ(ADDRESS, hwm=3, ordered=ordered, producers=["a", "b"])
    peers = {name: network.start(numbers(name, 40), name) for name in "ab"}
    stream = network.stream(flow)
    got: list[tuple[str, int]] = []
    while len(got) < 80:
        event = network.random.random()
        if event < 0.1:
            name = network.random.choice("ab")
            if peers[name] in network.producers:
                network.kill(peers[name])
                peers[name] = network.start(numbers(name, 40), name)
        elif event < 0.2:
            # The consumer is killed: whatever was sent to it is lost, and it begins from its state.
            state = msgpack.unpackb(msgpack.packb(stream.state()))
            network.kill_consumer(stream)
            stream = network.stream(flow, state)
        else:
            got.append(next(stream))
    assert by_name(got) == {"a": list(range(40)), "b": list(range(40))}
    with pytest.raises(StopIteration):
        next(stream)


@settings(max_examples=scaled(200, at_least=25))
@given(stop=st.integers(0, 60), seed=st.integers(0, 1000))
def test_resumed_anywhere_the_rest_is_identical(stop: int, seed: int) -> None:
    def world() -> Network:
        network = Network(seed, lose=0.1)
        for name in ("a", "b", "c"):
            network.start(ShuffleData(numbers(name, 20)), name, stay=True)
        return network

    flow = RemoteDataZMQ(ADDRESS, ordered=True, producers=3)
    whole = list(world().stream(flow, epoch=2))
    stream = world().stream(flow, epoch=2)
    first = take(stream, stop)
    rest = list(world().stream(flow, stream.state(), epoch=2))
    assert first + rest == whole
    assert by_name(whole)["a"] != by_name(whole)["b"], "each has a seed of its own"


def sent_after(network: Network, pauses: dict[int, float]) -> list[int]:
    """How many datapoints had left when the flow was asked for each."""
    left: list[int] = []

    def watched(dp: tuple[int]) -> tuple[int]:
        (producer, _), *_ = network.producers.values()
        session = producer._session
        assert session is not None
        left.append(session.outbox.cursor)
        network.now += pauses.get(dp[0], 0.0)
        return dp

    flow = DataFromList([(i,) for i in range(1000)])
    network.start(MapData(flow, watched), "a", hwm=1000)
    list(network.stream(RemoteDataZMQ(ADDRESS, hwm=1000, producers=["a"])))
    return left


def test_small_datapoints_of_a_quick_flow_travel_together() -> None:
    left = sent_after(Network(), {})
    assert left[:256] == list(range(256)), "it may be a slow one"
    assert len(set(left[300:])) < 20
    assert max(number - sent for number, sent in enumerate(left)) < 128


def test_nothing_waits_for_a_flow_that_pauses() -> None:
    # A pause at least once in 250 datapoints: none of them waits.
    left = sent_after(Network(), {number: 0.05 for number in range(200, 1000, 250)})
    assert left == list(range(1000))
    # Slow ones without a pause.
    assert sent_after(Network(), dict.fromkeys(range(1000), 0.003)) == list(range(1000))


def test_what_waits_leaves_in_time() -> None:
    left = sent_after(Network(), dict.fromkeys(range(1000), 0.0015))
    assert max(number - sent for number, sent in enumerate(left)) <= 2


@pytest.mark.usefixtures("together")
def test_states_are_sent_so_that_little_is_skipped() -> None:
    read: list[int] = []

    class Watched(DataFlow):
        def __len__(self) -> int:
            return 100

        def __getitem__(self, i: int) -> tuple[int]:
            read.append(i)
            return (i,)

    network = Network()
    flow = RemoteDataZMQ(ADDRESS, producers=["a"])
    peer = network.start(Watched(), "a")
    stream = network.stream(flow)
    take(stream, 90)
    network.kill(peer)
    read.clear()
    network.start(Watched(), "a")
    assert [n for (n,) in stream] == list(range(90, 100))
    assert min(read) > 60, "a state from which it went on, not the beginning"


def test_an_indexless_flow_resumes_too() -> None:
    def flow() -> DataFlow:
        return DataFromGenerator(lambda: ((i, np.full(3000, i)) for i in range(30)))

    network = Network(1, **BAD)
    remote = RemoteDataZMQ(ADDRESS, producers=["a"])
    peer = network.start(flow(), "a")
    stream = network.stream(remote)
    first = take(stream, 17)
    network.kill(peer)
    network.start(flow(), "a")
    rest = list(stream)
    assert [n for n, _ in first + rest] == list(range(30))
    assert all((array == n).all() for n, array in first + rest)


def test_slow_consumers_bound_what_is_sent() -> None:
    network = Network()
    flow = RemoteDataZMQ(ADDRESS, hwm=4, producers=2)
    made: list[int] = []

    def count(dp: tuple[str, int]) -> tuple[str, int]:
        made.append(1)
        return dp

    for name in "ab":
        network.start(MapData(numbers(name, 1000), count), name, hwm=50, passes=-1)
    stream = network.stream(flow)
    taken = take(stream, 10)
    for _ in range(300):
        network.run()
    assert len(made) - len(taken) <= 2 * 4
    network.producers.clear()


def test_an_error_reaches_the_consumer_once_and_again_with_the_datapoint() -> None:
    def bad(dp: tuple[str, int]) -> tuple[str, int]:
        if dp[1] == 7:
            raise ValueError("seven \x1b[31m is bad")
        return dp

    network = Network(2, **BAD)
    flow = RemoteDataZMQ(ADDRESS, producers=["a"])
    network.start(MapData(numbers("a", 9), bad), "a")
    stream = network.stream(flow)
    assert [n for _, n in take(stream, 7)] == list(range(7))
    with pytest.raises(DataFlowError, match="seven") as caught:
        next(stream)
    assert "producer 'a' raised MapError at datapoint 7" in caught.value.what
    assert "in bad" in (caught.value.details or "")
    assert "\x1b" not in str(caught.value)
    for _ in range(400):
        network.run()
    assert isinstance(network.failed[0], DataFlowError), "the producer ends with it too"
    # Mended and started again, it goes on with this datapoint.
    network.start(numbers("a", 9), "a")
    network.failed.clear()


def test_a_mended_producer_goes_on_with_the_datapoint_that_failed() -> None:
    broken = True

    def bad(dp: tuple[str, int]) -> tuple[str, int]:
        if broken and dp[1] == 7:
            raise ValueError("seven")
        return dp

    network = Network(2, **BAD)
    flow = RemoteDataZMQ(ADDRESS, producers=["a"])
    network.start(MapData(numbers("a", 9), bad), "a", stay=True)
    stream = network.stream(flow)
    take(stream, 7)
    for _ in range(3):
        with pytest.raises(DataFlowError, match="seven"):
            next(stream)
    broken = False
    assert [n for _, n in stream] == [7, 8]


def test_another_flow_under_the_name_is_refused_by_its_state() -> None:
    network = Network()
    flow = RemoteDataZMQ(ADDRESS, producers=["a"])
    peer = network.start(numbers("a", 40), "a")
    stream = network.stream(flow)
    take(stream, 20)
    network.kill(peer)
    network.start(ShuffleData(numbers("a", 40)), "a")
    with pytest.raises(DataFlowError, match="belongs to another pipeline"):
        take(stream, 6)  # what was on its way still comes
    # It is the consumer's wish that cannot be granted: the producer lives on.
    assert not network.failed
    assert network.producers


def test_a_shorter_flow_under_the_name_is_found_out() -> None:
    network = Network()
    flow = RemoteDataZMQ(ADDRESS, producers=["a"])
    state = {
        "turn": "",
        "producers": {
            "a": {"handed": 9, "base": 0, "state": b"", "ended": False, "signature": b""}
        },
    }
    network.start(numbers("a", 5), "a")
    with pytest.raises(DataFlowError, match="ended before the place"):
        next(network.stream(flow, state))


def test_passes_and_seeds_reach_the_flow() -> None:
    network = Network()
    flow = RemoteDataZMQ(ADDRESS, producers=["a"])
    network.start(ShuffleData(numbers("a", 20)), "a", stay=True)
    passes = [list(network.stream(flow, epoch=epoch)) for epoch in (0, 1, 0)]
    assert passes[0] == passes[2] != passes[1]
    assert sorted(passes[0]) == sorted(passes[1])


def test_a_seed_of_its_own_wins() -> None:
    orders = []
    for name in "ab":
        network = Network()
        network.start(ShuffleData(DataFromList([(i,) for i in range(20)])), name, seed=5)
        orders.append(list(network.stream(RemoteDataZMQ(ADDRESS, producers=1))))
    assert orders[0] == orders[1]


def test_names_by_default_are_numbered_and_taken_over() -> None:
    network = Network()
    flow = RemoteDataZMQ(ADDRESS, producers=2)
    first = network.start(numbers("x", 30), "host", exact=False)
    network.start(numbers("y", 30), "host", exact=False)
    stream = network.stream(flow)
    got = take(stream, 25)
    assert set(flow.counts) == {"host", "host-2"}
    network.kill(first)
    network.start(numbers("x", 30), "host", exact=False)
    got += list(stream)
    assert {name: sorted(found) for name, found in by_name(got).items()} == {
        "x": list(range(30)),
        "y": list(range(30)),
    }


@pytest.mark.parametrize("exact", [True, False])
def test_what_the_dead_left_behind_does_not_keep_their_place(exact: bool) -> None:
    network = Network()
    flow = RemoteDataZMQ(ADDRESS, hwm=20)
    peer = network.start(numbers("a", 60), "a", exact=exact, hwm=20)
    stream = network.stream(flow)
    got = take(stream, 10)
    for _ in range(20):
        network.run()  # much is on its way
    assert len(network.to_consumer) > 5
    network.kill(peer)
    network.start(numbers("a", 60), "a", exact=exact)
    for _ in range(20):
        network.run()
        network.to_consumer.rotate(1)  # the newcomer is heard before what was left behind
    got += list(stream)
    assert got == [("a", i) for i in range(60)]
    assert set(flow.counts) == {"a"}
    assert not network.failed


def test_two_living_producers_of_one_name_are_told() -> None:
    network = Network()
    flow = RemoteDataZMQ(ADDRESS, hwm=2)
    network.start(numbers("a", 30), "a", passes=-1)
    stream = network.stream(flow)
    take(stream, 3)
    network.start(numbers("a", 30), "a", passes=-1)
    for _ in range(300):
        next(stream)
        if network.failed:
            break
    assert "another producer named 'a'" in str(network.failed[0])
    assert len(network.producers) == 1


@pytest.mark.parametrize(
    ("producers", "message"), [(["b"], "none of the producers"), (1, "takes 1 producers")]
)
def test_producers_that_are_not_wanted_are_told(producers: object, message: str) -> None:
    network = Network()
    flow = RemoteDataZMQ(ADDRESS, producers=producers)  # type: ignore[arg-type]
    network.start(numbers("b", 200), "b")
    stream = network.stream(flow)
    next(stream)
    network.start(numbers("a", 30), "a")
    assert len(list(stream)) == 199
    assert message in str(network.failed[0])


def test_nothing_for_a_while_is_logged_and_then_an_error(caplog: pytest.LogCaptureFixture) -> None:
    network = Network()
    flow = RemoteDataZMQ(ADDRESS, producers=["a", "b"], timeout_s=100)
    peer = network.start(numbers("a", 30), "a", hwm=3)
    stream = network.stream(flow)
    take(stream, 2)
    network.kill(peer)
    got = []
    with pytest.raises(WorkerError) as caught:
        while True:
            got.append(next(stream))
    assert "No datapoint has come for 100 s" in str(caught.value)
    assert "a: its connection is lost" in str(caught.value)
    assert "b: not come yet" in str(caught.value)
    assert "the connection is lost" in caplog.text
    assert caplog.text.count("no datapoint for") == 3
    # Waiting again is possible.
    network.start(numbers("a", 30), "a")
    network.start(numbers("b", 3), "b")
    got += list(stream)
    assert len(got) == 31


def test_a_pause_of_the_consumer_is_no_time_without_datapoints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A machine stood still for an hour: nothing was read, so nothing is known to be missing."""
    network = Network()
    stream = network.stream(RemoteDataZMQ(ADDRESS, producers=["a"], timeout_s=2))
    peer = network.start(numbers("a", 30), "a", hwm=3)
    run = network.run

    def pause_and_run() -> None:
        network.now += 3600 if network.now < 3600 else 0
        run()

    monkeypatch.setattr(network, "run", pause_and_run)
    assert take(stream, 2) == [("a", 0), ("a", 1)]
    network.kill(peer)
    with pytest.raises(WorkerError, match="its connection is lost"):
        list(stream)
