from __future__ import annotations

import logging
import math
from pathlib import Path

import pytest

from small_host import PutValues, SmallHost, round_trip
from towerpack import ConfigError
from towerpack.callbacks import (
    BestSaver,
    Callback,
    EarlyStopping,
    MaxSaver,
    MinSaver,
    ModelSaver,
    PeriodicTrigger,
)
from towerpack.callbacks.watch import Mode


def test_model_saver_saves_after_each_epoch(tmp_path: Path) -> None:
    host = SmallHost(tmp_path, [ModelSaver(keep=3)]).run()
    assert host.saves == [(s, {"keep": 3, "best": None}) for s in (4, 8, 12)]


def test_model_saver_must_keep_something() -> None:
    with pytest.raises(ConfigError, match="keep must be at least 1, got 0"):
        ModelSaver(keep=0)


@pytest.mark.parametrize(
    ("saver", "values", "saved"),
    [
        (MinSaver("e"), [0.5, 0.6, 0.5, 0.4], [1, 4]),
        (MaxSaver("e"), [0.5, 0.6, 0.6, 0.7], [1, 2, 4]),
        (BestSaver("e", "max"), [-1.0, -2.0, -0.5, -0.6], [1, 3]),
        (MinSaver("e"), [math.nan, 0.5, math.nan, 0.4], [2, 4]),
        (MinSaver("e"), [math.inf, -math.inf, 0.0, -1e9], [1, 2]),
    ],
)
def test_best_saver_saves_what_beats_the_best(
    tmp_path: Path, saver: BestSaver, values: list[float], saved: list[int]
) -> None:
    host = SmallHost(tmp_path, [PutValues("e", values), saver], steps_per_epoch=1, max_epoch=4)
    assert host.run().saves == [(s, {"keep": None, "best": "e"}) for s in saved]
    assert saver.best_step == saved[-1]
    assert saver.best == values[saved[-1] - 1]


def test_best_saver_acts_only_on_new_values(tmp_path: Path) -> None:
    put = PutValues("e", [0.5, None, 0.4, None])
    host = SmallHost(tmp_path, [put, MinSaver("e")], steps_per_epoch=1, max_epoch=4).run()
    assert [step for step, _ in host.saves] == [1, 3]


def test_best_saver_keeps_no_other_weights_than_those_that_were_measured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def best(*periods: int | None) -> list[tuple[float | None, int]]:
        put, saver = PutValues("e", [5.0, 4.0, 3.0, 2.0]), MinSaver("e")
        both = [
            c if k is None else PeriodicTrigger(c, k)
            for k, c in zip(periods, (put, saver), strict=True)
        ]
        host = SmallHost(tmp_path, both, steps_per_epoch=4, max_epoch=3).run()
        return [(saver.best, saver.best_step or 0), *((0, step) for step, _ in host.saves)]

    assert best(3, 3) == [(2.0, 12), (0, 3), (0, 6), (0, 9), (0, 12)]
    assert "the weights are those" not in caplog.text
    assert best(3, None) == [(2.0, 12), (0, 12)]
    assert "e was measured at step 3, but the weights are those of step 4" in caplog.text


def test_best_saver_survives_a_resume(tmp_path: Path) -> None:
    before = MinSaver("e")
    SmallHost(tmp_path, [PutValues("e", [0.3, 0.5]), before], max_epoch=2).run()
    after = MinSaver("e")
    after.restore(round_trip(before.state()))
    assert after.state() == before.state() == {"best": 0.3, "step": 4, "seen": 8}
    host = SmallHost(tmp_path, [PutValues("e", [0.4, 0.2]), after], max_epoch=4)
    host.global_step, host.epoch = 8, 2
    assert [step for step, _ in host.run().saves] == [16]


def test_nan_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    SmallHost(tmp_path, [PutValues("e", [math.nan]), MinSaver("e")], max_epoch=1).run()
    (record,) = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert record.message == "MinSaver('e'): e is NaN at step 4."


def test_mode_is_min_or_max() -> None:
    with pytest.raises(ConfigError, match="mode must be 'min', 'max' or None, got"):
        BestSaver("e", "smallest")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="mode must be 'min', 'max' or None, got"):
        EarlyStopping("e", mode="smallest")  # type: ignore[arg-type]


def stopped_after(host: SmallHost) -> int:
    return host.run().epoch


@pytest.mark.parametrize(
    ("stopping", "values", "epochs"),
    [
        (EarlyStopping("e", 2, "min"), [5, 4, 4, 4, 1], 4),
        (EarlyStopping("e", 2, "min"), [5, 6, 4, 5, 3], 5),
        (EarlyStopping("e", 1, "min", min_delta=0.5), [5, 4, 3.6, 1, 1], 3),
        (EarlyStopping("e", 1, "min"), [5, None, None, None, 6], 5),
        (EarlyStopping("e", 1, "min"), [5, None, 6, None, 6], 3),
        (EarlyStopping("e", patience=2, mode="max"), [1, 0, math.nan, 9, 9], 3),
    ],
)
def test_early_stopping(
    tmp_path: Path, stopping: EarlyStopping, values: list[float | None], epochs: int
) -> None:
    host = SmallHost(tmp_path, [PutValues("e", values), stopping], steps_per_epoch=1, max_epoch=5)
    assert stopped_after(host) == epochs


def test_early_stopping_waits_on_over_a_resume(tmp_path: Path) -> None:
    before = EarlyStopping("e", 3, "min")
    SmallHost(tmp_path, [PutValues("e", [1, 2, 2]), before], max_epoch=3).run()
    after = EarlyStopping("e", 3, "min")
    after.restore(round_trip(before.state()))
    host = SmallHost(tmp_path, [PutValues("e", [2, 0]), after], max_epoch=5)
    host.global_step, host.epoch = 12, 3
    assert stopped_after(host) == 4
    # It has ended: started again, it does nothing.
    again = EarlyStopping("e", 3, "min")
    again.restore(round_trip(after.state()))
    host = SmallHost(tmp_path, [PutValues("e", [0]), again], max_epoch=5)
    host.global_step, host.epoch = 16, 4
    assert stopped_after(host) == 4


@pytest.mark.parametrize("kwargs", [{"patience": 0}, {"min_delta": -1.0}, {"min_delta": math.nan}])
def test_early_stopping_refuses_nonsense(kwargs: dict[str, float]) -> None:
    with pytest.raises(
        ConfigError, match="patience must be at least 1 and min_delta at least 0, got"
    ):
        EarlyStopping("e", **kwargs)  # type: ignore[arg-type]


def test_periodic_best_saver_keeps_its_key() -> None:
    assert repr(PeriodicTrigger(MinSaver("e"), every_k_epochs=2)) == repr(MinSaver("e"))


class Measure(PutValues):
    """Puts values whose metric declares a direction."""

    def __init__(self, name: str, values: list[float], mode: Mode) -> None:
        super().__init__(name, values)
        self._mode: Mode = mode

    def before_train(self) -> None:
        self.trainer.monitors.directions[self._name] = self._mode


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize(("mode", "best"), [("max", 3), ("min", 2)])
def test_the_direction_is_that_of_the_metric(
    tmp_path: Path, mode: Mode, best: int, wrapped: bool
) -> None:
    """Savers and early stopping without a mode follow the declared direction."""
    saver: Callback = BestSaver("score")
    stopping: Callback = EarlyStopping("score", patience=3)
    measure: Callback = Measure("score", [0.955, 0.1, 0.983, 0.5, 0.6, 0.7], mode)
    if wrapped:
        measure, saver, stopping = (PeriodicTrigger(c, 1) for c in (measure, saver, stopping))
    host = SmallHost(tmp_path, [measure, saver, stopping], steps_per_epoch=1, max_epoch=6).run()
    assert host.saves[-1][0] == best
    assert host.epoch == best + 3


@pytest.mark.parametrize("callback", [BestSaver("e"), EarlyStopping("e")])
def test_an_undeclared_direction_must_be_given(tmp_path: Path, callback: Callback) -> None:
    with pytest.raises(ConfigError, match=r"No metric declares.*'e' is better(?s:.*)mode='min'"):
        SmallHost(tmp_path, [PutValues("e", [1.0]), callback]).run()
