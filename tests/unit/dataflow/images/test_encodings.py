"""Every encoding of a picture is decoded to the pixels that were stored, or refused."""

from __future__ import annotations

import numpy as np
import pytest

from encoded_pictures import ENCODINGS, GRAY, GRAY16, HEIGHT, RGB, RGBA, WIDTH, bmp, tiff
from towerpack._core.errors import FormatError
from towerpack.dataflow.images import decode_image, image_header


@pytest.mark.parametrize("name", ENCODINGS)
def test_stored_pixels(name: str) -> None:
    data, expected, within, _ = ENCODINGS[name]
    rgb = decode_image(data)
    assert rgb.shape == expected.shape
    assert np.abs(rgb.astype(float) - expected).max() <= within
    gray = decode_image(data, channels=1)[:, :, 0]
    assert np.abs(gray - rgb @ [0.299, 0.587, 0.114]).max() <= 1
    # Only JPEGs are turned if their alpha is kept: see `decode_image`.
    lying = decode_image(data, orient=False)
    assert lying.shape == (HEIGHT, WIDTH, 3)
    if name == "TIFF, rgb 16, planes":
        for channels in (4, None):
            with pytest.raises(FormatError, match=r"(?s)planes of uint16.*channels=3"):
                decode_image(data, channels=channels)
        return
    kept = decode_image(data, channels=4)
    assert np.array_equal(kept[:, :, :3], rgb if name.startswith("JPEG") else lying)


@pytest.mark.parametrize("kind", ["PNG, rgba", "WebP, rgba", "TIFF, rgba by Pillow"])
def test_alpha_is_kept_where_it_is_asked_for(kind: str) -> None:
    assert np.array_equal(decode_image(ENCODINGS[kind].data, channels=4), RGBA)
    assert np.array_equal(decode_image(ENCODINGS[kind].data, channels=None), RGBA)


def test_one_plane_is_no_mixture() -> None:
    data = tiff(GRAY16, "minisblack", extratags=[(284, 3, 1, 2, True)])
    assert np.array_equal(decode_image(data, channels=None)[:, :, 0], GRAY16)


def test_clear_pixels_of_a_gif() -> None:
    rgba = decode_image(ENCODINGS["GIF, transparent"].data, channels=4)
    assert np.array_equal(rgba[:, :, 3] == 0, GRAY % 16 == 5)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32", "float32"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_numbers_without_a_range(dtype: str, channels: int) -> None:
    for pixels, kind in ((RGB, "rgb"), (RGB[..., 0], "minisblack")):
        with pytest.raises(FormatError, match=f"are {dtype}"):
            decode_image(tiff((pixels // 2).astype(dtype), kind), channels=channels)


def test_the_first_of_two_orientations_holds() -> None:
    assert image_header(ENCODINGS["JPEG, turned twice"].data).orientation == 3


def test_a_bmp_of_another_order_of_colors() -> None:
    rows = [row.tobytes() for row in RGBA[::-1]]
    data = bmp(rows, 32, 0, 3, [0xFF, 0xFF00, 0xFF0000])
    with pytest.raises(FormatError, match="order of colors is not supported"):
        decode_image(data)
    usual = [row.tobytes() for row in RGBA[::-1, :, [2, 1, 0, 3]]]
    assert np.array_equal(decode_image(bmp(usual, 32, 0, 3, [0xFF0000, 0xFF00, 0xFF])), RGB)
    assert image_header(data[:54]).format == "bmp"
