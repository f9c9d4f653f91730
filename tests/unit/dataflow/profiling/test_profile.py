"""The report of `profile`, and that it names the right stage."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack.dataflow import (
    BatchData,
    CacheData,
    DataFlow,
    DataFromArrays,
    DataFromGenerator,
    DataFromList,
    MapData,
    PrefetchData,
    RepeatedData,
    ShuffleData,
)
from towerpack.dataflow.profiling import (
    ProfileReport,
    StageProfile,
    _calibrate,
    _lanes,
    _profile,
    profile,
)
from towerpack.dataflow.profiling._advice import judge


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


def stage(report: ProfileReport, name: str) -> StageProfile:
    (found,) = [one for one in report.stages if one.name == name]
    return found


class TestFindings:
    """With margins of ten and more, because other programs run beside a test."""

    def test_a_slow_map(self) -> None:
        report = profile(BatchData(MapData(arrays(), spin), 4), 0.3)
        assert report.verdict.bottleneck.startswith("MapData(spin): ")
        assert "PrefetchData" in report.verdict.advice
        mapped, batched = stage(report, "MapData(spin)"), stage(report, "BatchData(4)")
        assert mapped.share > 0.5 > batched.share
        assert mapped.seconds_each >= 1e-3
        assert mapped.datapoints == 4 * batched.datapoints
        assert mapped.nbytes == 16 and batched.nbytes == 64
        assert report.waiting == 0 and report.workers == []

    def test_a_slow_source(self) -> None:
        report = profile(BatchData(SlowDisk(), 4), 0.3)
        assert report.verdict.bottleneck.startswith("SlowDisk(100) waits")
        assert "num_proc=8" in report.verdict.advice
        assert stage(report, "SlowDisk(100)").on_cpu < 0.4

    def test_what_comes_before_the_first_datapoint_is_told_apart(self) -> None:
        def slow_at_first(dp: Any) -> Any:
            if dp[0] == 0:
                time.sleep(0.2)
            return dp

        ds = DataFromList([(i,) for i in range(10**6)])
        report = profile(MapData(ds, slow_at_first), 0.1)
        assert report.first_s >= 0.2 > report.seconds
        assert stage(report, "MapData(slow_at_first)").seconds < 0.2

    def test_a_slow_generator(self) -> None:
        def slowly() -> Iterator[Any]:
            for i in range(100):
                time.sleep(2e-3)
                yield (i,)

        report = profile(BatchData(DataFromGenerator(slowly), 4), 0.3)
        assert report.verdict.bottleneck.startswith("DataFromGenerator(slowly) waits")
        assert "workers do not help" in report.verdict.advice

    def test_a_slow_map_over_a_generator(self) -> None:
        ds = MapData(
            DataFromGenerator(lambda: iter([(1,)] * 1000)), lambda _: time.sleep(2e-3) or 1
        )
        report = profile(ds, 0.3)
        assert report.verdict.bottleneck.startswith("MapData(<lambda>) waits")
        assert "num_proc=8" in report.verdict.advice

    def test_a_slow_loop(self) -> None:
        report = profile(BatchData(arrays(), 50), 0.3, consume=lambda dp: time.sleep(5e-3))
        assert report.consuming > 0.6
        assert report.verdict.bottleneck.startswith("the loop that uses the datapoints")


class Clock:
    """Stands still unless it is told to go on, for findings about microseconds."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    thread_time = perf_counter

    def takes(self, seconds: float) -> Any:
        """A function that takes so long."""

        def work(dp: Any) -> Any:
            self.now += seconds
            return dp

        return work


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    for module in (_profile, _lanes, _calibrate):
        monkeypatch.setattr(module, "time", clock)
    return clock


class TestFindingsAboutMicroseconds:
    def test_a_call_per_datapoint(self, clock: Clock) -> None:
        report = profile(BatchData(MapData(arrays(), clock.takes(2e-6)), 50), 0.05)
        assert report.verdict.bottleneck == (
            "the cost of a call per datapoint, not the work: "
            "MapData(work): 2.0 µs per datapoint, 100% of the work"
        )
        assert "batched=True" in report.verdict.advice
        mapped, batched = stage(report, "MapData(work)"), stage(report, "BatchData(50)")
        assert mapped.seconds_each == pytest.approx(2e-6) and batched.seconds == 0
        assert mapped.datapoints == 50 * batched.datapoints

    def test_a_call_that_works(self, clock: Clock) -> None:
        report = profile(BatchData(MapData(arrays(), clock.takes(5e-5)), 50), 0.1)
        assert report.verdict.bottleneck == "MapData(work): 50.0 µs per datapoint, 100% of the work"
        assert "PrefetchData" in report.verdict.advice

    def test_code_that_is_vectorised_needs_no_workers(self, clock: Clock) -> None:
        ds = MapData(arrays(), clock.takes(1e-4), batched=True)
        report = profile(BatchData(ds, 50), 0.05)
        assert "would cost more than it saves" in report.verdict.advice
        assert stage(report, "MapData(work)").seconds_each == pytest.approx(2e-6)


class TestWorkers:
    @pytest.mark.parametrize("ordered", [True, False])
    @pytest.mark.parametrize("backend", ["process", "thread"])
    def test_stages_in_workers(self, backend: Any, ordered: bool) -> None:
        ds = PrefetchData(BatchData(SlowDisk(), 5), None, 2, backend=backend, ordered=ordered)
        report = profile(ds, 0.6)
        assert [(one.name, one.where) for one in report.stages] == [
            ("SlowDisk(100)", "workers"),
            ("BatchData(5)", "workers"),
        ]
        assert 1 <= len(report.workers) <= 2
        assert report.waiting > 0.3
        assert "workers     " in str(report) and " where  " in str(report)

    def test_what_can_only_be_read_in_order(self) -> None:
        def slowly() -> Iterator[Any]:
            for i in range(1000):
                time.sleep(5e-3)
                yield (i,)

        for on_error in ("raise", "skip"):
            ds = MapData(DataFromGenerator(slowly), lambda dp: dp, on_error=on_error)
            report = profile(PrefetchData(BatchData(ds, 2), None, 2, backend="thread"), 0.4)
            places = {one.name: one.where for one in report.stages}
            assert places["DataFromGenerator(slowly)"] == "reader"
            assert places["MapData(<lambda>)"] == "workers"
            assert report.reader > 0.3 and "reading in order" in str(report)

    def test_a_map_above_them(self) -> None:
        ds = PrefetchData(BatchData(arrays(), 5), None, 1, backend="thread")
        report = profile(MapData(ds, spin), 0.3)
        assert stage(report, "MapData(spin)").where == "loop"
        assert stage(report, "BatchData(5)").where == "workers"
        assert report.waiting < 0.3
        assert report.verdict.bottleneck.startswith("MapData(spin): ")


class TestReport:
    def test_text(self) -> None:
        report = profile(BatchData(MapData(arrays(), lambda dp: dp), 5), 0.05)
        text = str(report)
        assert all(len(line) <= 100 for line in text.splitlines())
        for part in ("MapData(<lambda>)", "µs each", "bottleneck", "to do", "the first after"):
            assert part in text
        assert "\nworkers" not in text and " where  " not in text
        assert max(map(len, report.text(60).splitlines())) <= 60
        assert report.datapoints_per_second == report.datapoints / report.seconds
        assert report.nbytes == report.datapoints * 5 * 16

    def test_a_long_name_is_cut_in_the_table(self) -> None:
        def name(dp: Any) -> Any:
            return dp

        name.__name__ = "f[red] " * 40
        report = profile(MapData(arrays(), name), 0.02)
        lines = report.text(70).splitlines()
        table = lines[: lines.index("", 1)]
        assert table[1].split() == ["stage", "datapoints", "µs", "each", "share", "waits", "MB/s"]
        assert len(table) == 3 + len(report.stages)
        assert "MapData(f[red] f[red]" in table[-1] and "…" in table[-1]

    def test_no_rate_of_what_takes_no_time(self) -> None:
        report = profile(BatchData(arrays(), 5), 0.05)
        stages = [replace(stage, seconds=0.0) for stage in report.stages]
        text = replace(report, stages=stages).text()
        assert all(row.endswith("%") for row in map(str.rstrip, text.splitlines()[3:5]))

    def test_quiet_unless_on_a_terminal(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        profile(arrays(), 0.05)
        captured = capsys.readouterr()
        assert captured.out == captured.err == ""

        class Terminal(io.StringIO):
            def isatty(self) -> bool:
                return True

        monkeypatch.setattr("sys.stderr", screen := Terminal())
        monkeypatch.setenv("TERM", "xterm")
        profile(MapData(arrays(), spin), 0.5)
        assert "profile" in screen.getvalue()
        assert capsys.readouterr().out == ""

    def test_the_flow_keeps_its_count_of_passes(self) -> None:
        ds = ShuffleData(DataFromList([(i,) for i in range(50)]))
        profile(ds, 0.02)
        assert ds.iterate(seed=0).epoch == 0

    def test_the_flow_keeps_its_cache(self) -> None:
        read: list[int] = []
        ds = CacheData(MapData(DataFromList([(i,) for i in range(50)]), lambda dp: dp))
        ds.ds.f = lambda dp: read.append(1) or dp  # type: ignore[attr-defined]
        list(ds.iterate(seed=5))
        profile(ds, 0.02)
        read.clear()
        list(ds.iterate(seed=5))
        assert read == []

    def test_passes_follow_one_another(self) -> None:
        epochs: set[int] = set()

        def look(dp: Any, rng: np.random.Generator) -> Any:
            epochs.add(int(rng.integers(1 << 60)))
            return dp

        profile(MapData(DataFromList([(0,)]), look, rng=True), 0.05)
        assert len(epochs) > 2

    def test_nothing_to_measure(self) -> None:
        with pytest.raises(DataFlowError, match="no datapoints to measure"):
            profile(DataFromList([]), 0.1)
        for seconds in (0, -1.0, float("nan"), float("inf")):
            with pytest.raises(ConfigError, match="sees nothing"):
                profile(arrays(), seconds)

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            (([1],), "profile measures a DataFlow"),
            ((arrays(), "a"), "seconds is no number"),
            ((arrays(), None), "seconds is no number"),
        ],
    )
    def test_wrong_arguments(self, arguments: Any, told: str) -> None:
        with pytest.raises(ConfigError, match=told) as caught:
            profile(*arguments)
        assert caught.value.fix or caught.value.expected

    def test_wrong_options(self) -> None:
        wrong: Any = "a"
        with pytest.raises(ConfigError, match="consume is no function"):
            profile(arrays(), 0.1, consume=wrong)
        with pytest.raises(ConfigError, match="seed is no integer"):
            profile(arrays(), 0.1, seed=wrong)

    def test_errors_are_those_of_the_flow(self) -> None:
        with pytest.raises(DataFlowError, match=r"MapData\(int\) raised"):
            profile(RepeatedData(MapData(arrays(), int)), 0.1)


def found(
    name: str, seconds: float, *, each: float = 1e-3, where: Any = "workers", on_cpu: float = 1.0
) -> tuple[DataFlow, StageProfile]:
    count = int(seconds / each)
    return DataFromList([]), StageProfile(name, where, count, seconds, 0.5, on_cpu, 8)


def verdict(*stages: Any, **numbers: Any) -> str:
    options: dict[str, Any] = {"consuming": 0.0, "waiting": 0.8, "workers": [0.9, 0.95]}
    options |= {"reader": 0.0, "threads": False, "each": 1, "cpus": 4}
    result = judge(stages, **{**options, **numbers})
    return f"{result.bottleneck}; {result.advice}"


class TestJudgementOfStages:
    @pytest.mark.parametrize(
        ("make", "each", "calls"),
        [
            (lambda ds: MapData(ds, tuple), 2e-6, True),
            (lambda ds: MapData(ds, tuple), 1e-3, False),
            (lambda ds: MapData(ds, tuple, batched=True), 2e-6, False),
            (lambda ds: MapData(BatchData(ds, 2), tuple), 2e-6, False),
            (lambda ds: BatchData(MapData(ds, tuple), 100), 1e-4, True),
            (lambda ds: BatchData(ShuffleData(MapData(ds, tuple)), 100), 1e-4, True),
            (lambda ds: BatchData(MapData(ds, tuple), 2), 1e-4, False),
            (lambda ds: BatchData(MapData(ds, tuple, batched=True), 100), 1e-4, False),
            (lambda ds: BatchData(ds, 100), 1e-4, False),
            (ShuffleData, 2e-6, False),
        ],
    )
    def test_the_cost_of_calls(self, make: Any, each: float, calls: bool) -> None:
        flow = make(DataFromList([(1,)]))
        text = verdict((flow, found("it", 1, each=each, where="loop")[1]), workers=[], waiting=0)
        assert text.startswith("the cost of a call per datapoint") == calls

    def test_handing_over_would_cost_more(self) -> None:
        one = found("it", 1, where="loop")
        assert "more than it saves" in verdict(one, workers=[], waiting=0, each=1e-5)
        assert "PrefetchData(ds, num_proc=4)" in verdict(one, workers=[], waiting=0, each=1e-3)


class TestJudgementOfWorkers:
    def test_too_few(self) -> None:
        text = verdict(found("decode", 3), found("read", 1), found("copy", 9, where="loop"))
        assert text.startswith("too few workers: 2 of 2 are busy all the time, mostly with decode")
        assert "there are 4 CPUs" in text

    def test_too_few_cpus(self) -> None:
        assert "all 2 CPUs are at work: make decode cheaper" in verdict(found("decode", 3), cpus=2)

    def test_workers_that_wait(self) -> None:
        text = verdict(found("read", 3, on_cpu=0.1), cpus=2)
        assert "more workers, also more than the 2 CPUs" in text

    def test_a_thread_that_reads_in_order(self) -> None:
        stages = found("read", 3, where="reader"), found("decode", 1)
        text = verdict(*stages, workers=[0.3, 0.2], reader=0.9)
        assert text.startswith("reading in order, which one thread does for all workers: mostly re")
        text = verdict(*stages, workers=[], reader=0.9)
        assert text.startswith("reading in order")
        text = verdict(*stages, workers=[0.95, 0.96], reader=0.9)
        assert text.startswith("too few workers")

    def test_one_that_has_all_the_work(self) -> None:
        text = verdict(found("decode", 1), workers=[0.9, 0.2])
        assert text.startswith("one worker: of 2 only 1") and "num_prefetch" in text

    def test_handing_over(self) -> None:
        text = verdict(found("read", 1), workers=[0.3, 0.2])
        assert text.startswith("handing over: the loop waits 80%")

    def test_threads_that_hold_the_lock(self) -> None:
        for share in (0.4, 0.6):
            text = verdict(found("decode", 1), workers=[share, share], threads=True)
            assert text.startswith("the interpreter's lock: 2 threads do the work of one")
        for numbers in ({"workers": [0.9, 0.9]}, {"workers": [0.1, 0.1]}, {"workers": [0.9]}):
            assert "lock" not in verdict(found("decode", 1), threads=True, **numbers)

    def test_a_stage_in_the_loop(self) -> None:
        text = verdict(found("read", 9), found("cast", 3, where="loop"), waiting=0.1)
        assert text.startswith("cast: ") and "move it below PrefetchData" in text
        text = verdict(found("cast", 3, where="loop", on_cpu=0.1), waiting=0.1)
        assert "move it below PrefetchData" in text

    def test_a_slow_loop(self) -> None:
        assert verdict(found("read", 9), consuming=0.7, waiting=0.0).startswith("the loop that")
