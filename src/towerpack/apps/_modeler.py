"""The model of a task, and what is made of its outputs."""

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
    """A `ModelDesc` that owns a network, and says how it is evaluated and exported.

    Subclasses also define `inputs` and `build_graph`, which exposes the outputs for `metrics`,
    `infer_outputs` and exports.

    Args:
        config: Configuration of the application.
        inputter: Data of the application.

    Attributes:
        best: The number whose best checkpoint is kept: `('val/error', 'min')`.
        infer_outputs: Outputs of inference and of exported models.
        portable_outputs: Outputs for formats other than SavedModel, if they cannot compute
            `infer_outputs`.
    """

    best: tuple[str, Mode] = ("val/cost", "min")
    infer_outputs: Sequence[str] = ()
    portable_outputs: Sequence[str] = ()

    def __init__(self, config: Any, inputter: Any) -> None:
        self.config = config
        self.inputter = inputter

    def optimizer(self) -> Any:
        """The one of the configuration."""
        return make_optimizer(self.config.optimizer)

    @abstractmethod
    def metrics(self) -> Sequence[Inferencer]:
        """What an evaluation computes; those with a `report` have more to say than numbers."""

    def for_inference(self) -> ModelDesc:
        """The model that gives `infer_outputs` of what `Inputter.prepare` makes: this one."""
        return self

    def pretrained(self) -> SmartInit | None:
        """Weights to start from, as the recipe's `transfer` says; None for none."""
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
        """Check that pixels become the numbers that weights were trained on.

        Only packaged networks, runs and checkpoints know these numbers; other weights pass.

        Raises:
            ConfigError: The numbers differ.
        """
        ours, name = getattr(self.inputter, "augmenter", None), os.fspath(source)
        pixels = np.random.default_rng(0).integers(0, 256, [2, 8, 8, 3], np.uint8)
        path = Path(name).expanduser()
        run = next((p for p in (path, *path.parents[:2]) if (p / RECIPE).is_file()), None)
        if ours is None or not hasattr(ours, "normalize"):
            return
        if name in PRETRAINED_PIXELS:
            offset, scale = PRETRAINED_PIXELS[name]
            wanted, rule = (pixels - offset) / scale, f"(pixels - {offset:g}) / {scale:g}"
            fix = "efficientnet_lite (ssd_lite for detection)"
        elif run is not None:
            if code_named_in(read_yaml(run / RECIPE)):
                _LOG.warning("%s names code: its pixels are not compared with ours.", run)
                return
            theirs = getattr(find_recipe(run).inputter(), "augmenter", None)
            if theirs is None or theirs is ours:
                return
            fix, wanted = theirs.name, theirs.normalize(tf.constant(pixels))
            rule = f"those of the augmenter '{fix}'"
        else:
            return
        if not np.allclose(ours.normalize(tf.constant(pixels)), wanted, atol=1e-3):
            raise ConfigError(
                f"The weights of {name} were trained on other numbers for the same pixels.",
                got=f"the augmenter '{ours.name}'",
                expected=rule,
                fix=f"set data.augmenter to {fix}",
            )

    def weights(self, source: str) -> Any:
        """Source of `SmartInit` for the recipe's `transfer.pretrained`: here the same.

        A network whose weights others name otherwise gives a dict of arrays by our names.
        """
        return source

    def with_decay(self, cost: tf.Tensor) -> tf.Tensor:
        """Add the cost of large weights, as `model.l2` and `model.l2_regex` say."""
        model = self.config.model
        if not model.l2:
            return cost
        return cost + regularize_cost(model.l2_regex, l2_regularizer(model.l2))

    def export_arguments(self) -> Mapping[str, Any]:
        """Return arguments of `towerpack.inference.export` that replace or extend the usual ones.

        Examples are `preprocess` and `class_names`; `model` and `batch_examples` export another
        model with the same variables.
        """
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
    """Show what inference makes of a datapoint. Arguments as of `Modeler`."""

    def __init__(self, config: Any, inputter: Any) -> None:
        self.config, self.inputter = config, inputter

    @abstractmethod
    def row(self, outputs: Mapping[str, np.ndarray]) -> Mapping[str, Any]:
        """Plain values for JSON and CSV, from the outputs for one datapoint."""

    def files(self, sample: Any, outputs: Mapping[str, np.ndarray]) -> Mapping[str, bytes]:
        """Return contents of files beside the picture, by ending: `{'.txt': b'…'}`."""
        del sample, outputs
        return {}

    def draw(self, sample: Any, outputs: Mapping[str, np.ndarray]) -> np.ndarray | None:
        """Return an annotated picture, uint8 [h, w, 3], of what `Inputter.read` gave; or None."""
        del sample, outputs
        return None
