"""Faster R-CNN and Mask R-CNN with a feature pyramid.

Ren et al. 2017, He et al. 2017 and Lin et al. 2017, with the numbers of torchvision's
`maskrcnn_resnet50_fpn`. Variables have Tensorpack's names. `from_torch` converts weights of
torchvision. Variables of the backbone `efficientnet-lite0` have the names of the packaged weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from towerpack._core.errors import CheckpointError, ConfigError
from towerpack.nn import (
    BatchNorm,
    BNReLU,
    Conv2D,
    Conv2DTranspose,
    FullyConnected,
    MaxPooling,
    argscope,
    auto_reuse_scope,
    freeze_variables,
    frozen_statistics,
    get_current_tower_context,
    scope,
)
from towerpack.nn.scopes import full_name
from towerpack.ops import proposals as rcnn
from towerpack.ops.anchors import corner_anchors
from towerpack.ops.matching import assign, sample
from towerpack.ops.roi_align import mask_targets, roi_align
from towerpack.zoo import PRETRAINED_PIXELS, efficientnet_lite

MEAN: Final = (0.485, 0.456, 0.406)
"""Mean of ImageNet's pixels in RGB, as fractions of 255."""

STD: Final = (0.229, 0.224, 0.225)
"""Standard deviation of ImageNet's pixels in RGB, as fractions of 255."""

_STRIDE: Final = 32
_BACKBONES: Final = {"resnet50": (256, 1024), "efficientnet-lite0": (96, 256)}


class _Features(NamedTuple):
    """Feature maps of strides 4 to 32, and predictions for the anchors of strides 4 to 64."""

    maps: list[tf.Tensor]
    logits: list[tf.Tensor]
    offsets: list[tf.Tensor]
    anchors: list[tf.Tensor]


@dataclass(frozen=True, kw_only=True)
class MaskRCNN:
    """Network that detects objects and their masks. Call its methods in a tower.

    Both methods use the same variables, and compute the features of an image only once.

    Attributes:
        num_classes: Number of classes without the background.
        backbone: 'resnet50' (strides in the 3x3 convolutions), or 'efficientnet-lite0' for CPUs.
        masks: Whether to predict masks; False for Faster R-CNN.
        cascade: Not supported; must be False.
        frozen_batch_norm: Whether the backbone's batch normalization keeps its variables, which
            must then come from pretrained weights.
        channels, units: Channels of the pyramid and the mask head, and units of the box head; None
            for 256 and 1024, or 96 and 256 with the small backbone.
        anchor_sides, anchor_ratios: Square roots of the anchors' areas in pixels for the strides 4
            to 64, and ratios of height to width.
        anchors_before, proposals: Boxes per level before suppression, and per image after
            suppression; each in training and in detection.
        anchor_samples, box_samples: Anchors and proposals per image in the losses; each with the
            maximum fraction of objects.
        anchor_iou: Overlap up to which an anchor is background, and from which it has an object.
        box_iou: Overlap from which a proposal has an object.
        score, detections_per_image: Minimum score, and maximum number of detections.
        proposal_iou, suppress: Proposals, and detections of a class, that overlap a better one more
            than this are removed.

    Raises:
        ConfigError: The backbone is not known, `anchor_sides` are not five, or `cascade` is set.
    """

    num_classes: int
    backbone: str = "resnet50"
    masks: bool = True
    cascade: bool = False
    frozen_batch_norm: bool = True
    channels: int | None = None
    units: int | None = None
    anchor_sides: tuple[float, ...] = (32, 64, 128, 256, 512)
    anchor_ratios: tuple[float, ...] = (0.5, 1.0, 2.0)
    proposals: tuple[int, int] = (2000, 1000)
    anchors_before: tuple[int, int] = (2000, 1000)
    proposal_iou: float = 0.7
    anchor_samples: tuple[int, float] = (256, 0.5)
    anchor_iou: tuple[float, float] = (0.3, 0.7)
    box_samples: tuple[int, float] = (512, 0.25)
    box_iou: float = 0.5
    score: float = 0.05
    suppress: float = 0.5
    detections_per_image: int = 100

    def __post_init__(self) -> None:
        if self.backbone not in _BACKBONES:
            raise ConfigError(
                f"The backbone of MaskRCNN must be known, got {self.backbone!r}.",
                fix=f"choose one of {', '.join(_BACKBONES)}",
            )
        if self.cascade:
            raise ConfigError("MaskRCNN does not support cascade.", fix="set cascade=False")
        if len(self.anchor_sides) != 5:
            number = len(self.anchor_sides)
            raise ConfigError(f"MaskRCNN needs anchor_sides for 5 strides, got {number}.")

    def losses(
        self,
        image: tf.Tensor,
        true_boxes: tf.Tensor,
        true_class_ids: tf.Tensor,
        crowd: tf.Tensor,
        true_masks: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        """Return the losses `rpn_class`, `rpn_box`, `box_class`, `box` and `mask`: scalars.

        Args:
            image: RGB images, (pixels / 255 - MEAN) / STD, float32 [n, h, w, 3].
            true_boxes: Boxes of objects in pixels, float32 [n, m, 4].
            true_class_ids: int32 [n, m], -1 in unused rows.
            crowd: bool [n, m]: boxes around several objects, which are not learned.
            true_masks: Masks of the objects, 0 or 255, scaled to s x s pixels from their boxes,
                uint8 [n, m, s, s]. Not used by Faster R-CNN.
        """
        features = self._features(image)
        # One unused row, because there may be no objects.
        true_boxes = tf.pad(true_boxes, [[0, 0], [0, 1], [0, 0]])
        true_class_ids = tf.pad(true_class_ids, [[0, 0], [0, 1]], constant_values=-1)
        truth = true_boxes, true_class_ids, tf.pad(crowd, [[0, 0], [0, 1]])

        anchors, (low, high) = tf.concat(features.anchors, axis=0), self.anchor_iou
        found = assign(anchors, *truth, low=low, high=high, best=True)
        where, ids, which, boxes = _drawn("anchors", found, self.anchor_samples, anchors)
        logits, offsets = (
            tf.gather(tf.concat(parts, axis=1), where, batch_dims=1)
            for parts in (features.logits, features.offsets)
        )
        coded = rcnn.encoded_targets(boxes, true_boxes, which, ids >= 0, rcnn.PROPOSAL_VARIANCES)
        rpn_class, rpn_box = rcnn.proposal_losses(logits, offsets, coded, ids)

        single = (true_class_ids >= 0) & tf.logical_not(truth[2])
        own = tf.where(tf.expand_dims(single, -1), true_boxes, 0.0)
        boxes = tf.concat([self._proposals(features, _sizes(image), 0), own], axis=1)
        found = assign(boxes, *truth, low=self.box_iou, high=self.box_iou)
        _, ids, which, boxes = _drawn("boxes", found, self.box_samples, boxes)
        logits, offsets = self._box_head(features.maps, boxes)
        coded = rcnn.encoded_targets(boxes, true_boxes, which, ids >= 0, rcnn.BOX_VARIANCES)
        box_class, box = rcnn.box_losses(logits, offsets, coded, ids)
        losses = {"rpn_class": rpn_class, "rpn_box": rpn_box, "box_class": box_class, "box": box}
        if self.masks:
            # Samples with an object come first.
            most = int(self.box_samples[0] * self.box_samples[1])
            boxes, which, ids = boxes[:, :most], which[:, :most], ids[:, :most]
            masks = self._mask_head(features.maps, boxes)
            pixels = tf.pad(true_masks, [[0, 0], [0, 1], [0, 0], [0, 0]])
            goals = mask_targets(pixels, true_boxes, which, boxes, 28)
            losses["mask"] = rcnn.mask_loss(masks, goals, ids)
        return losses

    def detect(self, image: tf.Tensor, sizes: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        """Return the detections of each image by descending score.

        Returns `boxes` float32 [n, k, 4] in pixels, `scores` [n, k], `class_ids` int32 [n, k] from
        0, and `masks` [n, k, 28, 28]: the probability of the object in each cell of its box.
        Missing detections have the score 0, the class -1, and boxes and masks of zeros.

        Args:
            image: Same as for `losses`.
            sizes: Height and width of each image without its padding, int32 [n, 2]; None for the
                whole image.
        """
        features = self._features(image)
        sizes = _sizes(image) if sizes is None else sizes
        rois = self._proposals(features, sizes, 1)
        limits = {"score_threshold": self.score, "iou_threshold": self.suppress}
        limits["max_detections"] = self.detections_per_image
        logits, offsets = self._box_head(features.maps, rois)
        best = rcnn.detections(logits, offsets, rois, sizes, **limits)
        result = dict(best._asdict())
        if self.masks:
            masks = tf.sigmoid(self._mask_head(features.maps, best.boxes))
            result["masks"] = rcnn.mask_of_class(masks, best.class_ids)
        return result

    def _features(self, image: tf.Tensor) -> _Features:
        called = get_current_tower_context().called
        key = id(self), full_name(), image.ref()
        if key not in called:
            called[key] = self._computed(image)
        return called[key]

    @auto_reuse_scope
    def _computed(self, image: tf.Tensor) -> _Features:
        missing: Any = tf.math.floormod(-tf.shape(image)[1:3], _STRIDE)
        x = tf.pad(image, [[0, 0], [0, missing[0]], [0, missing[1]], [0, 0]])
        with _frozen(self.frozen_batch_norm):
            small = self.backbone != "resnet50"
            stages = efficientnet_lite.backbone(_small_pixels(x))[1:] if small else _resnet50(x)
        maps = self._pyramid(stages)
        logits, offsets, anchors = [], [], []
        height, width = tf.unstack(tf.shape(x)[1:3])
        for side, level in zip(self.anchor_sides, [*maps, maps[-1][:, ::2, ::2]], strict=True):
            rows, columns = tf.unstack(tf.shape(level)[1:3])
            size = height, width
            anchors.append(corner_anchors(rows, columns, size, side, self.anchor_ratios))
            scores, moves = self._proposal_head(level)
            logits.append(scores)
            offsets.append(moves)
        return _Features(maps, logits, offsets, anchors)

    def _pyramid(self, stages: list[tf.Tensor]) -> list[tf.Tensor]:
        maps: list[tf.Tensor] = []
        above: Any = None
        channels, _ = self._widths()
        with scope("fpn"), argscope(Conv2D, kernel_initializer=_initial("fan_in", 1.0)):
            for number, x in reversed([*enumerate(stages, 2)]):
                x = Conv2D(f"lateral_1x1_c{number}", x, channels, 1)
                above = x if above is None else x + _doubled(above)
                maps.insert(0, Conv2D(f"posthoc_3x3_p{number}", above, channels, 3))
        return maps

    @auto_reuse_scope
    def _proposal_head(self, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        number, (channels, _) = len(self.anchor_ratios), self._widths()
        with scope("rpn"), argscope(Conv2D, kernel_initializer=_small(0.01)):
            x = Conv2D("conv0", x, channels, 3, activation="relu")
            logits, offsets = Conv2D("class", x, number, 1), Conv2D("box", x, 4 * number, 1)
        shape: Any = tf.shape(x)
        flat = shape[0], shape[1] * shape[2] * number
        logits, offsets = tf.reshape(logits, flat), tf.reshape(offsets, [*flat, 4])
        return tf.cast(logits, tf.float32), tf.cast(offsets, tf.float32)

    @auto_reuse_scope
    def _box_head(self, maps: list[tf.Tensor], boxes: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        (channels, units), number = self._widths(), self.num_classes + 1
        # Channels first, because the weights of others are in this order.
        x = tf.reshape(roi_align(maps, boxes, 7), [-1, 49, channels])
        x = tf.reshape(tf.transpose(x, [0, 2, 1]), [-1, 49 * channels])
        with scope("fastrcnn"):
            for name in ("fc6", "fc7"):
                initial = _initial("fan_in", 1 / 3)
                x = FullyConnected(name, x, units, activation="relu", kernel_initializer=initial)
            logits = FullyConnected("outputs/class", x, number, kernel_initializer=_small(0.01))
            offsets = FullyConnected("outputs/box", x, 4 * number, kernel_initializer=_small(0.001))
        flat = tf.unstack(tf.shape(boxes)[:2])
        logits, offsets = tf.cast(logits, tf.float32), tf.cast(offsets, tf.float32)
        return tf.reshape(logits, [*flat, number]), tf.reshape(offsets, [*flat, number, 4])

    @auto_reuse_scope
    def _mask_head(self, maps: list[tf.Tensor], boxes: tf.Tensor) -> tf.Tensor:
        channels, _ = self._widths()
        x = tf.reshape(roi_align(maps, boxes, 14), [-1, 14, 14, channels])
        with (
            scope("maskrcnn"),
            argscope([Conv2D, Conv2DTranspose], kernel_initializer=_initial("fan_out", 2.0)),
        ):
            for number in range(4):
                x = Conv2D(f"fcn{number}", x, channels, 3, activation="relu")
            x = Conv2DTranspose("deconv", x, channels, 2, strides=2, activation="relu")
            x = Conv2D("conv", x, self.num_classes, 1, kernel_initializer=_small(0.001))
        x = tf.cast(x, tf.float32)
        return tf.reshape(x, [*tf.unstack(tf.shape(boxes)[:2]), 28, 28, self.num_classes])

    def _widths(self) -> tuple[int, int]:
        channels, units = _BACKBONES[self.backbone]
        return self.channels or channels, self.units or units

    def _proposals(self, features: _Features, sizes: tf.Tensor, use: int) -> tf.Tensor:
        predicted = features.logits, features.offsets, features.anchors, sizes
        before, after, iou = self.anchors_before[use], self.proposals[use], self.proposal_iou
        return rcnn.propose(*predicted, before=before, after=after, iou_threshold=iou)


def _drawn(
    name: str, found: tuple[tf.Tensor, tf.Tensor], samples: tuple[int, float], boxes: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    """Return indices, classes (-2 if not used), objects and boxes of random samples, [n, s]."""
    seed = get_current_tower_context().step_seed(full_name(f"sampled_{name}"))
    noise = tf.random.stateless_uniform(tf.shape(found[0]), seed)
    where, counts = sample(found[0], noise, size=samples[0], positives=samples[1])
    ids, which = (tf.gather(x, where, batch_dims=1) for x in found)
    ids = tf.where(counts, ids, tf.constant(-2, tf.int64))
    return where, ids, which, tf.gather(boxes, where, batch_dims=boxes.shape.rank - 2)


def _sizes(image: tf.Tensor) -> tf.Tensor:
    shape = tf.shape(image)
    return tf.broadcast_to(shape[1:3], [shape[0], 2])


@contextmanager
def _frozen(frozen: bool) -> Iterator[None]:
    if not frozen:
        yield
        return
    with frozen_statistics(".*"), freeze_variables(".*/(gamma|beta)", skip_collection=True):
        yield


def _initial(mode: str, scale: float) -> Any:
    return keras.initializers.VarianceScaling(scale, mode, "untruncated_normal")


def _small(deviation: float) -> Any:
    return keras.initializers.RandomNormal(stddev=deviation)


def _small_pixels(image: tf.Tensor) -> tf.Tensor:
    """Convert pixels to the normalization of the packaged weights."""
    offset, scale = PRETRAINED_PIXELS["efficientnet-lite0"]
    mean, std = np.array(MEAN, np.float32), np.array(STD, np.float32)
    return image * (255 / scale * std) + (255 * mean - offset) / scale


def _doubled(x: tf.Tensor) -> tf.Tensor:
    """Double height and width by nearest neighbor, with a gradient that is deterministic."""

    @tf.custom_gradient
    def double(x: tf.Tensor) -> Any:
        def gradient(dy: tf.Tensor) -> tf.Tensor:
            return 4 * tf.nn.avg_pool2d(dy, 2, 2, "VALID")

        return tf.image.resize(x, 2 * tf.shape(x)[1:3], "nearest"), gradient

    return double(x)


def _resnet50(image: tf.Tensor) -> list[tf.Tensor]:
    """Return the feature maps of ResNet-50 at strides 4, 8, 16 and 32."""
    stages = []
    with argscope(Conv2D, use_bias=False, padding="valid", activation=BNReLU):
        x = Conv2D("conv0", _padded(image, 3), 64, 7, strides=2)
        x = MaxPooling("pool0", _padded(x, 1), 3, strides=2)
        for group, blocks in enumerate((3, 4, 6, 3)):
            for block in range(blocks):
                strides = 2 if group and not block else 1
                with scope(f"group{group}/block{block}"):
                    x = _bottleneck(x, 64 * 2**group, strides, shortcut=not block)
            stages.append(x)
    return stages


def _bottleneck(x: tf.Tensor, filters: int, strides: int, *, shortcut: bool) -> tf.Tensor:
    y = Conv2D("conv1", x, filters, 1)
    y = Conv2D("conv2", _padded(y, 1), filters, 3, strides=strides)
    with argscope(Conv2D, activation=_normal):
        y = Conv2D("conv3", y, 4 * filters, 1)
        x = Conv2D("convshortcut", x, 4 * filters, 1, strides=strides) if shortcut else x
    return tf.nn.relu(x + y)


def _normal(x: tf.Tensor) -> tf.Tensor:
    return BatchNorm("bn", x)


def _padded(x: tf.Tensor, border: int) -> tf.Tensor:
    return tf.pad(x, [[0, 0], [border, border], [border, border], [0, 0]])


# Names of torchvision's modules, and names here.
_MODULES: Final = {
    r"backbone\.body\.": "",
    r"backbone\.fpn\.inner_blocks\.(\d)(\.0)?": lambda m: f"fpn/lateral_1x1_c{int(m[1]) + 2}",
    r"backbone\.fpn\.layer_blocks\.(\d)(\.0)?": lambda m: f"fpn/posthoc_3x3_p{int(m[1]) + 2}",
    r"layer(\d)\.(\d+)\.": lambda m: f"group{int(m[1]) - 1}/block{m[2]}/",
    r"bn(\d)$": r"conv\1/bn",
    r"^conv1": "conv0",
    r"downsample\.0": "convshortcut",
    r"downsample\.1": "convshortcut/bn",
    r"rpn\.head\.conv(\.0\.0)?": "rpn/conv0",
    r"rpn\.head\.": "rpn/",
    r"roi_heads\.box_head\.": "fastrcnn/",
    r"roi_heads\.box_predictor\.": "fastrcnn/outputs/",
    r"cls_(score|logits)": "class",
    r"bbox_pred": "box",
    r"roi_heads\.mask_head\.mask_fcn(\d)": lambda m: f"maskrcnn/fcn{int(m[1]) - 1}",
    r"roi_heads\.mask_head\.(\d)\.0": r"maskrcnn/fcn\1",
    r".*conv5_mask": "maskrcnn/deconv",
    r".*mask_fcn_logits": "maskrcnn/conv",
}
_KINDS: Final = {
    "weight": "kernel",
    "running_mean": "moving_mean",
    "running_var": "moving_variance",
}
_NORMALS: Final = {"weight": "gamma", "bias": "beta"}


def from_torch(
    weights: Mapping[str, np.ndarray], *, epsilon: float = 1e-5
) -> dict[str, np.ndarray]:
    """Convert weights of torchvision to the variable names and shapes of `MaskRCNN`.

    Accepts `maskrcnn_resnet50_fpn`, `fasterrcnn_resnet50_fpn` and `resnet50`.

    Args:
        weights: Result of `read_torch_file`.
        epsilon: Epsilon of the batch normalization of these weights. It is 0 for torchvision's
            detectors trained on COCO (`COCO_V1`).

    Raises:
        CheckpointError: The weights belong to another network.
    """
    arrays: dict[str, np.ndarray] = {}
    for name, value in weights.items():
        module, _, kind = name.rpartition(".")
        if kind == "num_batches_tracked":
            continue
        for old, new in _MODULES.items():
            module = re.sub(old, new, module)
        kinds = _KINDS | _NORMALS if module.endswith("/bn") else _KINDS
        if kind == "running_var":
            value = value + np.float32(epsilon - 1e-5)
        if module == "maskrcnn/conv":
            value = value[1:]  # without the background
        value = value.transpose(2, 3, 1, 0) if value.ndim == 4 else value.T
        arrays[f"{module}/{kinds.get(kind, kind)}"] = value
    if not any(name.startswith(("group", "fpn/", "rpn/", "fastrcnn/")) for name in arrays):
        raise CheckpointError(
            "The file must contain weights of torchvision's ResNet-50 or Mask R-CNN.",
            got=", ".join([*weights][:6]),
            expected="'backbone.body.layer1.0.conv1.weight' …, or 'layer1.0.conv1.weight' …",
        )
    return arrays
