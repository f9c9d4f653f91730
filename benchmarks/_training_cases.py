"""The two problems of `training_overhead.py`: arrays that all contenders share."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

import numpy as np

CLASSES = 10
RATE = 1e-3


@dataclass(frozen=True)
class Case:
    """A problem.

    Attributes:
        shape: Of one example.
        batch: Examples in a batch.
        steps: Batches in an epoch: all data once.
    """

    shape: tuple[int, ...]
    batch: int
    steps: int

    def arrays(self) -> tuple[np.ndarray, np.ndarray]:
        """Examples near one point per class; a fifth of the labels is drawn, so no loss is 0."""
        rng = np.random.default_rng(0)
        size = self.batch * self.steps
        centres = rng.normal(size=(CLASSES, *self.shape)).astype(np.float32)
        labels = rng.integers(0, CLASSES, size)
        examples = centres[labels] + rng.standard_normal((size, *self.shape), np.float32)
        drawn = rng.integers(0, CLASSES, size)
        return examples, np.where(rng.random(size) < 0.2, drawn, labels).astype(np.int64)

    def batches(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The same, cut into batches."""
        examples, labels = self.arrays()
        cuts = range(0, len(labels), self.batch)
        return [(examples[i : i + self.batch], labels[i : i + self.batch]) for i in cuts]


CASES = {
    "lenet": Case(shape=(28, 28, 1), batch=128, steps=50),
    "mlp": Case(shape=(32,), batch=32, steps=5000),
}


def arguments() -> tuple[str, str, Case]:
    """What the command line of a contender says: `CASE CONTENDER [STEPS-IN-AN-EPOCH]`."""
    _, name, contender, *steps = sys.argv
    case = CASES[name]
    return name, contender, replace(case, steps=int(steps[0])) if steps else case
