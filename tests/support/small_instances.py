"""A network with the methods of `MaskRCNN` that learns only sizes of boxes, in no time."""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

from towerpack.nn import Conv2D, FullyConnected


@dataclass(frozen=True)
class Net:
    num_classes: int
    backbone: str
    masks: bool
    found: tuple[int, ...] = (1, 0)  # two boxes, the second one with the score 0

    def losses(
        self,
        image: tf.Tensor,
        true_boxes: tf.Tensor,
        true_class_ids: tf.Tensor,
        crowd: tf.Tensor,
        true_masks: tf.Tensor,
    ) -> dict[str, tf.Tensor]:
        wrong = tf.reduce_mean(tf.abs(self._corner(image) - true_boxes[:, 0, 2:]))
        used = tf.cast((true_class_ids >= 0) & tf.logical_not(crowd), tf.float32)
        filled = tf.reduce_mean(tf.cast(true_masks, tf.float32), (2, 3)) / 255
        return {"box": wrong, "mask": 0.01 * tf.reduce_sum(used * filled)}

    def detect(self, image: tf.Tensor, sizes: tf.Tensor) -> dict[str, tf.Tensor]:
        corner = tf.clip_by_value(self._corner(image), 20.0, tf.cast(sizes[:, ::-1], tf.float32))
        there = tf.broadcast_to(tf.constant(self.found), [tf.shape(image)[0], 2])
        scores = tf.cast(there, tf.float32)
        box = tf.concat([tf.zeros_like(corner), corner], 1)[:, None]
        masks = tf.ones([*tf.unstack(tf.shape(there)), 28, 28]) * scores[..., None, None]
        return {
            "boxes": box * scores[..., None],
            "scores": scores * 0.9,
            "class_ids": there * 2 - 1,
            "masks": masks,
        }

    def _corner(self, image: tf.Tensor) -> tf.Tensor:
        x = Conv2D("conv", image, 8, 3, strides=4, activation=tf.nn.relu)
        return FullyConnected("corner", tf.reduce_mean(x, (1, 2)), 2) + 50.0
