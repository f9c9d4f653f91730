"""The data of a task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal

from towerpack.dataflow import DataFlow

Split = Literal["train", "val", "test"]


class Inputter(ABC):
    """The data of a task, as flows of batches; it may own an augmenter.

    Attributes:
        batch_size: Datapoints in a batch.
        class_names: Names of the classes, where the task has classes.
        suffixes: Of files in a folder that inference reads.
    """

    batch_size: int
    suffixes: Sequence[str] = ()
    class_names: Sequence[str] = ()

    @abstractmethod
    def flow(self, split: Split) -> DataFlow:
        """Batches that fit the modeler's `inputs()`.

        Args:
            split: 'train': shuffled, augmented, whole batches; 'val' and 'test': in order, each
                datapoint once, the last batch smaller.

        Raises:
            ConfigError: There are no such data.
        """

    @abstractmethod
    def read(self, source: Any) -> Any:
        """What a user hands in for inference, as it is to be shown: a picture [h, w, 3], a text.

        Args:
            source: A path, or what else the task takes.

        Raises:
            TowerpackError: It cannot be read.
        """

    @abstractmethod
    def prepare(self, sample: Any) -> Sequence[Any]:
        """The model's inputs, without labels, for one datapoint that `read` gave."""
