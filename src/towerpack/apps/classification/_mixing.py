"""MixUp and CutMix, which combine each image of a batch with another image."""

from __future__ import annotations

import tensorflow as tf

from towerpack.nn import get_current_tower_context


def mix_batch(
    image: tf.Tensor, target: tf.Tensor, mixup: float, cutmix: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Combine each image with the previous one in the batch, by MixUp or CutMix.

    MixUp: Zhang et al. 2018; CutMix: Yun et al. 2019. `mixup` and `cutmix` are parameters of Beta
        distributions, and 0 disables a method. Random numbers depend only on the run's seed and the
        step.
    """
    if not (mixup or cutmix):
        return image, target
    share = _beta(mixup or cutmix, "share")
    partner, its_target = tf.roll(image, 1, 0), tf.roll(target, 1, 0)
    blended = share * image + (1 - share) * partner
    if cutmix:
        box_share = _beta(cutmix, "box share")
        mask, image_share = _box(image, box_share)
        cut = tf.where(mask, partner, image)
        chosen = _uniform("which", []) < 0.5 if mixup else tf.constant(True)
        blended = tf.where(chosen, cut, blended)
        share = tf.where(chosen, image_share, share)
    return blended, share * target + (1 - share) * its_target


def _box(image: tf.Tensor, share: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the mask [h, w, 1] of a random box of area 1 - `share`, and the area outside."""
    height, width = (int(size or 0) for size in image.shape[1:3])
    side = tf.sqrt(1 - share)
    center = _uniform("centre", [2])  # the name is part of the seed

    def covered(size: int, middle: tf.Tensor) -> tf.Tensor:
        pixel = (tf.range(size, dtype=tf.float32) + 0.5) / size
        return tf.abs(pixel - middle) < side / 2

    mask = covered(height, center[0])[:, None] & covered(width, center[1])[None, :]
    return mask[:, :, None], 1 - tf.reduce_mean(tf.cast(mask, tf.float32))


def _seed(name: str) -> tf.Tensor:
    return get_current_tower_context().step_seed(f"mixing {name}")


def _uniform(name: str, shape: list[int]) -> tf.Tensor:
    return tf.random.stateless_uniform(shape, _seed(name))


def _beta(alpha: float, name: str) -> tf.Tensor:
    pair = tf.random.stateless_gamma([2], _seed(name), tf.constant(alpha))
    return pair[0] / tf.reduce_sum(pair)
