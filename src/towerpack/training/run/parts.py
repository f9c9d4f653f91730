"""Parts that a run is assembled from, as the configuration says."""

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
    """Parts of a run.

    Attributes:
        config: Configuration of the training.
        model: The model.
        source: Source of the data.
        callbacks: Callbacks of this process.
        step: Definition of one step.
        distribution: Where the replicas of a step run.
        make_runner: Makes the object that runs steps.
        state: Counters of the run.
        hyper_params: Hyper-parameters, found while the run is assembled.
        saves: Writes checkpoints.
        interrupt: Remembers signals.
        agreement: Agreement with the other processes of the run.
        watch: Called several times a second; raises whatever else must end the run.
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
    watch: Callable[[], None]
