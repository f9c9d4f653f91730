"""Seeds, epochs and states of whole pipelines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import msgpack
import numpy as np
import pytest

from small_flows import Noise, Twice
from towerpack import dataflow as df
from towerpack._core.errors import ConfigError, StateError


def shuffled(n: int = 20) -> df.ShuffleData:
    return df.ShuffleData(df.DataFromArrays(np.arange(n)))


def values(iterable: Any) -> list[int]:
    return [int(dp[0]) for dp in iterable]


ROWS = df.DataFromList([(np.zeros(n), n) for n in (2, 1, 2, 3)])
ALWAYS: list[Callable[..., df.DataFlow]] = [
    lambda shuffle, seed: df.ShuffleData(ROWS, seed=seed),
    lambda shuffle, seed: df.LocallyShuffleData(ROWS, 2, seed=seed),
]
SHUFFLES: list[Callable[..., df.DataFlow]] = [
    *ALWAYS,
    lambda **given: df.CacheData(ROWS, **given),
    lambda **given: df.BatchByLength(ROWS, 2, [1], lengths=[2, 1, 2, 3], **given),
    lambda **given: df.DataFromList([(1,), (2,)], **given),
]


class TestSeedsAndEpochs:
    def test_passes_are_counted_under_one_drawn_seed(self) -> None:
        ds = shuffled()
        iterators = [ds.iterate() for _ in range(3)]
        assert [it.epoch for it in iterators] == [0, 1, 2]
        assert len({it.seed for it in iterators}) == 1
        assert iter(ds).epoch == 3  # type: ignore[attr-defined]
        passes = [values(it) for it in iterators]
        assert passes[0] != passes[1] != passes[2]
        seed = iterators[0].seed
        assert passes == [values(shuffled().iterate(seed=seed, epoch=e)) for e in range(3)]

    def test_explicit_epochs_are_not_counted(self) -> None:
        ds = shuffled()
        ds.iterate(epoch=7)
        assert ds.iterate().epoch == 0
        with pytest.raises(ConfigError, match="epoch must be at least 0, got -1"):
            ds.iterate(epoch=-1)

    def test_a_drawn_seed_is_logged_once(self, caplog: pytest.LogCaptureFixture) -> None:
        ds = shuffled()
        with caplog.at_level(logging.INFO, "towerpack"):
            seed = ds.iterate().seed
            ds.iterate()
            shuffled().iterate(seed=3)
            df.DataFromList([(1,)]).iterate()
        assert caplog.messages == [f"DataFromArrays(20) > ShuffleData has no seed and drew {seed}"]

    @pytest.mark.parametrize("make", SHUFFLES)
    def test_only_what_draws_from_the_runs_seed_logs_it(
        self, make: Callable[..., df.DataFlow], caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.INFO, "towerpack"):
            make(shuffle=True, seed=3).iterate()
            if make not in ALWAYS:
                make(shuffle=False, seed=None).iterate()
        assert caplog.messages == []
        with caplog.at_level(logging.INFO, "towerpack"):
            seed = make(shuffle=True, seed=None).iterate().seed
        assert len(caplog.messages) == 1 and caplog.messages[0].endswith(f"and drew {seed}")

    def test_seeds_out_of_range(self) -> None:
        for seed in (-1, 1 << 63):
            with pytest.raises(ConfigError, match="seed must be at"):
                shuffled().iterate(seed=seed)


class TestStates:
    def test_what_a_state_holds(self) -> None:
        ds = df.BatchData(shuffled(), 4)
        iterator = df.RepeatedData(ds).iterate(seed=5)
        for _ in range(7):
            next(iterator)
        state = iterator.state()
        assert state == {
            "version": 1,
            "flow": "DataFromArrays(20) > ShuffleData > BatchData(4) > RepeatedData",
            "seed": 5,
            "epoch": 0,
            "at": 7,
            "skipped": 0,
        }
        assert len(msgpack.packb(state)) < 150

    def test_passes_after_a_restored_one_follow_on(self) -> None:
        state = shuffled().iterate(seed=5, epoch=2).state()
        ds = shuffled()
        values(ds.iterate(state=state))
        assert values(ds) == values(shuffled().iterate(seed=5, epoch=3))

    def test_another_pipeline(self) -> None:
        state = df.BatchData(shuffled(), 4).iterate(seed=1).state()
        for other in (
            df.BatchData(shuffled(21), 4),
            df.BatchData(shuffled(), 4, remainder=True),
            shuffled(),
            df.RepeatedData(df.BatchData(shuffled(), 4)),
        ):
            with pytest.raises(StateError, match="another pipeline") as caught:
                other.iterate(state=state)
            assert caught.value.got == "DataFromArrays(20) > ShuffleData > BatchData(4)"

    def test_another_seed_or_epoch(self) -> None:
        state = shuffled().iterate(seed=1, epoch=2).state()
        assert shuffled().iterate(seed=1, epoch=2, state=state).seed == 1
        with pytest.raises(StateError, match="seed must be 1"):
            shuffled().iterate(seed=2, state=state)
        with pytest.raises(StateError, match="epoch must be 2"):
            shuffled().iterate(epoch=0, state=state)

    def test_nonsense_and_damage(self) -> None:
        state: Any
        for state in (3, {}, {"at": 3}, []):
            with pytest.raises(StateError, match="must be a result of"):
                shuffled().iterate(state=state)
        for name in ("seed", "epoch", "skipped"):
            for value in (None, "x", -1, 2.0, {}):
                with pytest.raises(StateError, match="numbers as seed and epoch"):
                    shuffled().iterate(state={**shuffled().iterate(seed=1).state(), name: value})
        for at in (-1, 21, "x", 1.5, True, {"window": 0}):
            with pytest.raises(StateError):
                shuffled().iterate(state=dict(shuffled().iterate(seed=1).state(), at=at))
        with pytest.raises(StateError, match="must be 1, got 99"):
            shuffled().iterate(state=dict(shuffled().iterate().state(), version=99))
        ds = df.RepeatedData(df.DataFromGenerator(lambda: iter([(1,)])), 2)
        state = dict(ds.iterate().state(), at={"turn": 0})
        with pytest.raises(StateError, match="structure differs from the pipeline"):
            ds.iterate(state=state)

    def test_looking_does_not_matter(self) -> None:
        """PrintData and TestDataSpeed may come and go between a save and a resume."""
        looked = df.BatchData(
            df.ShuffleData(df.PrintData(df.TestDataSpeed(df.DataFromArrays(np.arange(20))), 0)), 4
        )
        plain = df.BatchData(shuffled(), 4)
        iterator = looked.iterate(seed=1)
        next(iterator)
        rest = [batch[0].tolist() for batch in plain.iterate(state=iterator.state())]
        assert rest == [batch[0].tolist() for batch in iterator]


class TestFlowsOfUsers:
    def test_plain_iter_is_their_generator(self) -> None:
        assert type(iter(Noise(6))).__name__ == "generator"
        assert len({x for _, x in [*Noise(6), *Noise(6)]}) == 12

    def test_inner_flows_get_seed_and_epoch(self) -> None:
        passes = [values(Twice(shuffled()).iterate(seed=3, epoch=e)) for e in (0, 1, 0)]
        assert passes[0] == passes[2] != passes[1]
        halves = {tuple(half) for one in passes for half in (one[:20], one[20:])}
        assert len(halves) == 4  # every inner pass has an order of its own
        inner = shuffled()
        assert values(Twice(inner).iterate(seed=4)) != passes[0]
        assert inner.iterate().epoch == 0  # its own count is left alone

    def test_proxy(self) -> None:
        class Odd(df.ProxyDataFlow):
            def __iter__(self) -> Iterator[Any]:
                for dp in self.ds:
                    if dp[0] % 2:
                        yield dp

            def __len__(self) -> int:
                return len(self.ds) // 2

        ds = df.BatchData(Odd(shuffled()), 2)
        assert len(ds) == 5
        assert str(ds) == "DataFromArrays(20) > ShuffleData > Odd(10) > BatchData(2)"
        found = [x for (batch,) in ds.iterate(seed=1) for x in batch.tolist()]
        expected = [x for x in values(shuffled().iterate(seed=1)) if x % 2]
        assert sorted(found) == sorted(expected) != found
        assert values(df.ProxyDataFlow(df.DataFromList([(1,)]))) == [1]

    def test_old_programs(self) -> None:
        class Old(df.DataFlow):
            def __iter__(self) -> Iterator[Any]:
                yield (1,)

            def __len__(self) -> int:
                raise NotImplementedError

        with pytest.raises(TypeError):
            len(df.BatchData(Old(), 1))


def test_closing() -> None:
    closed: list[bool] = []

    def source() -> Iterator[tuple[int]]:
        try:
            for i in range(10):
                yield (i,)
        finally:
            closed.append(True)

    flow: df.DataFlow = df.DataFromGenerator(source)
    for wrap in (
        lambda ds: df.MapData(ds, lambda dp: dp),
        lambda ds: df.BatchData(ds, 2),
        df.RepeatedData,
        lambda ds: df.FixedSizeData(ds, 5),
        df.PrintData,
        df.CacheData,
    ):
        closed.clear()
        with wrap(flow).iterate() as iterator:
            next(iterator)
            assert not closed
        assert closed


def with_bad_ones() -> df.DataFlow:
    def bad(dp: Any) -> Any:
        if dp[0] % 2:
            raise ValueError("odd")
        return dp

    return df.MapData(df.DataFromGenerator(lambda: ((i,) for i in range(20))), bad, on_error="skip")


READS_AGAIN: dict[str, Callable[[df.DataFlow], df.DataFlow]] = {
    "a cache": lambda ds: df.CacheData(ds, shuffle=True),
    "a vectorised map": lambda ds: df.MapData(ds, lambda block: block, batched=True),
    "by length": lambda ds: df.BatchByLength(ds, 3, [5], length=lambda dp: dp[0] % 10 + 1),
    "by shape": lambda ds: df.BatchDataByShape(ds, 3, 0),
    "batches": lambda ds: df.BatchData(ds, 3, remainder=True),
    "nested": lambda ds: df.BatchByLength(
        df.LocallyShuffleData(ds, 4), 3, [5], length=lambda dp: 1
    ),
    "beside others": lambda ds: df.MixData(
        [df.LocallyShuffleData(ds, 4), df.MapData(ds, bool), df.BatchDataByShape(ds, 2, 0)]
    ),
    "a pass that ends within a window": lambda ds: df.FixedSizeData(
        df.LocallyShuffleData(ds, 4), 7
    ),
    "workers": lambda ds: df.PrefetchData(
        df.BatchData(df.MapData(ds, lambda dp: dp), 3), num_proc=1, backend="thread"
    ),
}


@pytest.mark.parametrize("make", READS_AGAIN.values(), ids=READS_AGAIN)
def test_what_is_left_out_again_counts_once(make: Callable[[df.DataFlow], df.DataFlow]) -> None:
    with make(with_bad_ones()).iterate(seed=1) as iterator:
        states = [(iterator.state(), iterator.skipped)]
        states += [(iterator.state(), iterator.skipped) for _ in iterator]
        expected = iterator.skipped
    assert expected >= 7
    for state, before in states:
        with make(with_bad_ones()).iterate(state=msgpack.unpackb(msgpack.packb(state))) as iterator:
            assert iterator.skipped <= before
            second = iterator.state()
            list(iterator)
            assert iterator.skipped == expected
        with make(with_bad_ones()).iterate(state=second) as iterator:
            list(iterator)
            assert iterator.skipped == expected


@pytest.mark.parametrize("below", [lambda ds: ds, lambda ds: df.LocallyShuffleData(ds, 8)])
def test_passes_of_a_fixed_size_count_what_they_leave_out(
    below: Callable[[df.DataFlow], df.DataFlow],
) -> None:
    """One goes on where the one before it stopped, maybe within a window."""
    ds = df.FixedSizeData(below(with_bad_ones()), 4)
    counts: list[int] = []
    for epoch in range(5):
        with ds.iterate(seed=1, epoch=epoch) as iterator:
            next(iterator)
            state = msgpack.unpackb(msgpack.packb(iterator.state()))
            rest = list(iterator)
            counts.append(iterator.skipped)
        again = df.FixedSizeData(below(with_bad_ones()), 4)
        with again.iterate(state=state) as iterator:
            assert list(iterator) == rest
            assert iterator.skipped == counts[-1]
    assert 19 <= sum(counts) <= 24  # of two passes below, maybe with the window that follows
