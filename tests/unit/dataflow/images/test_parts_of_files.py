"""Parts of pictures: what decoding the whole, cutting and scaling would give, for less."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from augmentors import rng
from picture_files import noise, saved, smooth
from scaling import sample, scaled
from towerpack._core.errors import ConfigError, FormatError
from towerpack.dataflow import images as im
from towerpack.dataflow.images import DecodeRandomCrop, decode_image, encode_jpeg
from towerpack.dataflow.images import _decode as decode

pytest.importorskip("cv2")
pytest.importorskip("simplejpeg")

PICTURE = encode_jpeg(noise(200, 300), quality=90)
PART = (20, 130, 90, 100)


@pytest.fixture
def heights(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows each picture had that libjpeg-turbo decoded."""
    found: list[int] = []
    library = decode._simplejpeg()

    class Spy:
        @staticmethod
        def decode_jpeg(*args: Any, buffer: np.ndarray, **options: Any) -> Any:
            found.append(len(buffer))
            return library.decode_jpeg(*args, buffer=buffer, **options)

    monkeypatch.setattr(decode, "_simplejpeg", lambda: Spy)
    return found


KINDS: list[dict[str, Any]] = [{}, {}, {"progressive": True}, {"restart_marker_blocks": 2}]
COLOURS: list[dict[str, Any]] = [{"subsampling": kind} for kind in (0, 1, 2, "4:1:1")]


@st.composite
def parts(draw: st.DrawFn) -> tuple[bytes, tuple[int, int, int, int], dict[str, Any]]:
    """A file, a part of it when upright, and how to decode it."""
    height, width = draw(st.integers(1, 90)), draw(st.integers(1, 90))
    orientation = draw(st.integers(1, 8))
    colours = draw(st.sampled_from([*COLOURS, {"keep_rgb": True}, None]))
    img = noise(height, width, draw(st.integers(0, 9)))
    img = img[:, :, 0] if colours is None else img
    options = draw(st.sampled_from(KINDS)) | (colours or {})
    data = saved(img, orientation=orientation, **options)
    how: dict[str, Any] = {name: draw(st.booleans()) for name in ("rgb", "orient", "strict")}
    how["channels"] = draw(st.sampled_from([3, 3, 3, 1, 4, None]))
    if how["orient"] and orientation > 4:
        height, width = width, height
    y, x = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    return data, (y, x, draw(st.integers(1, height - y)), draw(st.integers(1, width - x))), how


@settings(max_examples=scaled(1500))
@given(parts())
def test_a_part_is_what_cutting_gives(case: Any) -> None:
    data, (y, x, height, width), how = case
    whole = decode_image(data, **how)
    part = decode_image(data, part=(y, x, height, width), **how)
    assert part.flags.c_contiguous
    assert np.array_equal(part, whole[y : y + height, x : x + width])


def test_only_the_rows_that_are_needed_are_decoded(heights: list[int]) -> None:
    whole = decode_image(PICTURE)[20:110, 130:230]
    assert np.array_equal(decode_image(PICTURE, part=PART, strict=False), whole)
    assert heights == [200, 112]
    assert np.array_equal(decode_image(PICTURE, part=(20, 130, 91, 100), strict=False)[:90], whole)
    assert heights.pop() == 128  # row 111 takes colours from the row below
    out = np.zeros((90, 100, 3), np.uint8)
    assert decode_image(PICTURE, part=np.array(PART), strict=False, out=out) is out
    assert np.array_equal(out, whole)
    # Damage below the part is not seen, unless that is asked for.
    cut = PICTURE[: len(PICTURE) * 7 // 10]
    assert np.array_equal(decode_image(cut, part=PART, strict=False), whole)
    with pytest.raises(FormatError, match="damaged JPEG"):
        decode_image(cut, part=PART)
    with pytest.raises(FormatError):
        decode_image(PICTURE[:300], part=PART, strict=False)
    # Upside down: the last rows are stored first.
    data = saved(noise(200, 300), orientation=3)
    img = decode_image(data, part=(170, 0, 30, 300), strict=False)
    assert heights[-1] == 32 and np.array_equal(img, decode_image(data)[170:])


def test_arguments() -> None:
    for part in [(-1, 0, 5, 5), (0, 0, 201, 5), (0, 296, 5, 5), (0, 0, 0, 5), (0, 0, 5, -5)]:
        for strict in (True, False):
            with pytest.raises(ConfigError, match="must lie within an image of 200 x 300"):
                decode_image(PICTURE, part=part, strict=strict)
    with pytest.raises(ConfigError, match="both min_size and part"):
        decode_image(PICTURE, part=PART, min_size=10)
    lying = saved(noise(20, 30), "TIFF", 6)
    for channels, size in ((3, "30 x 20"), (None, "20 x 30"), (4, "20 x 30")):
        with pytest.raises(ConfigError, match=f"of {size} pixels"):
            decode_image(lying, channels=channels, part=(2, 1, 29, 29))


# Random crops

FILES = {
    "jpeg": saved(smooth(120, 161)),
    "png": saved(smooth(120, 161), "PNG"),
    "flat": saved(smooth(1, 400)),
    "tall": saved(smooth(400, 1)),
    "pixel": saved(smooth(1, 1)),
    **{f"{kind} {o}": saved(smooth(), kind, o) for kind in ("PNG", "WEBP", "TIFF") for o in (3, 6)},
}


@pytest.mark.parametrize("file", FILES)
def test_a_crop_is_decode_then_crop(file: str) -> None:
    whole = decode_image(FILES[file])
    for seed in range(18):
        interp = ("linear", "nearest", "area")[seed % 3]
        fused = DecodeRandomCrop(32, reduce=False, interp=interp)
        plain = im.GoogleNetRandomCropAndResize(target_shape=32, interp=interp)
        img = fused(FILES[file], rng(seed))
        assert np.array_equal(img, plain.augment(whole, rng(seed)))
        for out in (np.zeros((32, 32, 3), np.uint8), np.zeros((32, 64, 3), np.uint8)[:, ::2]):
            assert fused(FILES[file], rng(seed), out=out) is out
            assert np.array_equal(out, img)
    with pytest.raises(ConfigError, match="out does not fit"):
        DecodeRandomCrop(8)(FILES[file], out=np.zeros((8, 9, 3), np.uint8))


@pytest.mark.parametrize("orientation", sample(range(1, 9), at_least=3))
def test_reduced_crops_show_the_right_place(orientation: int) -> None:
    """Of a slope, the mean says where it was seen."""
    size = 1001  # leaves one pixel in the last block of 8, 4 and 2
    y, x = np.mgrid[:size, :size] / (size - 1) * 255
    slope = np.round(np.stack([x, y, (x + y) / 2], 2)).astype(np.uint8)
    data = saved(slope, orientation=orientation, quality=98)
    offsets: list[np.ndarray] = []
    for seed in range(6):
        crop = DecodeRandomCrop(60, (0.3, 1.0), interp="area")
        img, full = crop(data, rng(seed)), replace(crop, reduce=False)(data, rng(seed))
        assert not np.array_equal(img, full)
        offsets.append((img.astype(float) - full).mean((0, 1)) / 255 * size)
    assert np.abs(np.mean(offsets, 0)).max() < 1.5  # pixels of the file
    assert np.abs(offsets).max() < 5


def test_crops_of_jpegs_that_opencv_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode.Decoder, "_jpeg", lambda *_: None)
    for seed in range(16):  # OpenCV does not reduce
        data = saved(smooth(), orientation=1 + seed % 8)
        crop = DecodeRandomCrop(8, (0.5, 1.0), interp="area")
        plain = replace(crop, reduce=False)(data, rng(seed))
        assert np.array_equal(crop(data, rng(seed)), plain)


def test_crops_without_the_rows_below(heights: list[int]) -> None:
    for seed in range(30):
        crop = DecodeRandomCrop(64, reduce=False)
        one, other = crop(PICTURE, rng(seed)), replace(crop, strict=False)(PICTURE, rng(seed))
        assert np.array_equal(one, other)
    assert set(heights[::2]) == {200} and min(heights) < 130


# How many scans are read: a guard that good files do not run into

MOVIE = b"\0\2" + 300 * b"\xff\xda\0\2" + bytes(1000)
PROGRESSIVE = saved(progressive=True)
SCANS = [at for at in range(len(PROGRESSIVE)) if PROGRESSIVE.startswith(b"\xff\xda", at)]


def test_what_is_no_scan_does_not_count() -> None:
    for data in (PROGRESSIVE, encode_jpeg(np.zeros((2100, 2100, 3), np.uint8))):
        expected = decode_image(data)
        for behind in (MOVIE, b"\xff\xd9" + MOVIE):
            assert np.array_equal(decode_image(data + behind), expected)
        assert DecodeRandomCrop(8)(data + MOVIE, rng(0)).shape == (8, 8, 3)
    hidden = b"\xff\xfe" + (len(MOVIE) + 2).to_bytes(2, "big") + MOVIE  # in a comment
    data = PROGRESSIVE[: SCANS[2]] + hidden + PROGRESSIVE[SCANS[2] :]
    assert np.array_equal(decode_image(data), decode_image(PROGRESSIVE))


def test_bombs() -> None:
    scan = SCANS[0]
    for between in (b"", b"rubbish", b"\xff\xfe\0\x04\xff\xd9"):  # an end, but in a comment
        bomb = PROGRESSIVE[:scan] + 200 * (PROGRESSIVE[scan : scan + 14] + between)
        arithmetic = bomb.replace(b"\xff\xc2", b"\xff\xca", 1)  # which OpenCV is asked for
        for data in (bomb, bomb + PROGRESSIVE[scan:], bomb + b"\xff\xd9", arithmetic):
            with pytest.raises(FormatError, match=r"at most 100 scans, got 2\d\d"):
                decode_image(data, strict=False)
    large = encode_jpeg(np.zeros((2100, 2100, 3), np.uint8))
    scan = large.index(b"\xff\xda")
    with pytest.raises(FormatError, match="got 201"):
        decode_image(large[:scan] + 200 * large[scan : scan + 14] + large[scan:], strict=False)
