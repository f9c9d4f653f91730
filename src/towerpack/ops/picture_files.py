"""From an image file to a picture as operations of a graph: what `decode_image` does on the host.

TensorFlow decodes JPEGs by a faster, less exact transform unless it is told otherwise (up to 18 of
255 apart on photographs), and knows nothing of EXIF, by which cameras say what is up.
"""

from __future__ import annotations

import tensorflow as tf

_SEARCHED = 1 << 12  # bytes: the EXIF block comes first, and what it says of the picture, too
_EXIF = list(b"Exif\0\0")
_LITTLE, _BIG = list(b"II*\0"), list(b"MM\0*")
_ORIENTATION, _SHORT = 0x0112, 3


def picture_of(file: tf.Tensor) -> tf.Tensor:
    """The picture, uint8 [h, w, 3], of a JPEG, PNG, WebP, GIF or BMP; JPEGs upright.

    Args:
        file: What is in the file, a scalar.
    """

    def jpeg() -> tf.Tensor:
        # As libjpeg-turbo does by default, and with it the library's own decoder.
        stored = tf.io.decode_jpeg(file, channels=3, dct_method="INTEGER_ACCURATE")
        return _turned(stored, _orientation(file))

    def other() -> tf.Tensor:
        return tf.io.decode_image(file, channels=3, expand_animations=False)

    return tf.ensure_shape(tf.cond(tf.io.is_jpeg(file), jpeg, other), [None, None, 3])


def _turned(picture: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    """Upright, as EXIF's orientation (1 to 8) says."""
    along = tf.reduce_any(orientation == tf.constant([2, 3, 6, 7]))
    down = tf.reduce_any(orientation == tf.constant([3, 4, 7, 8]))

    def transposed() -> tf.Tensor:
        # Not by tf.transpose: of uint8 it says on standard error that oneDNN has none.
        h, w = tf.unstack(tf.shape(picture)[:2])
        places = tf.range(w)[:, None] + w * tf.range(h)
        return tf.gather(tf.reshape(picture, [-1, 3]), places)

    upright = tf.cond(orientation > 4, transposed, lambda: picture)
    return tf.reverse(upright, tf.boolean_mask([0, 1], tf.stack([down, along])))


def _orientation(file: tf.Tensor) -> tf.Tensor:
    """EXIF's orientation of a JPEG; 1 where there is none, or a damaged one."""
    start = tf.strings.substr(file, 0, _SEARCHED)
    data = tf.cast(tf.io.decode_raw(start, tf.uint8), tf.int32)
    data = tf.pad(data, [[0, _SEARCHED - tf.size(data)]])
    found = tf.reduce_all(tf.signal.frame(data[:-16], len(_EXIF), 1) == _EXIF, axis=1)
    block = data[tf.argmax(found, output_type=tf.int32) + len(_EXIF) :]
    little = tf.reduce_all(block[:4] == _LITTLE)
    last = tf.size(block) - 2

    def number(at: tf.Tensor) -> tf.Tensor:
        at = tf.minimum(at, last)  # damaged blocks point anywhere
        low, high = tf.gather(block, at), tf.gather(block, at + 1)
        return tf.where(little, low + 256 * high, 256 * low + high)

    # Of the four bytes of an offset in 64 KiB two are zero.
    directory = number(tf.where(little, 4, 6))
    entries = directory + 2 + 12 * tf.range(tf.minimum(number(directory), _SEARCHED // 12))
    right = (number(entries) == _ORIENTATION) & (number(entries + 2) == _SHORT)
    value = number(tf.concat([tf.boolean_mask(entries, right), [last]], 0)[0] + 8)
    whole = tf.reduce_any(found) & (little | tf.reduce_all(block[:4] == _BIG))
    known = whole & tf.reduce_any(right) & (value >= 1) & (value <= 8)
    return tf.where(known, value, 1)
