"""MixUp and CutMix: maps of batches in which images, and their labels, are mixed by pairs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from towerpack._core.errors import ConfigError
from towerpack.dataflow._arguments import integer_of
from towerpack.dataflow._datapoints import Datapoint, describe, replaced
from towerpack.dataflow.images._arguments import Probability, check_arguments, number
from towerpack.dataflow.images._augmentor import RNG
from towerpack.dataflow.images._image import Image, opencv
from towerpack.dataflow.images._stages import component_of

Ratios = NDArray[np.float32]


@dataclass(eq=False, repr=False)
class BatchMix(ABC):
    """Base of maps that mix every image of a batch with another one of the batch.

    Use it after `BatchData`: `MapData(ds, MixUp(num_classes=10), rng=True)`. Every image has a
    partner, by a random permutation of the batch, and a ratio of its own, drawn from
    Beta(alpha, alpha).

    Contract: a function of the batch and the generator; does not change the batch that it gets;
    thread-safe; pickles.

    Args:
        alpha: 1 makes all ratios as likely as each other; below, one of both images prevails.
        num_classes: Makes [n, num_classes] of whole-numbered labels. Labels that are float
            [n, classes] already need none.
        prob: How likely an image is to be mixed at all.
        labels: "soft" for labels mixed as the images are, [n, classes], float32 if they were whole
            numbers and else of the dtype that they had; "pair" for
            whole-numbered labels as they are, and two more components at the end (in a dict:
            "partner_label" and "ratio"): those of the partners, and how much, float32 [n], is left
            of the images themselves. The loss is then `ratio * loss(a) + (1 - ratio) * loss(b)`.
        image: Which component is the images, [n, height, width] or [n, height, width, channels],
            uint8 or float32.
        label: Which component is the labels.
    """

    alpha: Annotated[float, number(above=0)] = 1.0
    num_classes: Annotated[int | None, integer_of] = None
    _: KW_ONLY
    prob: Probability = 1.0
    labels: Literal["soft", "pair"] = "soft"
    image: Hashable = 0
    label: Hashable = 1

    def __post_init__(self) -> None:
        check_arguments(self)
        if self.labels not in ("soft", "pair"):
            raise ConfigError(f"There is no labels={self.labels!r}.", expected='"soft" or "pair"')

    @abstractmethod
    def mix(
        self, images: Image, partners: NDArray[np.int64], ratios: Ratios, rng: RNG
    ) -> tuple[Image, Ratios]:
        """New images, and how much is left of the original ones.

        Args:
            images: A batch; not to be changed.
            partners: Which image each of them is mixed with.
            ratios: How much should be left of each; 1 is everything.
            rng: What else is random.
        """

    def __call__(self, batch: Datapoint, rng: RNG | None = None) -> Datapoint:
        """Mix one batch.

        Args:
            batch: Of images and labels.
            rng: What draws; `MapData(..., rng=True)` gives it.

        Raises:
            ConfigError: The images or labels are not as they should be, or there is no generator.
        """
        if rng is None or not isinstance(cast("object", rng), np.random.Generator):
            fix = None if rng is not None else f"MapData(ds, {type(self).__name__}(...), rng=True)"
            raise self._refused("draws a number for each image of a batch", fix=fix)
        images, labels = self._parts(batch)
        count = len(images)
        partners = rng.permutation(count)
        ratios = rng.beta(self.alpha, self.alpha, count).astype(np.float32)
        ratios[rng.random(count) >= self.prob] = 1
        mixed, left = self.mix(images, partners, ratios, rng)
        if self.labels == "pair":
            return self._put(batch, mixed, labels, labels[partners], left)
        soft = soft_labels(labels, self.num_classes)
        own = left.reshape(-1, 1).astype(soft.dtype)
        return self._put(batch, mixed, soft * own + soft[partners] * (1 - own))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.alpha})"

    def _parts(self, batch: Datapoint) -> tuple[NDArray[Any], NDArray[Any]]:
        """The images and labels of a batch, checked."""
        arrays: list[NDArray[Any]] = []
        for index in (self.image, self.label):
            part = component_of(batch, index, "mix", "image=..., label=... say which are")
            try:
                arrays.append(np.asarray(part))
            except ValueError as error:  # a list of different shapes
                kinds = " and ".join(dict.fromkeys(describe(item) for item in part))
                raise self._refused("mixes nothing that differs in shape", kinds) from error
        images, labels = arrays
        if (
            images.ndim not in (3, 4)
            or images.dtype.name not in ("uint8", "float32")
            or labels.shape[:1] != images.shape[:1]
        ):
            raise self._refused(
                "mixes images and labels of a batch, and these are none",
                f"images {describe(images)}, labels {describe(labels)}",
            )
        return images, labels

    def _refused(self, why: str, got: str | None = None, fix: str | None = None) -> ConfigError:
        after = f"MapData(BatchData(ds, n), {type(self).__name__}(...), rng=True)"
        return ConfigError(
            f"{type(self).__name__} {why}.",
            got=got,
            expected="images [n, height, width] or [n, height, width, channels], uint8 or float32, "
            "and n labels",
            fix=fix or f"{after}; image=..., label=... say which components they are",
        )

    def _put(self, batch: Datapoint, images: Image, labels: Any, *more: Any) -> Datapoint:
        changed = {self.image: images, self.label: labels}
        if isinstance(batch, dict):
            changed |= zip(("partner_label", "ratio"), more, strict=False)
            return replaced(cast("Any", batch), changed)
        mixed = replaced(batch, changed)
        if not more:
            return mixed
        return [*mixed, *more] if isinstance(batch, list) else (*mixed, *more)


class MixUp(BatchMix):
    """Blends every image of a batch with another one, and their labels.

    Zhang et al. 2017, https://arxiv.org/abs/1710.09412; 0.2 is their alpha for ImageNet.

    Contract: as `BatchMix`. uint8 images stay uint8, rounded.
    """

    def mix(
        self, images: Image, partners: NDArray[np.int64], ratios: Ratios, rng: RNG
    ) -> tuple[Image, Ratios]:
        if not len(images):
            return images, ratios
        cv2 = opencv()
        mixed = np.empty(images.shape, images.dtype)
        rows = images.reshape(len(images), images.shape[1], -1)
        out = mixed.reshape(rows.shape)
        for i, (partner, ratio) in enumerate(zip(partners.tolist(), ratios.tolist(), strict=True)):
            # Row by row: NumPy would make floats of the whole batch, three times.
            cv2.addWeighted(rows[i], ratio, rows[partner], 1 - ratio, 0, dst=out[i])
        return mixed, ratios


class CutMix(BatchMix):
    """Pastes a rectangle of another image into every image of a batch, and mixes their labels.

    Yun et al. 2019, https://arxiv.org/abs/1905.04899. The rectangle has the image's shape, and its
    centre is anywhere in the image. Labels are mixed by the pixels that are really left, which are
    more than the ratio says where the rectangle leaves the image.

    Contract: as `BatchMix`.
    """

    def mix(
        self, images: Image, partners: NDArray[np.int64], ratios: Ratios, rng: RNG
    ) -> tuple[Image, Ratios]:
        height, width = images.shape[1:3]
        side = np.sqrt(1 - ratios)
        top, bottom = _span(height, side, rng)
        left, right = _span(width, side, rng)
        mixed = images.copy()
        for i, partner in enumerate(partners.tolist()):
            part = np.s_[top[i] : bottom[i], left[i] : right[i]]
            mixed[i][part] = images[partner][part]
        cut = (bottom - top) * (right - left)
        return mixed, (1 - cut / (height * width)).astype(np.float32)


def soft_labels(labels: NDArray[Any], num_classes: int | None) -> NDArray[Any]:
    """Labels as float [n, classes]: whole numbers become 1 in their column.

    Raises:
        ConfigError: They are whole numbers, and `num_classes` is missing or too small.
    """
    if labels.dtype.kind == "f" and labels.ndim == 2:
        return labels
    if labels.dtype.kind not in "iu" or labels.ndim != 1 or num_classes is None:
        raise ConfigError(
            f"Labels that are {describe(labels)} cannot be mixed.",
            expected="whole numbers [n] and num_classes=, or floats [n, classes]",
            fix='give num_classes, or labels="pair" to get both labels and the ratio',
        )
    if len(labels) and not 0 <= labels.min() <= labels.max() < num_classes:
        wrong = labels.min() if labels.min() < 0 else labels.max()
        raise ConfigError(f"There is a label {wrong}.", expected=f"0 to {num_classes - 1}")
    soft = np.zeros((len(labels), num_classes), np.float32)
    soft[np.arange(len(labels)), labels] = 1
    return soft


def _span(size: int, fraction: Ratios, rng: RNG) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """First pixels and ends of intervals of a length about a random centre, as far as inside."""
    length = (size * fraction).astype(np.int64)
    first = rng.integers(size, size=len(fraction)) - length // 2
    return np.maximum(first, 0), np.minimum(first + length, size)
