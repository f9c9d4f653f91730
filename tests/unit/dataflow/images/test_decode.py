"""Image files: decoded as other decoders do, and refused in one sentence when damaged."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from dataclasses import replace
from functools import partial
from io import BytesIO
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scaling import scaled
from towerpack._core.errors import ConfigError, FormatError, MapError
from towerpack.dataflow import DataFromList, MapDataComponent
from towerpack.dataflow.images import DecodeRandomCrop, decode_image, encode_jpeg, image_header
from towerpack.dataflow.images._crop import GoogleNetRandomCropAndResize
from towerpack.dataflow.images._decode import upright
from towerpack.dataflow.testing import check_flow

cv2 = pytest.importorskip("cv2")
pytest.importorskip("simplejpeg")
pillow = pytest.importorskip("PIL.Image")


def picture(height: int = 48, width: int = 67) -> np.ndarray:
    """Smooth, so that JPEG keeps it well, and unlike its mirror images."""
    y, x = np.mgrid[:height, :width].astype(np.float32)
    channels = [x / width, y / height, (x + 2 * y) / (width + 2 * height)]
    return (np.stack(channels, 2) * 220 + 20).astype(np.uint8)


IMG = picture()


def saved(img: np.ndarray = IMG, kind: str = "JPEG", **options: Any) -> bytes:
    file = BytesIO()
    if kind == "JPEG":
        options = {"quality": 95, **options}
    pillow.fromarray(img).save(file, kind, **options)
    return file.getvalue()


def close(one: np.ndarray, other: np.ndarray, within: float = 3.0) -> bool:
    difference = np.abs(one.astype(np.float32) - other.astype(np.float32))
    return one.shape == other.shape and float(difference.mean()) < within


def with_exif(orientation: int, endian: str = "<") -> bytes:
    exif = pillow.Exif()
    exif.endian = endian
    exif[0x0112] = orientation
    return saved(exif=exif.tobytes())


LOSSLESS = ["PNG", "BMP", "TIFF"]
FORMATS = {kind: saved(kind=kind) for kind in ["JPEG", "WEBP", "GIF", *LOSSLESS]}


@pytest.mark.parametrize("kind", FORMATS)
def test_formats(kind: str) -> None:
    data = FORMATS[kind]
    assert image_header(data)[:3] == (kind.lower(), 48, 67)
    rgb = decode_image(data)
    assert rgb.dtype == np.uint8 and rgb.flags.c_contiguous
    assert close(rgb, IMG, 0.001 if kind in LOSSLESS else 12 if kind == "GIF" else 3)
    assert np.array_equal(decode_image(data, rgb=False), rgb[:, :, ::-1])
    gray = decode_image(data, channels=1)
    assert gray.shape == (48, 67, 1)
    assert close(gray[:, :, 0], rgb @ np.array([0.299, 0.587, 0.114]))
    rgba = decode_image(data, channels=4)
    assert np.array_equal(rgba[:, :, :3], rgb) and (rgba[:, :, 3] == 255).all()
    bgra = decode_image(data, channels=4, rgb=False)
    assert np.array_equal(bgra, rgba[:, :, [2, 1, 0, 3]])


def test_jpeg_is_what_libjpeg_gives() -> None:
    simplejpeg = pytest.importorskip("simplejpeg")
    data = saved()
    assert np.array_equal(decode_image(data), simplejpeg.decode_jpeg(data))
    for memory in (bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)):
        assert np.array_equal(decode_image(memory), decode_image(data))


def test_odd_jpegs() -> None:
    cmyk = BytesIO()
    pillow.fromarray(IMG).convert("CMYK").save(cmyk, "JPEG", quality=95)
    assert close(decode_image(cmyk.getvalue()), IMG)
    assert decode_image(cmyk.getvalue(), channels=None).shape == (48, 67, 3)
    gray = saved(IMG[:, :, 0])
    assert decode_image(gray).shape == (48, 67, 3)
    assert decode_image(gray, channels=None).shape == (48, 67, 1)
    assert close(decode_image(saved(progressive=True)), IMG)
    assert close(decode_image(saved(keep_rgb=True)), IMG)
    # Chroma of 3 x 1 blocks: libjpeg-turbo's simple interface does not know it, OpenCV does.
    odd = bytearray(saved(subsampling=0))
    frame = odd.index(b"\xff\xc0")
    assert odd[frame + 11] == 0x11
    odd[frame + 11] = 0x31
    # The data are now read as if they were so sampled: nonsense, but as many rows and columns.
    assert decode_image(bytes(odd)).shape == (48, 67, 3)
    with pytest.raises(FormatError, match="OpenCV cannot decode"):
        decode_image(bytes(odd[:-400]))


def test_kinds_of_webp_and_bmp() -> None:
    rgba = np.dstack([IMG, np.full(IMG.shape[:2], 99, np.uint8)])
    kinds = {
        b"VP8 ": saved(kind="WEBP"),
        b"VP8L": saved(kind="WEBP", lossless=True),
        b"VP8X": saved(rgba, "WEBP", exif=pillow.Exif().tobytes()),
    }
    for kind, data in kinds.items():
        assert data[12:16] == kind
        assert image_header(data)[:3] == ("webp", 48, 67)
        assert close(decode_image(data), IMG)
    assert (decode_image(kinds[b"VP8X"], channels=4)[:, :, 3] == 99).all()
    with pytest.raises(FormatError, match="not of WebP"):
        image_header(b"RIFF\0\0\0\0WAVEfmt " + bytes(40))
    upward = bytearray(FORMATS["BMP"])
    upward[22:26] = struct.pack("<i", -48)  # rows from the top down
    assert image_header(upward)[:3] == ("bmp", 48, 67)
    assert np.array_equal(decode_image(upward), IMG[::-1])


def test_deep_and_grey_png() -> None:
    deep = np.arange(48 * 67, dtype=np.uint16).reshape(48, 67) * 20
    ok, data = cv2.imencode(".png", deep)
    assert ok
    assert np.array_equal(decode_image(data, channels=None)[:, :, 0], deep)
    assert decode_image(data).dtype == np.uint8 and decode_image(data).shape == (48, 67, 3)
    four = decode_image(data, channels=4)
    assert np.array_equal(four[:, :, 0], deep >> 8) and four.shape == (48, 67, 4)
    with pytest.raises(ConfigError, match="uint16"):
        decode_image(data, channels=None, out=np.empty(48 * 67, np.uint8))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("endian", ["<", ">"])
def test_exif(orientation: int, endian: str) -> None:
    data = with_exif(orientation, endian)
    assert image_header(data).orientation == orientation
    raw = decode_image(data, orient=False)
    assert raw.shape == IMG.shape
    img = decode_image(data)
    with pillow.open(BytesIO(data)) as opened:
        from PIL import ImageOps

        expected = np.asarray(ImageOps.exif_transpose(opened))
    assert np.array_equal(img, expected)
    out = np.zeros(expected.shape, np.uint8)
    assert decode_image(data, out=out) is out and np.array_equal(out, expected)
    small = decode_image(data, min_size=(img.shape[0] // 2, img.shape[1] // 2))
    assert small.shape[0] == -(-img.shape[0] // 2)


def test_damaged_exif_is_upright() -> None:
    data = with_exif(6)
    assert image_header(with_exif(9)).orientation == image_header(with_exif(0)).orientation == 1
    at = data.index(b"Exif\0\0") + 6
    for cut in (b"XX", b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\xff\xff"):
        bad = data[:at] + cut + data[at + len(cut) :]
        assert image_header(bad).orientation == 1
        assert decode_image(bad).shape == IMG.shape


def test_upright_is_an_involution_or_a_turn() -> None:
    img = IMG[:5, :4]
    assert np.array_equal(upright(img, 6), np.rot90(img, -1))
    assert np.array_equal(upright(img, 8), np.rot90(img, 1))
    for orientation in (1, 2, 3, 4, 5, 7):
        assert np.array_equal(upright(upright(img, orientation), orientation), img)


@pytest.mark.parametrize(
    "min_size, shape",
    [
        (200, (375, 500)),
        (188, (188, 250)),
        ((188, 250), (188, 250)),
        ((94, 125), (94, 125)),
        ((95, 10), (188, 250)),
        (1, (47, 63)),
        (10_000, (375, 500)),
    ],
)
def test_only_powers_of_two(min_size: Any, shape: tuple[int, int]) -> None:
    data = saved(picture(375, 500))
    small = decode_image(data, min_size=min_size)
    assert small.shape == (*shape, 3)
    resized = cv2.resize(picture(375, 500), small.shape[1::-1], interpolation=cv2.INTER_AREA)
    assert close(small, resized)


def test_out() -> None:
    data = saved()
    expected = decode_image(data)
    slot = np.zeros((3, 48, 67, 3), np.uint8)
    assert np.array_equal(decode_image(data, out=slot[1]), expected)
    assert np.array_equal(slot[1], expected) and not slot[0].any() and not slot[2].any()
    arena = np.full(48 * 67 * 3 + 5, 7, np.uint8)
    img = decode_image(data, out=arena)
    assert np.shares_memory(img, arena) and np.array_equal(img, expected)
    assert (arena[-5:] == 7).all()
    strided = np.zeros((48, 134, 3), np.uint8)[:, ::2]
    decode_image(data, out=strided)
    assert np.array_equal(strided, expected)
    png = FORMATS["PNG"]
    assert np.array_equal(decode_image(png, out=np.zeros_like(IMG)), IMG)
    for bad in (np.zeros((48, 66, 3), np.uint8), np.zeros(9, np.uint8), np.zeros(IMG.shape)):
        with pytest.raises(ConfigError, match="does not fit"):
            decode_image(data, out=bad)


def test_arguments() -> None:
    with pytest.raises(ConfigError, match="channels=2"):
        decode_image(saved(), channels=2)
    with pytest.raises(ConfigError, match="are bytes"):
        decode_image("photo.jpg")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="uint8 image"):
        encode_jpeg(IMG.astype(np.float32))


def test_encode() -> None:
    assert close(decode_image(encode_jpeg(IMG, quality=95)), IMG)
    assert close(decode_image(encode_jpeg(IMG, rgb=False), rgb=False), IMG)
    assert close(decode_image(encode_jpeg(IMG[:, :, 0]), channels=1), IMG[:, :, :1])
    assert len(encode_jpeg(IMG, quality=30)) < len(encode_jpeg(IMG, quality=95, subsampling="444"))
    assert close(decode_image(encode_jpeg(IMG[:, ::-1])), IMG[:, ::-1])


def test_in_a_pipeline() -> None:
    ds = MapDataComponent(DataFromList([(saved(), 1)]), partial(decode_image, rgb=False))
    assert np.array_equal(next(iter(ds))[0], decode_image(saved())[:, :, ::-1])
    with pytest.raises(MapError, match="damaged"):
        list(MapDataComponent(DataFromList([(saved()[:-300], 1)]), decode_image))


def test_truncated_jpeg() -> None:
    data = saved(picture(96, 96))
    cut = data[: len(data) // 2]
    with pytest.raises(FormatError, match=r"cat\.jpg is a damaged JPEG") as info:
        decode_image(cut, name="cat.jpg")
    assert "strict=False" in str(info.value)
    assert decode_image(cut, strict=False).shape == (96, 96, 3)


def test_too_large_is_refused_before_allocating() -> None:
    bomb = bytearray(saved())
    frame = bomb.index(b"\xff\xc0")
    bomb[frame + 5 : frame + 9] = b"\xff\xff\xff\xff"
    row = zlib.compress(bytes(1 << 20), 9)
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n"
    for kind, body in ((b"IHDR", header), (b"IDAT", row), (b"IEND", b"")):
        crc = zlib.crc32(kind + body)
        png += struct.pack(">I", len(body)) + kind + body + struct.pack(">I", crc)
    tracemalloc.start()
    for data in (bytes(bomb), png):
        with pytest.raises(FormatError, match="max_pixels"):
            decode_image(data)
        with pytest.raises(FormatError, match="but has"):
            decode_image(data, max_pixels=1 << 40, strict=False)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    with pytest.raises(FormatError, match="at most max_pixels=3_215"):
        decode_image(saved(), max_pixels=48 * 67 - 1)
    assert decode_image(saved(), max_pixels=48 * 67).shape == IMG.shape


def test_png_chunk_longer_than_the_file() -> None:
    for kind in (b"IDAT", b"IEND"):
        png = bytearray(FORMATS["PNG"])
        at = png.index(kind)
        png[at - 4 : at] = b"\xa6\0\1\0"  # OpenCV would take 2.8 GB before it looks at the rest
        with pytest.raises(FormatError, match=r"cat\.png is a damaged PNG file: it ends too early"):
            decode_image(png, name="cat.png")
    assert np.array_equal(decode_image(FORMATS["PNG"] + b"rubbish behind the end"), IMG)


def test_too_many_scans() -> None:
    data = saved(progressive=True)
    scan = data.index(b"\xff\xda")
    bomb = data[:scan] + 200 * data[scan : scan + 14] + data[scan:]
    with pytest.raises(FormatError, match="scans"):
        decode_image(bomb)


@pytest.mark.parametrize("data", [b"", b"\xff", b"GIF", b"hello world", bytes(1000)])
def test_no_image(data: bytes) -> None:
    with pytest.raises(FormatError, match="no image file"):
        decode_image(data)


def test_segment_without_length() -> None:
    data = saved()
    with pytest.raises(FormatError, match="no frame header"):
        image_header(data[:4] + b"\0\1" + data[6:])


@pytest.mark.parametrize("kind", FORMATS)
def test_every_short_start_is_an_error(kind: str) -> None:
    data = FORMATS[kind]
    for end in (*range(64), len(data) // 2, len(data) - 20):
        with pytest.raises(FormatError):
            decode_image(data[:end])


@settings(max_examples=scaled(4000, at_least=150), deadline=None)
@given(st.data())
def test_damaged_bytes_are_an_error_or_an_image(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([*FORMATS, "JPEG", "PNG"]))
    img = bytearray(FORMATS[kind])
    early = st.integers(0, min(700, len(img) - 1))
    anywhere = st.integers(0, len(img) - 1)
    for _ in range(data.draw(st.integers(1, 6))):
        img[data.draw(early | anywhere)] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([None, len(img) // 2]) | anywhere)
    options = {
        "strict": data.draw(st.booleans()),
        "channels": data.draw(st.sampled_from([1, 3, 4, None])),
        "min_size": data.draw(st.sampled_from([None, 1, 20])),
    }
    try:
        result = decode_image(bytes(img[:cut]), max_pixels=1 << 22, **options)
    except FormatError:
        return
    assert result.ndim == 3 and result.size > 0
    assert result.shape[2] == (options["channels"] or result.shape[2])


@pytest.mark.parametrize("interp", ["linear", "nearest", "area"])
def test_fused_crop_is_decode_then_crop(interp: Any) -> None:
    data = saved(picture(120, 161))
    for seed in range(40):
        fused = DecodeRandomCrop(32, reduce=False, interp=interp)
        plain = GoogleNetRandomCropAndResize(target_shape=32, interp=interp)
        img = fused(data, np.random.default_rng(seed))
        expected = plain.augment(decode_image(data), np.random.default_rng(seed))
        assert np.array_equal(img, expected)
        out = np.zeros((32, 32, 3), np.uint8)
        assert fused(data, np.random.default_rng(seed), out=out) is out
        assert np.array_equal(out, expected)


def test_fused_crop_reduced_looks_the_same() -> None:
    data = saved(picture(375, 500))
    reduced = 0
    for seed in range(40):
        crop = DecodeRandomCrop((120, 110))
        img = crop(data, np.random.default_rng(seed))
        full = replace(crop, reduce=False)(data, np.random.default_rng(seed))
        assert img.shape == (120, 110, 3) and close(img, full)
        reduced += not np.array_equal(img, full)
    assert 5 < reduced < 35


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_fused_crop_of_turned_pictures(orientation: int) -> None:
    data = with_exif(orientation)
    for seed in range(10):
        img = DecodeRandomCrop(9)(data, np.random.default_rng(seed))
        plain = GoogleNetRandomCropAndResize(target_shape=9)
        assert close(img, plain.augment(decode_image(data), np.random.default_rng(seed)), 5)


def test_fused_crop_of_other_shapes_and_formats() -> None:
    for img in (picture(1, 400), picture(400, 1), picture(1, 1)):
        for seed in range(5):
            out = np.zeros((8, 8, 3), np.uint8)
            result = DecodeRandomCrop(8)(saved(img), np.random.default_rng(seed), out=out)
            assert result is out and out.any()
    assert DecodeRandomCrop(8)(FORMATS["PNG"]).shape == (8, 8, 3)
    for bad in (np.zeros((8, 9, 3), np.uint8), np.zeros((8, 16, 3), np.uint8)[:, ::2]):
        for img in (picture(), picture(1, 400)):
            with pytest.raises(ConfigError, match="out does not fit"):
                DecodeRandomCrop(8)(saved(img), out=bad)
    with pytest.raises(FormatError, match="max_pixels"):
        DecodeRandomCrop(8, max_pixels=100)(saved())


def test_fused_crop_in_a_pipeline() -> None:
    def make() -> MapDataComponent:
        ds = DataFromList([(saved(), i) for i in range(5)])
        return MapDataComponent(ds, DecodeRandomCrop(16), rng=True)

    check_flow(make)
    one, other = list(make().iterate(seed=1))[:2]
    assert not np.array_equal(one[0], other[0])


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
@pytest.mark.parametrize("channels", [1, 3, 4])
def test_tiffs_of_numbers_without_a_range(dtype: str, channels: int) -> None:
    for img in (IMG, IMG[:, :, 0]):
        pixels = (img / np.float32(255) * 3).astype(dtype)
        ok, data = cv2.imencode(".tiff", pixels)
        assert ok
        with pytest.raises(FormatError, match=f"Pixels of cat.tif are {dtype}") as info:
            decode_image(data, channels=channels, name="cat.tif")
        assert "channels=None" in str(info.value) and "damaged" not in str(info.value)
        expected = pixels.reshape(48, 67, -1)
        assert np.array_equal(decode_image(data, channels=None, rgb=False), expected)
        assert np.array_equal(decode_image(data, channels=None), expected[:, :, ::-1])
    with pytest.raises(FormatError, match=dtype):
        DecodeRandomCrop(8)(data, np.random.default_rng(0))


def sparse_jpeg(blocks: int) -> bytes:
    """Progressive and grey: one scan, of which each bit is a block of 8 x 8 pixels."""
    size = struct.pack(">HH", 8 * blocks, 8 * blocks)
    segments = [
        b"\xff\xd8\xff\xdb\0\x43\0" + 64 * b"\x10",
        b"\xff\xc2\0\x0b\x08" + size + b"\x01\x01\x11\0",
        b"\xff\xc4\0\x14\0\x01" + bytes(15) + b"\0",  # one code, of one bit: "as the one before"
        b"\xff\xda\0\x08\x01\x01\0\0\0\0",
        bytes(blocks * blocks // 8),
    ]
    return b"".join(segments) + b"\xff\xd9"


def test_the_smallest_jpeg_of_its_size() -> None:
    data = sparse_jpeg(256)
    assert 2048 * 2048 / len(data) > 490
    assert (decode_image(data, channels=1) == 128).all()
    with pytest.raises(FormatError, match=r"but has 4\d{3} bytes"):
        decode_image(data[: len(data) // 2 - 100], strict=False)


def read_only(shape: tuple[int, ...]) -> np.ndarray:
    memory = np.zeros(shape, np.uint8)
    memory.flags.writeable = False
    return memory


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_memory_that_cannot_be_written(kind: str) -> None:
    for shape in (IMG.shape, (IMG.size,)):
        with pytest.raises(ConfigError, match="out cannot be written") as info:
            decode_image(FORMATS[kind], out=read_only(shape))
        assert "writeable" in str(info.value)
    with pytest.raises(ConfigError, match="out cannot be written"):
        decode_image(FORMATS[kind], part=(0, 0, 9, 9), out=read_only((9, 9, 3)))
    for img in (IMG, picture(1, 400)):
        with pytest.raises(ConfigError, match="out cannot be written"):
            DecodeRandomCrop(8)(saved(img, kind), out=read_only((8, 8, 3)))


@pytest.mark.parametrize("part", [(0, 0, 10.0, 10), (0, None, 10, 10), 3, "abcd", (1, 2, 3), {}])
@pytest.mark.parametrize("strict", [True, False])
def test_what_is_no_part(part: Any, strict: bool) -> None:
    with pytest.raises(ConfigError, match="There is no part=") as info:
        decode_image(saved(), part=part, strict=strict)
    assert "whole numbers" in str(info.value)


def test_parts_of_numpy_numbers() -> None:
    part: Any = np.array([3, 5, 10, 11])
    assert np.array_equal(decode_image(saved(), part=part), decode_image(saved())[3:13, 5:16])


@pytest.mark.parametrize(
    "options, expected",
    [
        ({"quality": 101}, "1 to 100"),
        ({"quality": 0}, "1 to 100"),
        ({"quality": -1}, "1 to 100"),
        ({"quality": 90.5}, "1 to 100"),
        ({"quality": "high"}, "1 to 100"),
        ({"quality": None}, "1 to 100"),
        ({"subsampling": "foo"}, '"444", "422", "420", "440" or "411"'),
        ({"subsampling": "Gray"}, '"444", "422", "420", "440" or "411"'),
        ({"subsampling": 420}, '"444", "422", "420", "440" or "411"'),
        ({"subsampling": []}, '"444", "422", "420", "440" or "411"'),
    ],
)
def test_how_no_jpeg_is_made(options: dict[str, Any], expected: str) -> None:
    for img in (IMG, IMG[:, :, 0]):
        with pytest.raises(ConfigError, match=f"There is no {next(iter(options))}=") as info:
            encode_jpeg(img, **options)
        assert expected in str(info.value)


@pytest.mark.parametrize("subsampling", ["444", "422", "420", "440", "411"])
def test_subsamplings(subsampling: str) -> None:
    data = encode_jpeg(IMG, quality=np.int64(100), subsampling=subsampling)  # type: ignore[arg-type]
    assert close(decode_image(data), IMG)
