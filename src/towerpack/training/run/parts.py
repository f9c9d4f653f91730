"""Parts from which a run is assembled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from towerpack.callbacks import Callbacks
from towerpack.inputs import InputSource
from towerpack.model import ModelDesc
from towerpack.training.config import TrainConfig
from towerpack.training.distribution.base import Distribution
from towerpack.training.interrupt import InterruptFlag
from towerpack.training.loop.agreement import Agreement
from towerpack.training.loop.executor import StepParts
from towerpack.training.optim.hyper_params import HyperParams
from towerpack.training.state.counters import RunState
from towerpack.training.state.saver import Saves
from towerpack.training.steps.step import TrainStep
from towerpack.training.steps.step_runner import StepRunner


@dataclass(frozen=True, kw_only=True)
class RunParts:
    """Parts of a run. `watch` is called often to raise errors of threads and processes.

    `asynchronous` tells whether devices take batches in an order that varies. `batches` is the
    number of batches in a step, if it is not the number of replicas.
    """

    config: TrainConfig
    model: ModelDesc
    source: InputSource
    callbacks: Callbacks
    step: TrainStep
    distribution: Distribution
    make_runner: Callable[[StepParts], StepRunner]
    state: RunState
    hyper_params: HyperParams
    saves: Saves
    interrupt: InterruptFlag
    agreement: Agreement
    asynchronous: bool
    watch: Callable[[], None]
    batches: int | None = None
