"""Image files: decoded as other decoders do, turned as EXIF says, and refused when damaged."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picture_files import IMG, close, noise, pillow, png_chunk, saved, smooth
from scaling import scaled
from towerpack._core.errors import ConfigError, FormatError
from towerpack.dataflow.images import DecodeRandomCrop, decode_image, encode_jpeg, image_header
from towerpack.dataflow.images.headers import header_of

cv2 = pytest.importorskip("cv2")
simplejpeg = pytest.importorskip("simplejpeg")

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


def test_kinds_of_jpeg() -> None:
    data = saved()
    assert np.array_equal(decode_image(data), simplejpeg.decode_jpeg(data))
    for memory in (bytearray(data), memoryview(data), np.frombuffer(data, np.uint8)):
        assert np.array_equal(decode_image(memory), decode_image(data))
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
    # Read as if they were so sampled, the data are nonsense, but as many rows and columns.
    odd = bytearray(saved(subsampling=0))
    odd[odd.index(b"\xff\xc0") + 11] = 0x31
    assert decode_image(bytes(odd)).shape == (48, 67, 3)
    with pytest.raises(FormatError, match="OpenCV cannot decode"):
        decode_image(bytes(odd[:-400]))


def test_kinds_of_webp_and_bmp() -> None:
    rgba = np.dstack([IMG, np.full(IMG.shape[:2], 99, np.uint8)])
    extended = saved(rgba, "WEBP", exif=pillow.Exif().tobytes())
    for data in (saved(kind="WEBP", lossless=True), extended):
        assert image_header(data)[:3] == ("webp", 48, 67)
        assert close(decode_image(data), IMG)
    assert (decode_image(extended, channels=4)[:, :, 3] == 99).all()
    upward = bytearray(FORMATS["BMP"])
    upward[22:26] = struct.pack("<i", -48)  # rows from the top down
    assert image_header(upward)[:3] == ("bmp", 48, 67)
    assert np.array_equal(decode_image(upward), IMG[::-1])


def test_deep_png() -> None:
    deep = np.arange(48 * 67, dtype=np.uint16).reshape(48, 67) * 20
    data = cv2.imencode(".png", deep)[1]
    assert np.array_equal(decode_image(data, channels=None)[:, :, 0], deep)
    assert decode_image(data).dtype == np.uint8 and decode_image(data).shape == (48, 67, 3)
    four = decode_image(data, channels=4)
    assert np.array_equal(four[:, :, 0], deep >> 8) and four.shape == (48, 67, 4)
    with pytest.raises(ConfigError, match="uint16"):
        decode_image(data, channels=None, out=np.empty(48 * 67, np.uint8))


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32"])
def test_tiffs_of_numbers_without_a_range(dtype: str) -> None:
    for img in (IMG, IMG[:, :, 0]):
        pixels = (img / np.float32(255) * 3).astype(dtype)
        data = cv2.imencode(".tiff", pixels)[1]
        for channels in (1, 3, 4):
            with pytest.raises(FormatError, match=f"(?s)cat.tif are {dtype}.*channels=None"):
                decode_image(data, channels=channels, name="cat.tif")
        expected = pixels.reshape(48, 67, -1)
        assert np.array_equal(decode_image(data, channels=None, rgb=False), expected)
        assert np.array_equal(decode_image(data, channels=None), expected[:, :, ::-1])


# Turned by EXIF


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_turned_files(kind: str, orientation: int) -> None:
    from PIL import ImageOps

    data = saved(kind=kind, orientation=orientation)
    header = image_header(data)
    assert (header.height, header.width, header.orientation) == (48, 67, orientation)
    img, lying = decode_image(data), decode_image(data, orient=False)
    assert img.shape[:2] == header.upright_size and close(lying, IMG, 1)
    with pillow.open(BytesIO(data)) as opened:
        assert np.array_equal(img, np.asarray(ImageOps.exif_transpose(opened)))
    assert decode_image(data, channels=1).shape[:2] == header.upright_size
    assert np.array_equal(decode_image(data, orient=False, part=(3, 5, 30, 52)), lying[3:33, 5:57])
    out = np.zeros(img.shape, np.uint8)
    assert decode_image(data, out=out) is out and np.array_equal(out, img)
    for channels in (None, 4):
        kept = decode_image(data, channels=channels)[:, :, :3]
        # OpenCV's rule for what keeps its channels.
        assert np.array_equal(kept, img if kind == "JPEG" else lying)
        assert np.array_equal(decode_image(data, channels=channels, orient=False)[:, :, :3], lying)


def exif(orientation: int) -> bytes:
    return b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHIHHI", 0x0112, 3, 1, orientation, 0, 0)


def png_with(payload: bytes, before: bytes = b"IDAT") -> bytes:
    at = FORMATS["PNG"].index(before) - 4
    return FORMATS["PNG"][:at] + png_chunk(b"eXIf", payload) + FORMATS["PNG"][at:]


def test_exif_block_wherever_it_is() -> None:
    for payload in (exif(6), b"Exif\0\0" + exif(6)):
        webp = saved(kind="WEBP", orientation=6)
        webp = webp[: webp.index(b"EXIF") + 4] + struct.pack("<I", len(payload)) + payload
        webp = webp[:4] + struct.pack("<I", len(webp) - 8) + webp[8:]
        for data in (png_with(payload, b"IDAT"), png_with(payload, b"IEND"), webp):
            assert image_header(data).orientation == 6
            assert np.array_equal(decode_image(data), np.rot90(IMG, -1))
    big = b"MM\0*\0\0\0\x08\0\x01" + struct.pack(">HHIHH", 0x0112, 3, 1, 6, 0)
    assert image_header(png_with(big)).orientation == 6


def test_headers_of_files_behind_long_segments(tmp_path: Path) -> None:
    """Only the metadata of a file is read, however long it is, and wherever it stands."""
    jpeg = saved(orientation=6)
    at = 4 + int.from_bytes(jpeg[4:6], "big")
    profile = (b"\xff\xe2" + (65_000).to_bytes(2, "big") + bytes(64_998)) * 5
    long_text = png_chunk(b"tEXt", b"a\0" + bytes(300_000))
    at_end = png_with(exif(6), b"IEND")
    files = [
        jpeg,
        jpeg[:2] + profile + jpeg[2:],  # also before the EXIF block
        jpeg[:at] + profile + jpeg[at:],
        png_with(exif(6)),
        at_end,
        at_end[:33] + long_text + at_end[33:],
        noisy_png := saved(noise(400, 400), kind="PNG"),
        noisy_png[:-12] + png_chunk(b"eXIf", exif(6)) + noisy_png[-12:],
        saved(noise(400, 400), kind="WEBP", quality=100, orientation=6),
        saved(noise(400, 400), kind="TIFF", orientation=6),
        FORMATS["GIF"],
    ]
    for data in files:
        (tmp_path / "picture").write_bytes(data)
        assert header_of(tmp_path / "picture") == image_header(data)
    assert [image_header(data).orientation for data in files] == [6] * 6 + [1, 6, 6, 6, 1]
    for damaged in (
        b"",
        b"BM",
        jpeg[:at],
        (jpeg[:at] + profile)[:-9],
        b"\x89PNG\r\n\x1a\n",
        at_end[:20],
    ):
        (tmp_path / "picture").write_bytes(damaged)
        with pytest.raises(FormatError, match="picture"):
            header_of(tmp_path / "picture")


def test_damaged_exif_is_upright() -> None:
    tiff = saved(kind="TIFF", orientation=3)
    entry = tiff.index(struct.pack("<HHIH", 0x0112, 3, 1, 3)) + 8
    files = [png_with(bad) for bad in (b"", b"X", b"II*\0", exif(9), exif(0), exif(6)[:-9])]
    files += [png_with(bad) for bad in (b"II*\0\xff\xff\xff\xff", b"MM\0*\0\0\0\x08\xff\xff")]
    for orientation in (0, 9, 60_000):
        files.append(tiff[:entry] + struct.pack("<H", orientation) + tiff[entry + 2 :])
    for data in files:
        assert image_header(data).orientation == 1
        assert decode_image(data).shape == IMG.shape


# Arguments


def test_only_powers_of_two() -> None:
    data = saved(smooth(375, 500))
    half = (188, 250)
    for min_size, shape in (
        (200, (375, 500)), (188, half), (half, half), ((95, 10), half), (1, (47, 63)),
    ):  # fmt: skip
        small = decode_image(data, min_size=min_size)
        assert small.shape == (*shape, 3)
        resized = cv2.resize(smooth(375, 500), shape[::-1], interpolation=cv2.INTER_AREA)
        assert close(small, resized)
    turned = saved(smooth(100, 400), orientation=6)  # min_size is that of the result
    assert decode_image(turned, min_size=(200, 50)).shape == (200, 50, 3)
    assert decode_image(turned, min_size=(50, 200), orient=False).shape == (50, 200, 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_out(kind: str) -> None:
    data, expected = FORMATS[kind], decode_image(FORMATS[kind])
    slot = np.zeros((3, 48, 67, 3), np.uint8)
    decode_image(data, out=slot[1])
    assert np.array_equal(slot[1], expected) and not slot[0].any() and not slot[2].any()
    arena = np.full(48 * 67 * 3 + 5, 7, np.uint8)
    img = decode_image(data, out=arena)
    assert np.shares_memory(img, arena) and np.array_equal(img, expected)
    assert (arena[-5:] == 7).all()
    strided = np.zeros((48, 134, 3), np.uint8)[:, ::2]
    decode_image(data, out=strided)
    assert np.array_equal(strided, expected)
    for bad in (np.zeros((48, 66, 3), np.uint8), np.zeros(9, np.uint8), np.zeros(IMG.shape)):
        with pytest.raises(ConfigError, match="does not fit"):
            decode_image(data, out=bad)
    slot.flags.writeable = False
    for decode, out in ((decode_image, slot[0]), (DecodeRandomCrop(8), slot[0, :8, :8])):
        with pytest.raises(ConfigError, match="out must be writable"):
            decode(data, out=out)


def test_encode() -> None:
    for subsampling in ("444", "420", "411"):
        assert close(decode_image(encode_jpeg(IMG, quality=95, subsampling=subsampling)), IMG)
    assert close(decode_image(encode_jpeg(IMG, rgb=False), rgb=False), IMG)
    assert close(decode_image(encode_jpeg(IMG[:, :, 0]), channels=1), IMG[:, :, :1])
    assert len(encode_jpeg(IMG, quality=30)) < len(encode_jpeg(IMG, quality=95, subsampling="444"))
    for wrong, words in (
        (lambda: encode_jpeg(IMG.astype(np.float32)), "must be uint8"),
        (lambda: decode_image(saved(), channels=2), r"channels must be .* got 2"),
        (lambda: decode_image("photo.jpg"), "must be bytes"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError, match=words):
            wrong()


# Damaged, and hostile


def test_truncated_jpeg() -> None:
    data = saved(smooth(96, 96))
    cut = data[: len(data) // 2]
    with pytest.raises(FormatError, match=r"cat\.jpg is a damaged JPEG") as info:
        decode_image(cut, name="cat.jpg")
    assert "strict=False" in str(info.value)
    assert decode_image(cut, strict=False).shape == (96, 96, 3)
    lost = bytearray(saved(progressive=True))
    lost[lost.index(b"\xff\xda") + 20] = 0xFF  # libjpeg gives up, and writes nothing
    out = np.full(IMG.shape, 77, np.uint8)
    assert not decode_image(lost, strict=False, out=out).any()


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("orientation", [1, 6])
def test_a_jpeg_that_is_cut_off_is_not_taken_for_its_thumbnail(
    progressive: bool, orientation: int
) -> None:
    thumbnail = saved(smooth(16, 24))
    picture = saved(smooth(96, 64), progressive=progressive)
    # A TIFF structure of one tag, and behind it the thumbnail with an end marker of its own.
    tiff = b"II*\0" + struct.pack("<IHHHII", 8, 1, 0x0112, 3, 1, orientation) + bytes(4)
    block = b"Exif\0\0" + tiff + thumbnail
    start = b"\xff\xd8\xff\xe1" + struct.pack(">H", len(block) + 2) + block
    data = start + picture[2:]
    size = (96, 64) if orientation == 1 else (64, 96)
    assert image_header(data).upright_size == size
    assert decode_image(data).shape == (*size, 3)
    frame = len(start) + picture.index(b"\xff\xc2" if progressive else b"\xff\xc0") - 2
    for end in (len(start), frame, frame + 6):
        for strict in (True, False):
            with pytest.raises(FormatError, match="damaged"):
                decode_image(data[:end], strict=strict)
    # Without the end marker alone all pixels are there; libjpeg tells of what it lacks.
    scan = len(start) + picture.index(b"\xff\xda") + 20
    for end in (scan, (scan + len(data)) // 2, len(data) - 10):
        assert image_header(data[:end]).upright_size == size
        with pytest.raises(FormatError, match="is a damaged JPEG"):
            decode_image(data[:end])
        assert decode_image(data[:end], strict=False).shape == (*size, 3)


def test_too_large_is_refused_before_allocating() -> None:
    bomb = bytearray(saved())
    frame = bomb.index(b"\xff\xc0")
    bomb[frame + 5 : frame + 9] = b"\xff\xff\xff\xff"
    header = struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)
    row = zlib.compress(bytes(1 << 20), 9)
    chunks = [(b"IHDR", header), (b"IDAT", row), (b"IEND", b"")]
    png = b"\x89PNG\r\n\x1a\n" + b"".join(png_chunk(*chunk) for chunk in chunks)
    for data in (bytes(bomb), png):
        with pytest.raises(FormatError, match="max_pixels"):
            decode_image(data)
        with pytest.raises(FormatError, match="but has"):
            decode_image(data, max_pixels=1 << 40, strict=False)
    for decode in (decode_image, lambda data, **kw: DecodeRandomCrop(8, **kw)(data)):
        with pytest.raises(FormatError, match="more than max_pixels=3_215"):
            decode(saved(), max_pixels=48 * 67 - 1)
    assert decode_image(saved(), max_pixels=48 * 67).shape == IMG.shape


def test_png_chunk_longer_than_the_file() -> None:
    for kind in (b"IDAT", b"IEND"):
        png = bytearray(FORMATS["PNG"])
        at = png.index(kind)
        png[at - 4 : at] = b"\xa6\0\1\0"  # OpenCV would take 2.8 GB before it looks at the rest
        with pytest.raises(FormatError, match=r"cat\.png is a damaged PNG file: it ends too early"):
            decode_image(png, name="cat.png")
    assert np.array_equal(decode_image(FORMATS["PNG"] + b"rubbish behind the end"), IMG)


def test_no_image() -> None:
    for data in (b"", b"\xff", b"GIF", b"hello world", bytes(1000)):
        with pytest.raises(FormatError, match="not an image file"):
            decode_image(data)
    data = saved()
    with pytest.raises(FormatError, match="no frame header"):  # a segment without length
        image_header(data[:4] + b"\0\1" + data[6:])
    for data in FORMATS.values():
        for end in (*range(0, 64, 3), len(data) // 2, len(data) - 20):
            with pytest.raises(FormatError):
                decode_image(data[:end])


@settings(max_examples=scaled(1200))
@given(st.data())
def test_damaged_bytes_are_an_error_or_an_image(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([*FORMATS, "JPEG", "PNG"]))
    orientation = 6 if kind in ("JPEG", "PNG", "WEBP", "TIFF") else None
    img = bytearray(saved(kind=kind, orientation=orientation))
    early, anywhere = st.integers(0, min(700, len(img) - 1)), st.integers(0, len(img) - 1)
    for _ in range(data.draw(st.integers(1, 6))):
        img[data.draw(early | anywhere)] = data.draw(st.integers(0, 255))
    cut = data.draw(st.sampled_from([None, len(img) // 2]) | anywhere)
    sizes: list[dict[str, Any]] = [{}, {"min_size": 1}, {"min_size": 20}, {"part": [5, 3, 9, 9]}]
    options = data.draw(st.sampled_from(sizes)) | {
        "strict": data.draw(st.booleans()),
        "channels": data.draw(st.sampled_from([1, 3, 4, None])),
    }
    try:
        result = decode_image(bytes(img[:cut]), max_pixels=1 << 22, **options)
    except FormatError:
        return
    except ConfigError:
        assert "part" in options  # the picture may be said to be smaller
        return
    assert result.ndim == 3 and result.size > 0
    assert result.shape[2] == (options["channels"] or result.shape[2])
