"""Decoding of image files as graph operations, with the same results as `decode_image`.

By default, TensorFlow decodes JPEG less exactly (differences of up to 18 of 255 on photographs) and
ignores the EXIF orientation. It reads indices of a BMP as gray levels and transparent pixels of a
GIF as black, and crashes on animated WebP files (2.21). The graph rejects such files.
"""

from typing import Any

import tensorflow as tf

_SEARCHED = 1 << 12  # Size of the searched part of an EXIF block in bytes
# A WebP's block size, or a repeated mark of some programs, may come first.
_EXIF_BLOCK = r"^(?:\C{4})?(?:Exif\x00\x00)?(II\*\x00|MM\x00\*)"
_LITTLE = list(b"II*\0")
_ORIENTATION, _SHORT = 0x0112, 3


def picture_of(file: tf.Tensor) -> tf.Tensor:
    """Decode a JPEG, PNG, WebP, GIF or BMP file to an upright image, uint8 [h, w, 3].

    The graph fails with a reason for files that TensorFlow decodes differently from `decode_image`.

    Args:
        file: Content of the file, a scalar string.
    """
    start = _bytes_of(file, 32)

    def has(text: bytes, position: int = 0) -> tf.Tensor:
        return tf.reduce_all(start[position : position + len(text)] == list(text))

    def jpeg() -> tf.Tensor:
        # CMYK values are stored inverted. TensorFlow assumes this only with Adobe's marker.
        marked = tf.size(tf.strings.split(file, b"\xff\xee\0\x0eAdobe", maxsplit=1)) > 1
        known = marked | (tf.io.extract_jpeg_shape(file)[2] < 4)
        with _only_if(known, "it is a CMYK JPEG file without Adobe's marker"):
            # libjpeg-turbo and `decode_image` use this method by default.
            return tf.io.decode_jpeg(file, 3, dct_method="INTEGER_ACCURATE")

    def webp() -> tf.Tensor:
        animated = has(b"VP8X", 12) & (start[20] & 2 > 0)
        with _only_if(tf.logical_not(animated), "it is an animated WebP file"):
            # TensorFlow can decode a WebP file only with its own number of channels.
            return tf.io.decode_image(file, 0, expand_animations=False)[:, :, :3]

    def gif() -> tf.Tensor:
        frame = tf.strings.join([b",\0\0\0\0", tf.strings.substr(file, 6, 4)])  # Full size
        before = tf.strings.split(file, frame, maxsplit=1)
        control = tf.strings.split(before[0], b"!\xf9\x04")
        opaque = tf.math.floormod(_bytes_of(control[-1], 1)[0], 2) == 0
        whole = (tf.size(before) > 1) & (opaque | (tf.size(control) < 2))
        with _only_if(whole, "its first frame is transparent, or smaller than the GIF"):
            return tf.io.decode_image(file, 3, expand_animations=False)

    def bmp() -> tf.Tensor:
        # Size of the header, bits per pixel and compression.
        plain = (start[14] >= 40) & (has(b"\x18", 28) | has(b"\x20", 28)) & has(b"\0", 30)
        with _only_if(plain, "it is a BMP file without 24 or 32 uncompressed bits per pixel"):
            return tf.io.decode_bmp(file, 0)[:, :, :3]

    def png() -> tf.Tensor:
        with _only_if(is_png, "it is not a JPEG, PNG, WebP, GIF or BMP file"):
            return tf.io.decode_png(file, 3)

    is_jpeg, is_png = has(b"\xff\xd8\xff"), has(b"\x89PNG\r\n\x1a\n")
    is_webp = has(b"RIFF") & has(b"WEBP", 8)
    kinds = [(is_jpeg, jpeg), (is_webp, webp), (has(b"GIF8"), gif), (has(b"BM"), bmp)]
    mark = tf.where(is_jpeg, b"Exif\0\0", tf.where(is_png, b"eXIf", b"EXIF"))
    picture = _turned(tf.case(kinds, png), _orientation(file, mark))
    return tf.ensure_shape(picture, [None, None, 3])


def _only_if(readable: tf.Tensor, reason: str) -> Any:
    what = f"This model cannot read the image: {reason}. Save it as PNG or JPEG."
    return tf.control_dependencies([tf.debugging.Assert(readable, [what])])


def _bytes_of(text: tf.Tensor, count: int) -> tf.Tensor:
    """Return the first bytes of a scalar string as integers, padded with zeros."""
    data = tf.cast(tf.io.decode_raw(tf.strings.substr(text, 0, count), tf.uint8), tf.int32)
    return tf.pad(data, [[0, count - tf.size(data)]])


def _turned(picture: tf.Tensor, orientation: tf.Tensor) -> tf.Tensor:
    along = tf.reduce_any(orientation == tf.constant([2, 3, 6, 7]))
    down = tf.reduce_any(orientation == tf.constant([3, 4, 7, 8]))

    def transposed() -> tf.Tensor:
        # tf.transpose of uint8 would log to stderr that oneDNN does not support it.
        h, w = tf.unstack(tf.shape(picture)[:2])
        places = tf.range(w)[:, None] + w * tf.range(h)
        return tf.gather(tf.reshape(picture, [-1, 3]), places)

    upright = tf.cond(orientation > 4, transposed, lambda: picture)
    return tf.reverse(upright, tf.boolean_mask([0, 1], tf.stack([down, along])))


def _orientation(file: tf.Tensor, mark: tf.Tensor) -> tf.Tensor:
    """Return the EXIF orientation in a block after `mark`, or 1 if it is missing or damaged."""
    # Pixels may contain the mark by chance, but not followed by an EXIF block.
    blocks = tf.strings.substr(tf.strings.split(file, mark)[1:], 0, _SEARCHED)
    blocks = tf.boolean_mask(blocks, tf.strings.regex_full_match(blocks, _EXIF_BLOCK + r"\C*"))
    block = tf.strings.regex_replace(tf.concat([blocks, [""]], 0)[0], _EXIF_BLOCK, r"\1")
    data = _bytes_of(block, _SEARCHED)
    little = tf.reduce_all(data[:4] == _LITTLE)

    def number(position: tf.Tensor) -> tf.Tensor:
        position = tf.minimum(position, _SEARCHED - 2)  # Damaged blocks point anywhere.
        low, high = tf.gather(data, position), tf.gather(data, position + 1)
        return tf.where(little, low + 256 * high, 256 * low + high)

    # Two of the four bytes of an offset below 64 KiB are zero.
    directory = number(tf.where(little, 4, 6))
    entries = directory + 2 + 12 * tf.range(tf.minimum(number(directory), _SEARCHED // 12))
    right = (number(entries) == _ORIENTATION) & (number(entries + 2) == _SHORT)
    # If no entry matches, read the end of the data, which is zero except in a damaged block.
    value = number(tf.concat([tf.boolean_mask(entries, right), [_SEARCHED]], 0)[0] + 8)
    known = tf.reduce_any(right) & (value >= 1) & (value <= 8)
    return tf.where(known, value, 1)
