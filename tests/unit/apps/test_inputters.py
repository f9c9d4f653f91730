"""Laws of the inputters of image classification, over small real data."""

import gzip
import importlib
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from towerpack import ConfigError, FormatError, MapError, TowerpackError
from towerpack.apps.classification import augmenters
from towerpack.apps.classification._config import DataConfig
from towerpack.apps.classification._image_inputter import ImageInputter, make_inputter
from towerpack.config import load
from towerpack.dataflow.formats import TFRecordWriter, encode_example
from towerpack.dataflow.images import encode_jpeg

SIZE = (12, 10)
COLOURS = {"blue": (0, 0, 255), "green": (0, 255, 0), "red": (255, 0, 0)}


def jpeg(file: Path, colour: tuple[int, int, int], number: int) -> Path:
    """A picture of one colour, in which the number can be read from the first pixel."""
    img = np.full((12, 10, 3), colour, np.uint8)
    img[img == 0] = number
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(encode_jpeg(img, quality=100, subsampling="444"))
    return file


def folders(root: Path, *, count: int = 10) -> dict[str, Any]:
    for name, colour in COLOURS.items():
        for i in range(count):
            jpeg(root / name / f"{i}.jpg", colour, 10 * i)
    return {"inputter": "folder", "path": str(root)}


def split_folders(root: Path) -> dict[str, Any]:
    for split in ("train", "val", "test"):
        folders(root / split, count=5)
    (root / "val/green").rename(root / "val/.green")  # A class may have no validation data.
    return {"inputter": "folder", "path": str(root)}


def csv_files(root: Path) -> dict[str, Any]:
    folders(root / "pictures")
    lines = [f"pictures/{name}/{i}.jpg,{name}" for name in COLOURS for i in range(10)]
    (root / "one.csv").write_text("path,label\n" + "\n".join(lines[::3]) + "\n")
    (root / "two.csv").write_text(
        "\n".join(f"'{line.replace(',', chr(39) + ',')}" for line in lines[1::3])
    )
    (root / "sub").mkdir()
    (root / "sub/test.csv").write_text(
        "".join(f'"../{line}"\n'.replace(",", '","') for line in lines[2::3])
    )
    return {
        "inputter": "csv",
        "path": str(root),
        "train": ["one.csv", "two.csv"],
        "test": "sub/test.csv",
    }


def integer_csv(root: Path) -> dict[str, Any]:
    folders(root, count=4)
    for split, numbers in (("train", (0, 1)), ("val", (2,)), ("test", (3,))):
        lines = [f"{n}/{i}.jpg,{k}" for k, n in enumerate(COLOURS) for i in numbers]
        (root / f"{split}.csv").write_text("\n".join(lines))
    return {"inputter": "csv", "path": str(root), "class_names": list(COLOURS)}


def records(root: Path) -> dict[str, Any]:
    folders(root)
    examples = [
        {"image/encoded": (root / name / f"{i}.jpg").read_bytes(), "image/class/label": label}
        for label, name in enumerate(COLOURS)
        for i in range(10)
    ]
    for part, name in enumerate(["train-0.tfrecord", "train-1.tfrecord", "test.tfrecord"]):
        with TFRecordWriter(root / name) as writer:
            for example in examples[part::3]:
                writer.write(encode_example(example))
    return {
        "inputter": "tfrecord",
        "path": str(root),
        "train": "train-*.tfrecord",
        "class_names": list(COLOURS),
    }


def colour_rows(rng: np.random.Generator, count: int, label_bytes: int) -> np.ndarray:
    """Records of CIFAR: labels, then planes; the brightest plane is the label's."""
    labels = np.arange(count) % 3
    planes = rng.integers(0, 100, (count, 3, 32 * 32), np.uint8)
    planes[np.arange(count), 2 - labels] = 255
    columns = [labels[:, None].astype(np.uint8)] * label_bytes
    return np.hstack([*columns, planes.reshape(count, -1)])


def cifar(root: Path, label_bytes: int = 1) -> dict[str, Any]:
    """In the true binary format."""
    rng = np.random.default_rng(0)
    inner = root / ("cifar-10-batches-bin" if label_bytes == 1 else "cifar-100-binary")
    inner.mkdir(parents=True)
    several = [f"data_batch_{i}.bin" for i in range(1, 6)] if label_bytes == 1 else ["train.bin"]
    for file in several:
        colour_rows(rng, 30 // len(several), label_bytes).tofile(inner / file)
    last = "test_batch.bin" if label_bytes == 1 else "test.bin"
    colour_rows(rng, 10, label_bytes).tofile(inner / last)
    names = [*COLOURS, *(f"class {i}" for i in range(3, 10 if label_bytes == 1 else 100))]
    file = "batches.meta.txt" if label_bytes == 1 else "fine_label_names.txt"
    (inner / file).write_text("\n".join(names) + "\n\n")
    # Either the folder or the one above it.
    where = root if label_bytes == 1 else inner
    return {"inputter": "cifar10" if label_bytes == 1 else "cifar100", "path": str(where)}


def cifar100(root: Path) -> dict[str, Any]:
    return cifar(root, 2)


def idx(root: Path, images: np.ndarray, labels: np.ndarray, prefix: str) -> None:
    for name, array in (("images-idx3", images), ("labels-idx1", labels)):
        head = struct.pack(f">{1 + array.ndim}I", 0x800 + array.ndim, *array.shape)
        data = gzip.compress(head + array.astype(np.uint8).tobytes())
        root.mkdir(parents=True, exist_ok=True)
        (root / f"{prefix}-{name}-ubyte.gz").write_bytes(data)


def fashion(root: Path) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    for prefix, count in (("train", 30), ("t10k", 10)):
        idx(root, rng.integers(0, 256, (count, 28, 28)), np.arange(count) % 10, prefix)
    return {"inputter": "fashion_mnist", "path": str(root)}


def digits(root: Path) -> dict[str, Any]:
    return {"inputter": "digits"}


SOURCES = [
    folders,
    split_folders,
    csv_files,
    integer_csv,
    records,
    cifar,
    cifar100,
    fashion,
    digits,
]
COUNTS = {
    split_folders: (15, 10, 15),
    integer_csv: (6, 3, 3),
    digits: (1257, 180, 360),
}
DIVIDED = {folders: 30, csv_files: 30, records: 30, cifar: 40, cifar100: 40, fashion: 40}
"""Pictures in all splits, some of which are chosen by hash."""


def counts_of(made: ImageInputter, source: Any) -> Sequence[int]:
    """Pictures in train, val and test: each class has some in each split that is divided."""
    counts = [len(made.part(split)) for split in ("train", "val", "test")]
    if source in COUNTS:
        assert tuple(counts) == COUNTS[source]
    else:
        assert sum(counts) == DIVIDED[source] and counts[0] > counts[1] > 0
        if source not in (records, cifar, cifar100):
            assert made.class_counts("val").min() > 0
    return counts


def inputter(values: dict[str, Any], **more: Any) -> ImageInputter:
    config = DataConfig(**{"size": SIZE, "batch_size": 4, **values, **more})
    made: ImageInputter = make_inputter(config)  # type: ignore[assignment]
    assert made.parts is not None  # which are looked for when they are needed
    return made


def read(flow: Any, **place: int) -> tuple[np.ndarray, np.ndarray]:
    images, labels = zip(*flow.iterate(**(place or {"seed": 0, "epoch": 0})), strict=True)
    return np.concatenate(images), np.concatenate(labels)


@pytest.fixture(params=SOURCES, ids=lambda source: source.__name__)
def source(request: pytest.FixtureRequest) -> Callable[[Path], dict[str, Any]]:
    return request.param


class TestAllInputters:
    def test_splits(self, source: Any, tmp_path: Path) -> None:
        """Each picture once in val and test, in order; whole batches of others in train."""
        made = inputter(source(tmp_path))
        seen: dict[str, set[bytes]] = {}
        for split, count in zip(("train", "val", "test"), counts_of(made, source), strict=True):
            flow = made.flow(split)
            images, labels = read(flow)
            assert images.dtype == np.uint8 and labels.dtype == np.int64
            assert images.shape[1:] == (*SIZE, 3)
            assert len(images) == (count - count % 4 if split == "train" else count)
            assert len(flow) == -(-len(images) // 4)
            counts = made.class_counts(split)
            assert counts.sum() == count and len(counts) == made.num_classes
            if split != "train":
                assert np.array_equal(counts, np.bincount(labels, minlength=made.num_classes))
                assert np.array_equal(read(flow, seed=3, epoch=1)[0], images)
            if source not in (digits, split_folders):
                rows = [img.tobytes() for img in images]
                assert len(set(rows)) == len(rows)
                seen[split] = set(rows)
        everything = list(seen.values())
        assert sum(map(len, everything)) == len(set().union(*everything))

    def test_labels_are_those_of_the_pictures(self, source: Any, tmp_path: Path) -> None:
        made = inputter(source(tmp_path))
        if source in (digits, fashion):
            first = {digits: "0", fashion: "T-shirt/top"}[source]
            assert made.class_names[0] == first and made.num_classes == 10
            return
        assert list(made.class_names[:3]) == list(COLOURS)
        for split in ("train", "val", "test"):
            images, labels = read(made.flow(split))
            brightest = images[:, 5, 5].argmax(axis=1)
            assert [list(COLOURS.values())[k].index(255) for k in labels] == brightest.tolist()

    def test_passes_are_functions_of_the_seed(self, source: Any, tmp_path: Path) -> None:
        values = source(tmp_path)
        made = (inputter(values, augmenter="cifar", samples=6) for _ in range(2))
        one, again = (each.flow("train") for each in made)
        first = read(one, seed=1, epoch=0)
        assert np.array_equal(first[0], read(again, seed=1, epoch=0)[0])
        for place in ({"seed": 1, "epoch": 1}, {"seed": 2, "epoch": 0}):
            assert not np.array_equal(first[0], read(one, **place)[0])

    def test_a_file_is_prepared_as_validation_data_are(self, source: Any, tmp_path: Path) -> None:
        made = inputter(source(tmp_path), channels=1, augmenter="inception", size=(9, 7))
        images, _ = read(made.flow("val"))
        assert images.shape[1:] == (9, 7, 1)
        for (picture, _), expected in zip(made.source("val"), images, strict=True):
            bgr = picture[..., ::-1] if picture.ndim == 3 else picture
            sample = made.read(cv2.imencode(".png", bgr)[1].tobytes())
            assert sample.ndim == 3 and sample.shape[2] == 3
            (prepared,) = made.prepare(sample)
            assert np.array_equal(prepared, expected)

    def test_synthetic_data(self, source: Any, tmp_path: Path) -> None:
        made = inputter(source(tmp_path), synthetic=True, workers=2)
        batches = list(made.flow("train"))
        assert len(batches) == counts_of(made, source)[0] // 4
        assert all(batch is batches[0] for batch in batches)
        assert batches[0][0].shape == (4, *SIZE, 3) and batches[0][0].dtype == np.uint8
        assert batches[0][1].max() < made.num_classes and batches[0][1].dtype == np.int64

    def test_fewer_training_pictures(self, source: Any, tmp_path: Path) -> None:
        made = inputter(source(tmp_path), samples=5)
        assert made.class_counts().sum() == 5
        every = inputter(source(tmp_path / "whole"))
        assert len(made.part("val")) == len(every.part("val"))
        assert {*made.row_names("train")} <= {*every.row_names("train")}
        with pytest.raises(ConfigError, match="training rows, got 100000"):
            inputter(source(tmp_path / "more"), samples=100_000)


def test_a_run_needs_no_data_to_predict(tmp_path: Path) -> None:
    values = csv_files(tmp_path / "data")
    inputter(values).keep(tmp_path)
    away = make_inputter(DataConfig(size=SIZE, **{**values, "path": str(tmp_path / "gone")}))
    away.restore(tmp_path)
    assert list(away.class_names) == list(COLOURS)
    assert away.prepare(np.zeros([9, 7, 3], np.uint8))[0].shape == (*SIZE, 3)
    with pytest.raises(ConfigError, match="gone"):
        away.flow("val")
    other = make_inputter(DataConfig(size=SIZE, **values, class_names=[*COLOURS, "more"]))
    other.restore(tmp_path)
    with pytest.raises(ConfigError, match="the same classes as the run"):
        other.flow("val")


def test_training_data_are_shuffled() -> None:
    made = inputter({"inputter": "digits"})
    stored = made.part("train").labels[: 4 * (1257 // 4)]
    orders = [stored, *(read(made.flow("train"), seed=0, epoch=e)[1] for e in (0, 1))]
    assert len({order.tobytes() for order in orders}) == 3


def test_workers_change_nothing(tmp_path: Path) -> None:
    values = folders(tmp_path)
    one, two = (inputter(values, augmenter="randaugment", workers=n) for n in (0, 2))
    assert np.array_equal(read(one.flow("train"))[0], read(two.flow("train"))[0])


def test_validation_data_have_all_classes() -> None:
    made = inputter({"inputter": "digits"}, samples=100)
    assert made.class_counts().min() >= 9


FORMATS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "grey.png": lambda img: img[..., 0],
    "grey16.png": lambda img: img[..., 0].astype(np.uint16) * 256 + 17,
    "colour.bmp": lambda img: img,
    "rgba.png": lambda img: np.dstack([img, np.full(img.shape[:2], 9, np.uint8)]),
    "colour16.tiff": lambda img: img.astype(np.uint16) * 256 + 255,
}


@pytest.mark.parametrize("channels", [1, 3])
def test_kinds_of_pictures(tmp_path: Path, channels: int) -> None:
    """Grey, transparent, of 16 bits, CMYK: all become what the network takes."""
    bgr = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), np.uint8)
    (tmp_path / "a").mkdir(parents=True)
    (tmp_path / "b").mkdir(parents=True)
    for name, convert in FORMATS.items():
        assert cv2.imwrite(str(tmp_path / "a" / name), convert(bgr))
    inks = Image.fromarray(bgr[..., ::-1]).convert("CMYK")
    inks.save(tmp_path / "a/inks.jpg", quality=100, subsampling=0)
    jpeg(tmp_path / "b/0.jpg", (0, 0, 255), 0)
    made = inputter(
        {"inputter": "folder", "path": str(tmp_path)}, channels=channels, validation=0, batch_size=7
    )
    by_name = {
        Path(str(file)).name: made.prepare(made.read(file))[0]
        for file in made.part("train").pictures
    }
    images, _ = read(made.flow("train"))
    assert {img.tobytes() for img in images} == {img.tobytes() for img in by_name.values()}
    luma = np.rint(bgr @ np.array([0.114, 0.587, 0.299]))[..., None]
    colour = bgr[..., ::-1] if channels == 3 else luma
    grey = np.repeat(bgr[..., :1], channels, axis=2)
    for name, img in by_name.items():
        if name != "0.jpg":
            expected = grey if name.startswith("grey") else colour
            assert np.abs(img - expected.astype(float)).max() <= (8 if name == "inks.jpg" else 1), (
                name
            )


def broken_jpeg(root: Path) -> dict[str, Any]:
    values = folders(root)
    file = root / "red/3.jpg"
    file.write_bytes(file.read_bytes()[:-40])
    return values


def no_picture(root: Path) -> dict[str, Any]:
    values = folders(root)
    (root / "red/3.jpg").write_text("no picture")
    return values


def lost(root: Path) -> dict[str, Any]:
    folders(root)
    (root / "train.csv").write_text("red/3.jpg,red\nred/33.jpg,red\n")
    return {"inputter": "csv", "path": str(root), "validation": 0, "batch_size": 1}


def broken_record(root: Path) -> dict[str, Any]:
    values = records(root)
    with TFRecordWriter(root / "train-2.tfrecord") as writer:
        writer.write(encode_example({"image/encoded": b"no picture", "image/class/label": 0}))
    return values


def label_of_no_class(root: Path) -> dict[str, Any]:
    return {**records(root), "class_names": ["one", "two"]}


@pytest.mark.parametrize(
    ("source", "named", "workers"),
    [
        (broken_jpeg, "red/3.jpg", 0),
        (broken_jpeg, "red/3.jpg", 1),
        (no_picture, "red/3.jpg", 0),
        (lost, "red/33.jpg", 0),
        (broken_record, "train-2.tfrecord (byte 0)", 1),
        (label_of_no_class, "train-0.tfrecord (byte", 0),
    ],
)
def test_bad_pictures_are_named(source: Any, named: str, workers: int, tmp_path: Path) -> None:
    with pytest.raises((MapError, FormatError)) as error:
        made = inputter({**source(tmp_path), "validation": 0, "batch_size": 1}, workers=workers)
        list(made.flow("train").iterate(seed=0, epoch=0))
    assert str(tmp_path / named) in str(error.value)
    if source in (broken_jpeg, no_picture):
        with pytest.raises(FormatError, match=named):
            made.read(tmp_path / named)


def make_files(folder: Path) -> None:
    """Files of the names in lists; what is in them does not matter."""
    for name in "abc":
        (folder / f"{name}.jpg").touch()


CSV_ERRORS = {
    "no label": ("a.jpg,0\nb.jpg\n", r"train\.csv, line 2\b"),
    "three fields": ("a.jpg,0\nb.jpg,1,2\n", r"train\.csv, line 2\b"),
    "open quote": ('a.jpg,0\n"b.jpg,1\n', r"train\.csv, line 2\b"),
    "mixed labels": (
        "a.jpg,0\nb.jpg,1\nc.jpg,cat\n",
        r"labels are integers.* 'cat' in .*train\.csv, line 3",
    ),
    "negative": ("a.jpg,0\nb.jpg,-1\n", r"label of .*b\.jpg must be .*, got -1"),
    "empty": ("", r"no images in .*train\.csv"),
    "header alone": ("path,label\n", r"no images in .*train\.csv"),
}


@pytest.mark.parametrize("case", CSV_ERRORS)
def test_bad_lines_are_named(case: str, tmp_path: Path) -> None:
    text, message = CSV_ERRORS[case]
    (tmp_path / "train.csv").write_text(text)
    with pytest.raises((ConfigError, FormatError), match=message):
        inputter({"inputter": "csv", "path": str(tmp_path)})


def test_names_of_classes(tmp_path: Path) -> None:
    """The order is that of the configuration; without one, that of the names in all files."""
    make_files(tmp_path)
    (tmp_path / "train.csv").write_text("a.jpg,cat\nb.jpg,ant\n")
    (tmp_path / "test.csv").write_text("c.jpg,bee\n")
    values = {"inputter": "csv", "path": str(tmp_path), "validation": 0}
    assert list(inputter(values).class_names) == ["ant", "bee", "cat"]
    names = ["cat", "bee", "ant", "dog"]
    made = inputter(values, class_names=names)
    assert list(made.class_names) == names
    assert made.part("train").labels.tolist() == [0, 2]
    with pytest.raises(FormatError, match=r"test\.csv, line 1: the label 'bee'"):
        inputter(values, class_names=["cat", "ant"])
    (tmp_path / "test.csv").write_text("c.jpg,4\n")
    with pytest.raises(FormatError, match=r"'4' in .*test\.csv.* 'cat' in .*train\.csv"):
        inputter(values)
    (tmp_path / "train.csv").write_text("a.jpg,0\n")
    assert list(inputter(values).class_names) == list("01234")
    assert inputter(values, num_classes=7).num_classes == 7
    with pytest.raises(FormatError, match="from 0 to 2, got 4"):
        inputter(values, num_classes=3)
    with pytest.raises(ValueError, match="3 different names, not num_classes"):
        inputter(values, num_classes=5, class_names=["a", "b", "c"])


def test_gaps_in_integer_labels(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Labels that start at 1 make no class 0 without pictures, unless the number is given."""
    make_files(tmp_path)
    values = {"inputter": "csv", "path": str(tmp_path), "validation": 0}
    (tmp_path / "train.csv").write_text("file;number\na.jpg;3\nb.jpg;1\nc.jpg;2\n")
    with pytest.raises(
        FormatError, match=r"got 1 as the smallest label, in .*train\.csv, line 3\."
    ):
        inputter(values)
    assert inputter(values, num_classes=4).num_classes == 4
    (tmp_path / "train.csv").write_text("a.jpg,0\nb.jpg,4\nc.jpg,1\n")
    assert inputter(values).num_classes == 5
    assert "2 labels from 0 to 4 are not in any row." in caplog.text
    assert "train.csv, line 2" in caplog.text


def test_similar_names_of_classes(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    make_files(tmp_path)
    (tmp_path / "train.csv").write_text("img,category\na.jpg,Cat\nb.jpg, cat\nc.jpg,dog\n")
    made = inputter({"inputter": "csv", "path": str(tmp_path), "validation": 0})
    assert list(made.class_names) == ["Cat", "cat", "dog"]
    assert "'Cat' (1 rows, first in" in caplog.text and "line 3)" in caplog.text


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"encoding": "cp1252"}, r"data\.encoding does not apply"),
        ({"path": "x"}, r"data\.path does not apply"),
        ({"validation": 0.2}, r"data\.validation does not apply"),
        ({"num_classes": 10}, r"data\.num_classes does not apply"),
        ({"train": "a.csv"}, r"data\.train does not apply"),
        ({"inputter": "folder", "class_names": ["a"]}, r"data\.class_names does not apply"),
        ({"inputter": "folder", "path": "/nowhere"}, "folder /nowhere does not exist"),
        ({"inputter": "digit"}, "no inputter 'digit'"),
        ({"augmenter": "cifr"}, "no augmenter 'cifr'"),
        ({"batch_size": 2000}, "one batch of 2000 rows, got 1257 rows"),
        ({"inputter": "tfrecord"}, "need the number or the names of the classes"),
        ({"inputter": "tfrecord", "num_classes": 2, "train": "none*"}, r"none\*"),
        ({"inputter": "mnist", "class_names": ["a"], "path": "FASHION"}, "10 names, got 1"),
        ({"inputter": "csv", "train": "none.csv"}, r"none\.csv cannot be read"),
    ],
)
def test_what_does_not_fit_is_refused(values: dict[str, Any], message: str, tmp_path: Path) -> None:
    if values.get("path") == "FASHION":
        values = {**values, "path": fashion(tmp_path)["path"]}
    with pytest.raises(TowerpackError, match=message):
        inputter(values).flow("train")


def test_there_are_no_validation_data(tmp_path: Path) -> None:
    made = inputter(folders(tmp_path), validation=0)
    with pytest.raises(ConfigError, match="no 'val' data"):
        made.flow("val")


def test_classes_of_validation_data_are_those_of_training(tmp_path: Path) -> None:
    values = split_folders(tmp_path)
    jpeg(tmp_path / "val/yellow/0.jpg", (255, 255, 0), 0)
    with pytest.raises(ConfigError) as error:
        inputter(values)
    assert "yellow" in str(error.value)


def test_by_importlib() -> None:
    """As the predecessor's programs put their parts together."""
    package = "towerpack.apps.classification"
    augmenter = importlib.import_module(f"{package}.augmenters").cifar
    config = DataConfig(inputter="digits", size=(8, 8))
    made = importlib.import_module(f"{package}.data_sets").DigitsInputter(config, augmenter)
    assert made.augmenter is augmenters.cifar and next(iter(made.flow("test")))[0].shape[1:3] == (
        8,
        8,
    )


def own_build(config: DataConfig, augmenter: Any) -> Any:
    return config, augmenter


def test_values_of_a_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(DataConfig, {"size": [8, 9]}, ["batch_size=3", "train=[a, b]"], where="here")
    assert config.size == (8, 9) and config.train == ["a", "b"]
    (tmp_path / "mine.py").write_text(
        "from dataclasses import replace\n"
        "from towerpack.apps.classification.augmenters import cifar, none\n"
        "from towerpack.apps.classification.data_sets import DigitsInputter as build\n"
        "shifted = replace(none, name='shifted', train=cifar.train)\n"
        "wrong = replace(none, name='wrong', train=lambda size: [])\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    made = inputter({"inputter": "mine:build", "augmenter": "mine:shifted"})
    assert made.augmenter.name == "shifted" and len(made.flow("train")) == 1257 // 4
    with pytest.raises((ConfigError, MapError), match="'wrong' must return uint8 pictures"):
        next(iter(inputter({"inputter": "mine:build", "augmenter": "mine:wrong"}).flow("train")))
