"""Train, evaluate, predict, draw: the whole way in one call."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from towerpack.apps.digits._data import Digits, evaluation_flow, load_digits, train_flow
from towerpack.apps.digits._model import LeNet
from towerpack.apps.digits._picture import draw
from towerpack.callbacks import (
    ClassificationError,
    HumanHyperParamSetter,
    InferenceRunner,
    MinSaver,
    ModelSaver,
    ScalarStats,
    ScheduledHyperParamSetter,
)
from towerpack.inference import Predictor
from towerpack.training import SimpleTrainer, TrainConfig

BATCH_SIZE = 64
MAX_EPOCH = 15
# The data are few: an epoch, which is only the period of the callbacks, is four passes over them.
PASSES_PER_EPOCH = 4
BEST = "best-val/cost"


@dataclass(frozen=True)
class DemoResult:
    """What the demonstration came to.

    Attributes:
        accuracy: Share of the test digits that the best checkpoint gets right.
        num_test: How many test digits there are.
        num_wrong: How many of them it gets wrong.
        step: Global step of the best checkpoint.
        was_complete: The run had been finished by an earlier call.
        run_dir: Holds everything.
        picture: The PNG.
    """

    accuracy: float
    num_test: int
    num_wrong: int
    step: int
    was_complete: bool
    run_dir: Path
    picture: Path


def run(
    run_dir: str | os.PathLike[str] = "runs/demo",
    *,
    seed: int = 0,
    max_epoch: int = MAX_EPOCH,
) -> DemoResult:
    """Train LeNet on handwritten digits, or continue; then predict and draw.

    Command: `towerpack demo`. See the README for date, hardware and what it reaches.

    Args:
        run_dir: Where everything goes.
        seed: Of the whole run.
        max_epoch: Epochs of four passes over the data, one to two seconds each on two cores.
    """
    train, validation, test = load_digits()
    flow = train_flow(train, BATCH_SIZE)
    config = TrainConfig(
        dataflow=flow,
        model=LeNet(),
        callbacks=[
            ModelSaver(keep=3),
            InferenceRunner(
                evaluation_flow(validation),
                [ScalarStats("cost"), ClassificationError("incorrect", "error")],
            ),
            MinSaver("val/cost"),
            ScheduledHyperParamSetter("learning_rate", [(0, 1e-3), (10, 3e-4), (13, 1e-4)]),
            HumanHyperParamSetter("learning_rate"),
        ],
        steps_per_epoch=PASSES_PER_EPOCH * len(flow),
        max_epoch=max_epoch,
        seed=seed,
        run_dir=Path(run_dir),
        resume="auto",
    )
    trainer = SimpleTrainer(config)
    trainer.train()
    return _result(test, trainer)


def _result(test: Digits, trainer: SimpleTrainer) -> DemoResult:
    predictor = Predictor(LeNet(), trainer.run_dir, outputs="prob", tag=BEST, batch_size=128)
    prob = predictor(test.images)
    wrong = prob.argmax(axis=1) != test.labels
    picture = trainer.run_dir / "demo.png"
    draw(picture, test, prob, trainer.monitors)
    return DemoResult(
        accuracy=float(1 - np.mean(wrong)),
        num_test=len(test),
        num_wrong=int(wrong.sum()),
        step=predictor.step,
        was_complete=trainer.was_complete,
        run_dir=trainer.run_dir,
        picture=picture,
    )
