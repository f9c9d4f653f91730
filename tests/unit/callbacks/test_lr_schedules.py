"""Learning-rate schedules in one line, and the finder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from small_host import SmallHost
from towerpack import ConfigError
from towerpack.callbacks import (
    LearningRateFinder,
    ScheduledHyperParamSetter,
    cosine_schedule,
    one_cycle_schedule,
    piecewise_schedule,
    polynomial_schedule,
    warmup_schedule,
)

AT = np.arange(1001)
RISE = 0.5 * np.minimum(1, (AT + 1) / 100)
SHARE = np.clip((AT - 100) / 900, 0, 1)


def cosine(share: Any) -> Any:
    return (1 + np.cos(np.pi * share)) / 2


@pytest.mark.parametrize(
    ("setter", "expected"),
    [
        (warmup_schedule(0.5, 100), RISE),
        (piecewise_schedule([(0, 0.5), (600, 0.05)], warmup=100), np.where(AT < 600, RISE, 0.05)),
        (piecewise_schedule([(0, 0.5), (1, 0.1)]), np.where(AT < 1, 0.5, 0.1)),
        (cosine_schedule(0.5, 1000), 0.5 * cosine(AT / 1000)),
        (
            cosine_schedule(0.5, 1000, end=0.1, warmup=100),
            np.where(AT < 100, RISE, 0.1 + 0.4 * cosine(SHARE)),
        ),
        (polynomial_schedule(0.5, 1000), 0.5 * (1 - AT / 1000)),
        (
            polynomial_schedule(0.5, 1000, power=2, end=0.1, warmup=100),
            np.where(AT < 100, RISE, 0.1 + 0.4 * (1 - SHARE) ** 2),
        ),
        (
            one_cycle_schedule(0.5, 1000, rise=0.1, end=0.001),
            np.where(
                AT < 100, 0.5 - 0.48 * cosine(AT / 100), 0.001 + 0.499 * cosine((AT - 100) / 900)
            ),
        ),
    ],
)
def test_each_step_has_the_rate_of_the_formula(
    setter: ScheduledHyperParamSetter, expected: np.ndarray
) -> None:
    values: list[float] = []
    for step in range(1001):
        due = setter.due(step)
        values.append(values[-1] if due is None else due)
    np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-15)


def test_a_checkpoint_holds_the_schedule_by_name_and_arguments() -> None:
    setter = cosine_schedule(0.5, 1000, warmup=100)
    expected = ["cosine_schedule", "peak: 0.5", "steps: 1000", "end: 0.0", "warmup: 100"]
    assert setter.settings() == expected
    assert repr(setter) == "ScheduledHyperParamSetter('learning_rate')"  # as in older checkpoints


def test_they_move_any_hyper_parameter(tmp_path: Path) -> None:
    setter = cosine_schedule(0.5, 12, warmup=4, param="momentum")
    host = SmallHost(tmp_path, [setter])
    host.params["momentum"] = host.params["learning_rate"]
    assert [name for name, _ in host.run().schedules] == ["momentum"]
    assert host.params["momentum"].get() == 0


@pytest.mark.parametrize(
    "make",
    [
        lambda: cosine_schedule(0.1, 100, warmup=100),
        lambda: cosine_schedule(-0.1, 100),
        lambda: polynomial_schedule(0.1, 100, power=0),
        lambda: piecewise_schedule([(5, 0.1)]),
        lambda: piecewise_schedule([]),
        lambda: piecewise_schedule([(0, 0.1), (50, 0.01)], warmup=50),
        lambda: warmup_schedule(0.1, -1),
        lambda: one_cycle_schedule(0.1, 100, rise=0.001),
        lambda: LearningRateFinder(low=1, high=0.1),
        lambda: LearningRateFinder(steps=3),
    ],
)
def test_what_makes_no_sense(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


class Parabola:
    """Gradient descent on w²/2, by the rate of the host: diverges above 2."""

    def __init__(self) -> None:
        self.weight = 1.0
        self.host: Any = None

    def __call__(self, step: int) -> dict[str, Any]:
        cost = 1 + self.weight**2 / 2
        self.weight *= 1 - self.host.params["learning_rate"].get()
        return {"cost": cost}


def test_the_finder_finds_where_the_cost_falls(tmp_path: Path) -> None:
    model, finder = Parabola(), LearningRateFinder(1e-4, 100.0, 120)
    model.host = SmallHost(
        tmp_path, [finder], steps_per_epoch=500, max_epoch=1, steps_per_call=4, outputs=model
    )
    model.host.run()
    assert set(model.host.calls) == {1}, "the rate changes between all steps"
    assert finder.suggestion is not None and 0.02 < finder.suggestion < 0.5
    assert 2 < finder.rates[-1] < 20, "ends soon after the cost grows"
    assert len(finder.costs) == model.host.global_step < 120
    table = np.genfromtxt(tmp_path / "lr-finder.csv", delimiter=",", names=True)
    np.testing.assert_allclose(table["learning_rate"], finder.rates)
    np.testing.assert_allclose(table["cost"], finder.costs)
    assert (tmp_path / "lr-finder.png").read_bytes().startswith(b"\x89PNG")


def test_the_finder_spoils_no_trained_run(tmp_path: Path) -> None:
    host = SmallHost(tmp_path, [LearningRateFinder()])
    host.global_step = 7
    with pytest.raises(ConfigError, match="has been trained for 7 steps"):
        host.run()


def test_a_cost_that_never_falls(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    finder = LearningRateFinder(steps=20)
    SmallHost(tmp_path, [finder], steps_per_epoch=30, outputs=lambda step: {"cost": 1.0}).run()
    assert finder.suggestion is None and len(finder.rates) == 20
    assert finder.rates[-1] == pytest.approx(10)
    assert "the run ended" not in caplog.text
    zero = LearningRateFinder(steps=20)
    SmallHost(tmp_path, [zero], steps_per_epoch=30, outputs=lambda step: {"cost": 0.0}).run()
    assert len(zero.rates) == 20, "a cost of 0 does not grow"
    shorter = LearningRateFinder(steps=40)
    SmallHost(tmp_path, [shorter], max_epoch=3, outputs=lambda step: {"cost": 1.0}).run()
    assert "the run ended after 12 of 40 steps, at learning rate 9.43e-05" in caplog.text
