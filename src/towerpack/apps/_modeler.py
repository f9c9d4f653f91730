"""The model of a task, and what is made of its outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from towerpack.apps._optimizers import make_optimizer
from towerpack.callbacks import Inferencer
from towerpack.model import ModelDesc
from towerpack.training import SmartInit


class Modeler(ModelDesc, ABC):
    """A `ModelDesc` that owns a network, and says how it is evaluated and exported.

    Subclasses define `inputs` and `build_graph` too; `build_graph` exposes what `metrics`,
    `infer_outputs` and exports want.

    Args:
        config: Of the application.
        inputter: Its data.

    Attributes:
        best: The number whose best checkpoint is kept: `('val/error', 'min')`.
        infer_outputs: Outputs that inference and exported models give.
    """

    best: tuple[str, str] = ("val/cost", "min")
    infer_outputs: Sequence[str] = ()

    def __init__(self, config: Any, inputter: Any) -> None:
        self.config = config
        self.inputter = inputter

    def optimizer(self) -> Any:
        """The one of the configuration."""
        return make_optimizer(self.config.optimizer)

    @abstractmethod
    def metrics(self) -> Sequence[Inferencer]:
        """What an evaluation computes; those with a `report` have more to say than numbers."""

    def pretrained(self) -> Any:
        """Weights to start from, as the recipe's `transfer` says; None for none."""
        transfer = self.config.transfer
        if not transfer.pretrained:
            return None
        return SmartInit(
            transfer.pretrained,
            skip=transfer.skip or (),
            ignore_mismatch=transfer.ignore_mismatch,
        )

    def export_arguments(self) -> Mapping[str, Any]:
        """More arguments of `towerpack.inference.export`: preprocessing, names of classes."""
        return {}


class Reporting(Inferencer):
    """An inferencer that has more to say than numbers when an evaluation ends."""

    @abstractmethod
    def report(self, folder: Path) -> Sequence[Path]:
        """Write tables and pictures; gives the files."""

    def lines(self) -> Sequence[str]:
        """What a user wants to read of it."""
        return []


class Display(ABC):
    """Shows what inference makes of a datapoint.

    Args:
        config: Of the application.
        inputter: Its data.
    """

    def __init__(self, config: Any, inputter: Any) -> None:
        self.config = config
        self.inputter = inputter

    @abstractmethod
    def row(self, outputs: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        """Plain values for JSON and CSV, from the outputs for one datapoint."""

    def draw(self, sample: Any, outputs: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """An annotated picture, uint8 [h, w, 3]; None where there is nothing to see.

        Args:
            sample: What `Inputter.read` gave.
            outputs: For this datapoint.
        """
        del sample, outputs
        return None
