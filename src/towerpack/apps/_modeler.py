"""Base classes of applications: Modeler (model), Reporting (evaluation), Display (inference)."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack.apps._application import RECIPE, code_named_in, find_recipe
from towerpack.apps._optimizers import make_optimizer
from towerpack.callbacks import Inferencer
from towerpack.callbacks.watch import Mode
from towerpack.config import read_yaml
from towerpack.model import ModelDesc
from towerpack.nn import l2_regularizer, regularize_cost
from towerpack.training import SmartInit
from towerpack.zoo import PRETRAINED_PIXELS

_LOG = get_logger(__name__)


class Modeler(ModelDesc, ABC):
    """Base class of models of an application. A modeler also defines evaluation and export.

    Subclasses also define `inputs`, and `build_graph`, which exposes the outputs.

    Args:
        config: Configuration of the application.
        inputter: Data of the application.

    Attributes:
        best: Metric whose best checkpoint is kept, with its direction: `('val/error', 'min')`.
        infer_outputs: Names of the outputs of inference and of exported models.
        portable_outputs: Outputs for formats that cannot compute `infer_outputs`, if any.
    """

    best: tuple[str, Mode] = ("val/cost", "min")
    infer_outputs: Sequence[str] = ()
    portable_outputs: Sequence[str] = ()

    def __init__(self, config: Any, inputter: Any) -> None:
        self.config = config
        self.inputter = inputter

    def optimizer(self) -> Any:
        return make_optimizer(self.config.optimizer)

    @abstractmethod
    def metrics(self) -> Sequence[Inferencer]:
        """Create the metrics of an evaluation. A `Reporting` also writes tables and images."""

    def for_inference(self) -> ModelDesc:
        """Return the model that computes `infer_outputs` from prepared samples; here, `self`."""
        return self

    def pretrained(self) -> SmartInit | None:
        """Return the initial weights that `transfer` configures; None for random weights."""
        transfer = self.config.transfer
        if not transfer.pretrained:
            return None
        self.check_pixels(transfer.pretrained)
        return SmartInit(
            self.weights(transfer.pretrained),
            skip=transfer.skip or (),
            ignore_mismatch=transfer.ignore_mismatch,
        )

    def check_pixels(self, source: str | os.PathLike[str]) -> None:
        """Check that pixels are normalized in the same way as when the weights were trained.

        The normalization is known for packaged networks, runs and checkpoints. Other weights are
        not checked.

        Args:
            source: Name of a packaged network, or path of a run, checkpoint or file of weights.

        Raises:
            ConfigError: The normalization differs.
        """
        augmenter, name = getattr(self.inputter, "augmenter", None), os.fspath(source)
        pixels = np.random.default_rng(0).integers(0, 256, [2, 8, 8, 3], np.uint8)
        path = Path(name).expanduser()
        run = next((p for p in (path, *path.parents[:2]) if (p / RECIPE).is_file()), None)
        if augmenter is None or not hasattr(augmenter, "normalize"):
            return
        if name in PRETRAINED_PIXELS:
            offset, scale = PRETRAINED_PIXELS[name]
            wanted, rule = (pixels - offset) / scale, f"(pixels - {offset:g}) / {scale:g}"
            fix = "efficientnet_lite (ssd_lite for detection)"
        elif run is not None:
            if code_named_in(read_yaml(run / RECIPE)):
                _LOG.warning("%s names code, so its normalization of pixels is not checked.", run)
                return
            other = getattr(find_recipe(run).inputter(), "augmenter", None)
            if other is None or other is augmenter:
                return
            fix, wanted = other.name, other.normalize(tf.constant(pixels))
            rule = f"the augmenter '{fix}'"
        else:
            return
        if not np.allclose(augmenter.normalize(tf.constant(pixels)), wanted, atol=1e-3):
            raise ConfigError(
                f"Pixels must be normalized as in the training of the weights of {name}.",
                got=f"the augmenter '{augmenter.name}'",
                expected=rule,
                fix=f"set data.augmenter to {fix}",
            )

    def weights(self, source: str) -> Any:
        """Return the weights for `transfer.pretrained` in a form that `SmartInit` accepts.

        Override this method if the weights have other names. Return arrays by variable name.

        Args:
            source: Value of `transfer.pretrained`.
        """
        return source

    def with_decay(self, cost: tf.Tensor) -> tf.Tensor:
        """Add the L2 penalty of `model.l2` and `model.l2_regex` to a cost.

        Args:
            cost: Scalar cost.
        """
        model = self.config.model
        if not model.l2:
            return cost
        return cost + regularize_cost(model.l2_regex, l2_regularizer(model.l2))

    def export_arguments(self) -> Mapping[str, Any]:
        """Return arguments of `towerpack.inference.export`, such as `preprocess`.

        `model` and `batch_examples` replace the exported model by one with the same variables.
        """
        return {}


class Reporting(Inferencer):
    """Base class of metrics that also write a report when an evaluation ends."""

    @abstractmethod
    def report(self, folder: Path) -> Sequence[Path]:
        """Write tables and images. Return their paths.

        Args:
            folder: Folder for the files.
        """

    def lines(self) -> Sequence[str]:
        """Return the lines of a text table for the console."""
        return []


class Display(ABC):
    """Base class for the presentation of inference results.

    Args:
        config: Configuration of the application.
        inputter: Data of the application.
    """

    def __init__(self, config: Any, inputter: Any) -> None:
        self.config, self.inputter = config, inputter

    @abstractmethod
    def row(self, outputs: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        """Return the results for a datapoint as values of a row in JSON and CSV files.

        Args:
            outputs: Outputs for the datapoint, by name.
        """

    def files(self, sample: Any, outputs: Mapping[str, np.ndarray]) -> Mapping[str, bytes]:
        """Return the contents of additional files by extension: `{'.txt': b'…'}`.

        Args:
            sample: Result of `Inputter.read`.
            outputs: Outputs for the sample, by name.
        """
        del sample, outputs
        return {}

    def draw(self, sample: Any, outputs: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """Draw the results on an image. Return uint8 [h, w, 3], or None.

        Args:
            sample: Result of `Inputter.read`.
            outputs: Outputs for the sample, by name.
        """
        del sample, outputs
        return None
