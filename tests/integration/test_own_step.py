"""Steps of a user's own: several costs and optimizers on the same loop."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import pytest

from small_training import Do, Model, assert_same, config
from towerpack import CheckpointMismatchError, ConfigError
from towerpack.callbacks import ModelSaver, ScheduledHyperParamSetter
from towerpack.checkpoint import load_checkpoint
from towerpack.training import SimpleTrainer, StopTraining, SyncMultiGPUTrainer, Trainer, TrainStep

EXAMPLE = Path(__file__).parents[2] / "examples" / "own_step.py"


class TwoRates(TrainStep):
    """One optimizer for each layer."""

    def build(self, setup: Any) -> None:
        self.parts = []
        for name in ("fc0", "fc1"):
            own = {n: v for n, v in setup.trainable.items() if n.startswith(name)}
            self.parts.append((own, setup.optimizer(name, own)))

    def __call__(self, context: Any, batch: Any) -> None:
        cost = context.tower(*batch).cost
        for variables, optimizer in self.parts:
            context.minimize(cost, variables, optimizer)


def two(rate: float = 0.05) -> dict[str, Any]:
    return {"fc0": keras.optimizers.SGD(rate), "fc1": keras.optimizers.Adam(0.05)}


def run(run_dir: Path, *callbacks: Any, make: Callable[[], Any] = two, **kwargs: Any) -> Trainer:
    trainer = Trainer(
        config(run_dir, [ModelSaver(), *callbacks], model=Model(make), **kwargs), step=TwoRates()
    )
    trainer.train()
    return trainer


def test_the_example_learns_and_is_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main = runpy.run_path(str(EXAMPLE))["main"]
    for _ in range(2):  # The second finds that the run is complete.
        main(str(tmp_path))
        words = capsys.readouterr().out.split()
        assert float(words[2]) == pytest.approx(3.0, abs=0.5)
        assert set(load_checkpoint(tmp_path).tensors) == {"model", "gen", "discrim"}


def test_several_optimizers_are_resumed_scheduled_and_monitored(tmp_path: Path) -> None:
    def stop(_: Any) -> None:
        raise StopTraining

    def schedule() -> ScheduledHyperParamSetter:
        return ScheduledHyperParamSetter("fc1/learning_rate", [(1, 0.01)])

    whole = run(tmp_path / "whole", schedule())
    run(tmp_path / "parts", schedule(), Do("trigger_step", stop, 4))
    parts = run(tmp_path / "parts", schedule())
    assert_same(parts.get_weights(), whole.get_weights())
    assert parts.monitors.history("fc1/learning_rate") == [
        (6, pytest.approx(0.05)),
        (12, pytest.approx(0.01)),
    ]


def test_it_does_what_one_optimizer_would(tmp_path: Path) -> None:
    def same() -> dict[str, Any]:
        return {name: keras.optimizers.SGD(0.05) for name in ("fc0", "fc1")}

    one = SimpleTrainer(config(tmp_path / "one", optimizer=keras.optimizers.SGD(0.05)))
    one.train()
    assert_same(run(tmp_path / "two", make=same).get_weights(), one.get_weights())
    several = SyncMultiGPUTrainer(
        config(tmp_path / "several", model=Model(same)), ["CPU:0"], step=TwoRates()
    )
    several.train()
    assert_same(several.get_weights(), one.get_weights())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: keras.optimizers.SGD(0.1), "requests the optimizer 'fc0'"),
        (lambda: {**two(), "fc2": keras.optimizers.SGD(0.1)}, r"does not use .*'fc2'"),
    ],
)
def test_optimizers_and_step_must_agree(tmp_path: Path, make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        run(tmp_path, make=make)


def test_a_checkpoint_of_another_step_is_refused(tmp_path: Path) -> None:
    run(tmp_path, max_epoch=1)
    with pytest.raises(
        CheckpointMismatchError, match="a different kind of training step"
    ) as caught:
        SimpleTrainer(config(tmp_path)).train()
    assert "init=" in str(caught.value.fix)
