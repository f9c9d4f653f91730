"""The report of `profile`, and that it names the right stage."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack.dataflow import (
    BatchData,
    DataFlow,
    DataFromArrays,
    DataFromGenerator,
    DataFromList,
    MapData,
    PrefetchData,
    RepeatedData,
    ShuffleData,
)
from towerpack.dataflow.profiling import ProfileReport, StageProfile, profile


def arrays() -> DataFlow:
    return ShuffleData(DataFromArrays(np.zeros((500, 8), np.uint8), np.arange(500)))


def spin(dp: Any) -> Any:
    end = time.thread_time() + 1e-3
    while time.thread_time() < end:
        pass
    return dp


class SlowDisk(DataFlow):
    def __len__(self) -> int:
        return 100

    def __getitem__(self, i: int) -> Any:
        time.sleep(2e-3)
        return (i,)


def slowly() -> Iterator[Any]:
    for i in range(1000):
        time.sleep(2e-3)
        yield (i,)


def stage(report: ProfileReport, name: str) -> StageProfile:
    (found,) = [one for one in report.stages if one.name == name]
    return found


def test_a_slow_map() -> None:
    report = profile(BatchData(MapData(arrays(), spin), 4), 0.3)
    mapped, batched = stage(report, "MapData(spin)"), stage(report, "BatchData(4)")
    assert mapped.share > 0.5 > batched.share
    assert mapped.seconds_each >= 1e-3 and mapped.datapoints == 4 * batched.datapoints
    assert report.verdict.bottleneck.startswith("MapData(spin): ")
    assert "PrefetchData" in report.verdict.advice


@pytest.mark.parametrize(
    ("ds", "waits", "advice"),
    [
        (SlowDisk(), "SlowDisk(100)", "num_proc=8"),
        (DataFromGenerator(slowly), "DataFromGenerator(slowly)", "do not speed up"),
    ],
)
def test_a_stage_that_waits(ds: DataFlow, waits: str, advice: str) -> None:
    report = profile(BatchData(ds, 4), 0.2)
    assert report.verdict.bottleneck.startswith(f"{waits} waits")
    assert advice in report.verdict.advice
    assert stage(report, waits).on_cpu < 0.4


def test_a_slow_loop() -> None:
    report = profile(BatchData(arrays(), 50), 0.1, consume=lambda dp: time.sleep(5e-3))
    assert report.consuming > 0.6
    assert report.verdict.bottleneck.startswith("the loop that uses the datapoints")


def test_what_comes_before_the_first_datapoint_is_told_apart() -> None:
    def slow_at_first(dp: Any) -> Any:
        if dp[0] == 0:
            time.sleep(0.2)
        return dp

    report = profile(MapData(DataFromList([(i,) for i in range(10**6)]), slow_at_first), 0.05)
    assert report.first_s >= 0.2 > report.seconds
    assert stage(report, "MapData(slow_at_first)").seconds < 0.2


@pytest.mark.parametrize(("backend", "ordered"), [("process", True), ("thread", False)])
def test_stages_in_workers(backend: Any, ordered: bool) -> None:
    ds = PrefetchData(BatchData(SlowDisk(), 5), None, 2, backend=backend, ordered=ordered)
    report = profile(MapData(ds, list), 0.2)
    places = {one.name: one.where for one in report.stages}
    assert places == {
        "SlowDisk(100)": "workers",
        "BatchData(5)": "workers",
        "MapData(list)": "loop",
    }
    assert 1 <= len(report.workers) <= 2 and report.threads == (backend == "thread")
    assert report.waiting > 0.3 and "\nworkers     " in str(report)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_what_can_only_be_read_in_order(on_error: Any) -> None:
    ds = MapData(DataFromGenerator(slowly), lambda dp: dp, on_error=on_error)
    report = profile(PrefetchData(BatchData(ds, 2), None, 2, backend="thread"), 0.3)
    places = {one.name: one.where for one in report.stages}
    assert places["DataFromGenerator(slowly)"] == "reader"
    assert places["MapData(<lambda>)"] == "workers"
    assert report.reader > 0.3 and "in order for the workers" in str(report)


def test_text() -> None:
    report = ProfileReport("it", 100, 2.0, 0.1, [found("BatchData(5)", 1), found("f" * 200, 1)])
    for part in ("µs each", "BatchData(5)", "bottleneck", "to do", "the first after", "ff…"):
        assert part in str(report)
    assert "\nworkers" not in str(report)
    for width in (70, 100):
        assert max(map(len, report.text(width).splitlines())) <= width
    assert report.datapoints_per_second == 50


def test_progress_is_shown_on_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    profile(arrays(), 0.05)
    assert capsys.readouterr() == ("", "")
    screen = io.StringIO()
    screen.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr("sys.stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    profile(MapData(arrays(), spin), 0.3)
    assert "profile" in screen.getvalue()


def test_passes_follow_one_another_and_those_of_the_flow_are_not_counted() -> None:
    drawn: set[int] = set()

    def look(dp: Any, rng: np.random.Generator) -> Any:
        drawn.add(int(rng.integers(1 << 60)))
        return dp

    ds = MapData(DataFromList([(0,)]), look, rng=True)
    profile(ds, 0.05)
    assert len(drawn) > 2 and ds.iterate(seed=0).epoch == 0


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        *(
            ({"seconds": float(s)}, ConfigError, "must be positive and finite")
            for s in (0, "nan", "inf")
        ),
        ({"ds": DataFromList([])}, DataFlowError, "has no datapoints"),
        ({"ds": RepeatedData(MapData(arrays(), int))}, DataFlowError, r"MapData\(int\) raised"),
    ],
)
def test_what_cannot_be_measured(arguments: Any, error: Any, told: str) -> None:
    with pytest.raises(error, match=told):
        profile(**{"ds": arrays(), "seconds": 0.1, **arguments})


def found(name: str, seconds: float, where: Any = "workers", **others: Any) -> StageProfile:
    each = others.pop("each", 1e-3)
    return StageProfile(name, where, round(seconds / each), seconds, 0.5, **others)


DECODE, LOOP, READ = found("decode", 3), found("cast", 3, "loop"), found("read", 3, "reader")
CALLS = found("tiny", 1, "loop", each=2e-6, calls=True)
WORKERS = {"waiting": 0.8, "workers": [0.95, 0.9]}


@pytest.mark.parametrize(
    ("stages", "numbers", "bottleneck", "advice"),
    [
        ([LOOP], {"consuming": 0.7}, "the loop that uses", "ready in time"),
        ([], WORKERS, "the loop that uses", "ready in time"),  # all was ready before
        ([LOOP], {}, "cast: 1,000.0 µs per datapoint, 50%", "PrefetchData(ds, num_proc="),
        ([LOOP], {"datapoints": 10**5}, "cast: ", "cost more than they save"),
        ([CALLS], {}, "the cost of a call", "batched=True"),
        ([found("read", 1, "loop", on_cpu=0.1)], {}, "read waits", "num_proc=8"),
        (
            [found("read", 1, "loop", on_cpu=0.1, divisible=False)],
            {},
            "read waits",
            "do not speed up",
        ),
        ([LOOP, found("decode", 9)], {**WORKERS, "waiting": 0.1}, "cast: ", "before PrefetchData"),
        (
            [DECODE, READ, LOOP],
            WORKERS,
            "too few workers: 2 of 2 are always busy, mostly with d",
            "",
        ),
        ([found("read", 3, on_cpu=0.1)], WORKERS, "too few", "even more, because they wait"),
        ([DECODE], {**WORKERS, "workers": [1.0] * 999}, "too few", "make the stage cheaper"),
        (
            [DECODE],
            {**WORKERS, "workers": [0.9, 0.2]},
            "uneven work: only 1 of 2 workers",
            "num_prefetch",
        ),
        (
            [DECODE],
            {**WORKERS, "workers": [0.3, 0.2]},
            "transfer between processes: the loop waits 80%",
            "uint8",
        ),
        ([DECODE, READ], {**WORKERS, "workers": [0.3], "reader": 0.9}, "reading in order", ""),
        ([DECODE, READ], {**WORKERS, "reader": 0.9}, "too few workers", ""),
        *(
            ([DECODE], {**WORKERS, "workers": w, "threads": True}, told, "")
            for w, told in (
                ([0.4, 0.4], "Python's global lock: 2 threads do the work of one"),
                ([0.9, 0.9], "too few"),
                ([0.9], "too few"),
            )
        ),
    ],
)
def test_verdicts(stages: Any, numbers: Any, bottleneck: str, advice: str) -> None:
    taken = {"datapoints": 1000, "seconds": 1.0, "first_s": 0.0, **numbers}
    report = ProfileReport("it", stages=stages, **taken)
    verdict = report.verdict
    assert "to do" in str(report)
    assert verdict.bottleneck.startswith(bottleneck)
    assert advice in verdict.advice
