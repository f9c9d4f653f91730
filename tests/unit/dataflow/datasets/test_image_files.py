"""Data sets of image files: folders, lists, archives and annotations in the true formats."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dataset_files import mat_bytes, picture, serving, tar_bytes, zip_bytes
from towerpack._core.errors import ConfigError, FormatError
from towerpack.dataflow import DataFlow
from towerpack.dataflow.datasets import (
    BSDS500,
    ILSVRC12,
    ILSVRC12Files,
    ILSVRCMeta,
    Places365Standard,
    TinyImageNet,
)

NOWHERE = "http://127.0.0.1:9"
SYNSETS = ["n01440764", "n01443537", "n02134418"]
COLOURS = [(250, 10, 10), (10, 250, 10), (10, 10, 250)]
XML = """<annotation><folder>f</folder><size><width>500</width><height>375</height></size>
<object><name>n0</name><bndbox><xmin>1</xmin><ymin>2</ymin><xmax>30</xmax><ymax>40.5</ymax></bndbox>
</object><object><bndbox><xmin>9</xmin><ymin>9</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object>
</annotation>"""


def blob(array: np.ndarray) -> bytes:
    """A BlobProto as Caffe writes it: num, channels, height, width, data; all of them small."""
    sizes = b"".join(bytes([i << 3, n]) for i, n in enumerate((1, *array.shape), 1))
    return sizes + b"".join(b"\x2d" + value.tobytes() for value in array.astype("<f4").ravel())


def meta_files() -> dict[str, bytes]:
    train = [f"{wnid}/{wnid}_{i}.JPEG {n}" for n, wnid in enumerate(SYNSETS) for i in (7, 5)]
    val = [f"ILSVRC2012_val_{i:08}.JPEG {i % 3}" for i in range(1, 6)]
    test = [f"ILSVRC2012_test_{i:08}.JPEG 0" for i in range(1, 3)]
    return {
        "synsets.txt": "\n".join(SYNSETS).encode() + b"\n",
        "synset_words.txt": "\n".join(f"{wnid} word, other" for wnid in SYNSETS).encode() + b"\n",
        "train.txt": "\n".join(train).encode() + b"\n",
        "val.txt": "\n".join(val).encode() + b"\n",
        "test.txt": "\n".join(test).encode() + b"\n",
    }


def write(folder: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)


def imagenet(folder: Path, val_structure: str = "original") -> Path:
    """Images whose colour tells their label."""
    meta = meta_files()
    for part in ("train", "val", "test"):
        for line in meta[f"{part}.txt"].decode().splitlines():
            name, label = line.split()
            inner = f"{SYNSETS[int(label)]}/" if (part, val_structure) == ("val", "train") else ""
            write(folder / part, {inner + name: picture(20, 30, COLOURS[int(label)])})
    write(folder / "meta", meta)
    return folder


def same_colours(ds: DataFlow, shape: tuple[int, int]) -> bool:
    """Whether images have a shape, and the colours of their labels."""
    return all(
        image.dtype == np.uint8
        and image.shape == (*shape, 3)
        and type(label) is int
        and np.abs(image[5, 5].astype(int) - COLOURS[label][::-1]).max() < 10
        for image, label in ds
    )


TEXTS = ["", "a.JPEG", "a.JPEG x", "a.JPEG -1", "../a 0"]


class TestILSVRC12:
    def test_lists_from_the_archive(self, tmp_path: Path) -> None:
        with serving({"caffe_ilsvrc12.tar.gz": tar_bytes(meta_files())}) as served:
            meta = ILSVRCMeta(tmp_path, base_url=served.url, verify=False)
            assert not served.requests
            assert meta.get_synset_1000() == dict(enumerate(SYNSETS))
            assert meta.get_synset_words_1000()[1] == "n01443537 word, other"
            assert len(served.requests) == 1
        images = meta.get_image_list("train")
        assert images[1] == ("n01440764/n01440764_5.JPEG", 0) and len(images) == 6
        name = "ILSVRC2012_val_00000001.JPEG"
        assert meta.get_image_list("val", "train")[0] == (f"n01443537/{name}", 1)
        # The predecessor puts test images into folders of their (unknown) classes.
        assert meta.get_image_list("test", "train")[0][0] == "ILSVRC2012_test_00000001.JPEG"
        for arguments in (("all",), ("val", "flat")):
            with pytest.raises(ConfigError):
                meta.get_image_list(*arguments)
        write(tmp_path, {"val.txt": b"a.JPEG 3\n"})
        assert meta.get_image_list("val") == [("a.JPEG", 3)]
        with pytest.raises(FormatError, match="label 3"):
            meta.get_image_list("val", "train")

    def test_mean(self, tmp_path: Path) -> None:
        mean = np.arange(3 * 4 * 6, dtype=np.float32).reshape(3, 4, 6)
        write(tmp_path, {"imagenet_mean.binaryproto": blob(mean)})
        meta = ILSVRCMeta(tmp_path)
        assert np.array_equal(meta.get_per_pixel_mean(), mean.transpose(1, 2, 0))
        assert meta.get_per_pixel_mean((8, 9)).shape == (8, 9, 3)
        for wrong in (blob(mean[:1]), blob(mean)[:-4]):
            write(tmp_path, {"imagenet_mean.binaryproto": wrong})
            with pytest.raises(FormatError, match="binaryproto"):
                meta.get_per_pixel_mean()

    @pytest.mark.parametrize("structure", ["original", "train"])
    def test_images(self, tmp_path: Path, structure: str) -> None:
        folder = imagenet(tmp_path, structure)
        for name, count in (("train", 6), ("val", 5), ("test", 2)):
            ds = ILSVRC12(folder, name, tmp_path / "meta", shuffle=False, base_url=NOWHERE)
            assert len(ds) == count and same_colours(ds, (20, 30))
            assert ILSVRC12Files(folder, name, tmp_path / "meta").shuffle is (name == "train")

    def test_files(self, tmp_path: Path) -> None:
        ds = ILSVRC12Files(str(imagenet(tmp_path)), "val", tmp_path / "meta")
        same = ILSVRC12(imagenet(tmp_path), "val", tmp_path / "meta", channel_order=None)
        assert list(same) == list(ds)
        assert ds[1] == [str(tmp_path / "val" / "ILSVRC2012_val_00000002.JPEG"), 2]

    def test_missing_and_damaged_images(self, tmp_path: Path) -> None:
        folder = imagenet(tmp_path)
        with pytest.raises(ConfigError, match="structure 'train'"):
            ILSVRC12(folder, "val", tmp_path / "meta", dir_structure="train")
        with pytest.raises(ConfigError, match=r"folder .* does not exist"):
            ILSVRC12(tmp_path / "none", "val", tmp_path / "meta")
        path = folder / "val" / "ILSVRC2012_val_00000002.JPEG"
        ds = ILSVRC12(folder, "val", tmp_path / "meta")
        path.write_bytes(path.read_bytes()[:200])
        with pytest.raises(FormatError, match="00000002"):
            ds[1]
        path.unlink()
        with pytest.raises(FormatError, match="cannot be read"):
            list(ds)


def test_boxes(tmp_path: Path) -> None:
    write(tmp_path, {"n01440764/n01440764_10.xml": XML.encode()})
    images = [("n01440764/n01440764_10.JPEG", 0), ("n01440764/n01440764_11.JPEG", 0)]
    box, none = ILSVRC12.get_training_bbox(tmp_path, images)
    assert box is not None and box.dtype == np.float32 and box.tolist() == [1, 2, 30, 40.5]
    assert none is None
    for wrong in (
        "",
        XML.replace("<xmin>1</xmin>", ""),
        XML.replace(">1<", ">nan<"),
        XML[:100],
        '<!DOCTYPE a [<!ENTITY b "bb">]>' + XML.replace(">1<", ">&b;<"),
    ):
        write(tmp_path, {"a.xml": wrong.encode()})
        with pytest.raises(FormatError, match=r"a\.xml"):
            ILSVRC12.get_training_bbox(tmp_path, [("a.JPEG", 0)])


@cache
def tiny_files() -> dict[str, bytes]:
    top = "tiny-imagenet-200/"
    files = {
        f"{top}wnids.txt": "\n".join(reversed(SYNSETS)).encode(),
        f"{top}words.txt": f"{SYNSETS[0]}\ttench\n{SYNSETS[1]}\tgoldfish\n".encode(),
        f"{top}test/images/test_0.JPEG": b"",
    }
    annotations = ""
    for label, wnid in enumerate(reversed(SYNSETS)):
        for i in (0, 1):
            data = picture(64, 64, COLOURS[label], ".jpg")
            files[f"{top}train/{wnid}/images/{wnid}_{i}.JPEG"] = data
        files[f"{top}train/{wnid}/{wnid}_boxes.txt"] = b""
        files[f"{top}val/images/val_{label}.JPEG"] = picture(64, 64, COLOURS[label])
        annotations += f"val_{label}.JPEG\t{wnid}\t0\t0\t9\t9\n"
    return {**files, f"{top}val/val_annotations.txt": annotations.encode()}


def test_tiny_imagenet(tmp_path: Path) -> None:
    with serving({"tiny-imagenet-200.zip": zip_bytes(tiny_files())}) as served:
        TinyImageNet(tmp_path, "train", base_url=served.url, verify=False)
    for name, count in (("train", 6), ("val", 3)):
        ds = TinyImageNet(tmp_path, name, False, base_url=NOWHERE)
        assert len(ds) == count and same_colours(ds, (64, 64))
    assert ds.get_label_names() == [SYNSETS[2], "goldfish", "tench"]
    assert len(TinyImageNet(tmp_path / "tiny-imagenet-200", "val")) == 3
    folder = tmp_path / "tiny-imagenet-200" / "train" / SYNSETS[1]
    shutil.rmtree(folder)
    with pytest.raises(FormatError, match=f"(?s){SYNSETS[1]}.*No such file"):
        TinyImageNet(tmp_path, "train")
    (folder / "images").mkdir(parents=True)
    with pytest.raises(FormatError, match=f"(?s){SYNSETS[1]}.*it is empty"):
        TinyImageNet(tmp_path, "train")


@cache
def places_files() -> dict[str, bytes]:
    places = ["zoo", "airfield", "bar"]
    files: dict[str, bytes] = {}
    for part in ("train", "val"):
        names = [f"{part}/{place}/{i:08}.jpg" for place in places for i in range(2)]
        files[f"{part}.txt"] = "\n".join(names).encode()
        for name in names:
            files[name] = picture(16, 16, COLOURS[sorted(places).index(name.split("/")[1])])
    return files


def test_places(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="cannot be read"):
        Places365Standard(tmp_path, "train")
    write(tmp_path, places_files())
    for name in ("train", "val"):
        ds = Places365Standard(tmp_path, name, shuffle=False)
        assert ds.get_label_names() == ["airfield", "bar", "zoo"]
        assert [label for _, label in ds] == [2, 2, 0, 0, 1, 1] and same_colours(ds, (16, 16))
    with pytest.raises(ConfigError, match=r"folder .* does not exist"):
        Places365Standard(tmp_path / "none", "train")


def outlines(shape: tuple[int, int], drawn: list[tuple[int, int]]) -> bytes:
    """Annotator k drew the pixel `drawn[k]`."""
    cell = np.empty((1, len(drawn)), object)
    for k, pixel in enumerate(drawn):
        boundaries = np.zeros(shape, bool)
        boundaries[pixel] = True
        segments = np.ones(shape, np.uint16)
        cell[0, k] = {"Segmentation": segments, "Boundaries": boundaries}
    return mat_bytes({"groundTruth": cell})


@cache
def bsds_files() -> dict[str, bytes]:
    top = "BSR/BSDS500/data/"
    files = {f"{top}images/train/Thumbs.db": b"junk", "BSR/documentation/a.txt": b"text"}
    for part in ("train", "val", "test"):
        shapes = {"b": (481, 321), "a": (321, 481)}
        for stem, shape in shapes.items():
            files[f"{top}images/{part}/{stem}.jpg"] = picture(*shape, COLOURS[stem == "b"])
            drawn = [(3, 7), (3, 7), (3, 7), (100, 200)]
            files[f"{top}groundTruth/{part}/{stem}.mat"] = outlines(shape, drawn)
    return files


def test_bsds500(tmp_path: Path) -> None:
    with serving({"BSR_bsds500.tgz": tar_bytes(bsds_files())}) as served:
        BSDS500("val", tmp_path, base_url=served.url, verify=False)
    ds = BSDS500("train", tmp_path, shuffle=False, base_url=NOWHERE)
    (image, edges), (image_b, edges_b) = ds
    assert image.shape == image_b.shape == (321, 481, 3) and image.dtype == np.uint8
    assert edges.shape == edges_b.shape == (321, 481) and edges.dtype == np.float32
    assert edges[3, 7] == 0.75 and edges[100, 200] == 0.25 and edges.sum() == 1
    assert edges_b[7, 3] == 0.75 and edges_b[200, 100] == 0.25
    assert np.abs(image[9, 9].astype(int) - COLOURS[0][::-1]).max() < 10
    assert np.abs(image_b[9, 9].astype(int) - COLOURS[1][::-1]).max() < 10
    path = tmp_path / "BSR/BSDS500/data/groundTruth/train/a.mat"
    wrong: list[dict[str, Any]] = [
        {"other": 1},
        {"groundTruth": np.empty((1, 0), object)},
        {"groundTruth": np.array([[{"Other": np.zeros((321, 481))}]], object)},
        {"groundTruth": np.array([[{"Boundaries": np.zeros((3, 4))}]], object)},
    ]
    for variables in wrong:
        path.write_bytes(mat_bytes(variables))
        with pytest.raises(FormatError, match=r"a\.mat"):
            ds[0]
    path.unlink()
    with pytest.raises(FormatError, match=r"a\.mat cannot be read"):
        ds[0]


@pytest.mark.parametrize(
    ("make", "file", "text"),
    [
        *((lambda f: ILSVRCMeta(f).get_image_list("val"), "val.txt", text) for text in TEXTS),
        *(
            (lambda f: TinyImageNet(f, "val"), "tiny-imagenet-200/val/val_annotations.txt", text)
            for text in ("val_0.JPEG", "val_0.JPEG\tn999", f"../x\t{SYNSETS[0]}")
        ),
        *(
            (lambda f: Places365Standard(f, "train"), "train.txt", text)
            for text in ("", "train/a.jpg", "/train/a/b.jpg", "train/../a")
        ),
    ],
)
def test_damaged_lists(tmp_path: Path, make: Any, file: str, text: str) -> None:
    wnids = "tiny-imagenet-200/wnids.txt"
    write(tmp_path, {**meta_files(), wnids: tiny_files()[wnids], file: text.encode()})
    with pytest.raises(FormatError, match=Path(file).stem):
        make(tmp_path)


Make = Callable[..., DataFlow]
ALL: dict[str, tuple[Make, Callable[[], dict[str, bytes]]]] = {
    "tiny": (lambda f, name="val", **kw: TinyImageNet(f, name, **kw), tiny_files),
    "places": (lambda f, name="train", **kw: Places365Standard(f, name, **kw), places_files),
    "bsds500": (lambda f, name="test", **kw: BSDS500(name, f, **kw), bsds_files),
    "ilsvrc12": (lambda f, name="val", **kw: ILSVRC12(f, name, f / "meta", **kw), dict),
}


@pytest.mark.parametrize("case", ALL)
def test_order_of_channels(tmp_path: Path, case: str) -> None:
    make, files = ALL[case]
    write(tmp_path, files())
    if case == "ilsvrc12":
        imagenet(tmp_path)
    (bgr, *_), (rgb, *_) = make(tmp_path)[0], make(tmp_path, channel_order="rgb")[0]  # type: ignore[index]
    assert np.array_equal(bgr[..., ::-1], rgb)
    with pytest.raises(ConfigError, match="channel_order"):
        make(tmp_path, channel_order="RGB")
    with pytest.raises(ConfigError, match="'train'"):
        make(tmp_path, "everything")
