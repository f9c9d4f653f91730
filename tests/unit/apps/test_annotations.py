"""Annotations of three formats, as many programs write them, and with one fault each."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image

from box_files import write_scenes
from towerpack import ConfigError, DataFlowError, FormatError
from towerpack.apps import segmentation
from towerpack.apps.detection import DataConfig, DetectionInputter, make_inputter

PICTURES = 6


@pytest.fixture
def scenes(tmp_path: Path) -> Path:
    write_scenes(tmp_path, {"train": PICTURES}, ("coco", "voc", "yolo"))
    return tmp_path


def inputter(root: Path, form: str, **config: Any) -> DetectionInputter:
    path = str(root if form == "coco" else root / form)
    given = {"batch_size": 2, "size": (64, 64), "augmenter": "none", "validation": 0, **config}
    found: Any = make_inputter(DataConfig(inputter=form, path=path, **given))
    assert found.parts
    return found


def boxes_of(found: DetectionInputter) -> dict[str, list[Any]]:
    """Corners and names of the classes, by the name of the picture."""
    return {
        Path(one.picture).stem: sorted(
            [found.class_names[i], *np.round(box, 4).tolist()]
            for i, box in zip(one.class_ids, one.boxes, strict=True)
        )
        for one in found.parts["train"]
    }


def coco(root: Path, change: Callable[[Any], Any]) -> None:
    content = json.loads((root / "train.json").read_text())
    change(content)
    (root / "train.json").write_text(json.dumps(content))


def of_first(**values: Any) -> Callable[[Any], Any]:
    return lambda content: content["annotations"][0].update(values)


def without(key: str, name: str) -> Callable[[Any], Any]:
    return lambda content: content[key][0].pop(name)


def xml(old: str, new: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        file = root / "voc/Annotations/train000.xml"
        file.write_text(re.sub(old, new, file.read_text(), count=1, flags=re.DOTALL))

    return change


def labels(line: str) -> Callable[[Path], None]:
    """Another first line for the boxes of the first picture of YOLO."""

    def change(root: Path) -> None:
        file = root / "yolo/labels/train/train000.txt"
        file.write_text("\n".join([line, *file.read_text().splitlines()[1:]]))

    return change


def both(text: str) -> Callable[[Any], Any]:
    return lambda content: content["categories"].append({"id": 4, "name": text})


# An annotation that cannot be used: refused with its place, or left out and counted.
BAD_BOXES: dict[str, tuple[str, Any, str]] = {
    "coco: no bbox": ("coco", without("annotations", "bbox"), "annotation 0: bbox"),
    "coco: bbox null": ("coco", of_first(bbox=None), "annotation 0: bbox"),
    "coco: bbox of three": ("coco", of_first(bbox=[1, 2, 3]), "annotation 0: bbox"),
    "coco: bbox of words": ("coco", of_first(bbox=["a", 1, 2, 3]), "annotation 0: bbox"),
    "coco: bbox nan": ("coco", of_first(bbox=[float("nan"), 1, 2, 3]), "annotation 0: bbox"),
    "coco: area of words": ("coco", of_first(area="large"), "annotation 0: area"),
    "coco: same id": ("coco", of_first(id=1), "annotation 1: its id must be unique"),
    "coco: no such category": ("coco", of_first(category_id=99), "annotation 0: .*category 99"),
    "coco: no such picture": ("coco", of_first(image_id=99), "annotation 0: .*id 99"),
    "coco: no picture": ("coco", without("annotations", "image_id"), "annotation 0: image_id"),
    "coco: no object": (
        "coco",
        lambda content: content["annotations"].__setitem__(0, 5),
        "annotation 0",
    ),
    "voc: no bndbox": ("voc", xml("<bndbox>.*?</bndbox>", ""), r"line \d+: xmin"),
    "voc: no name": ("voc", xml("<name>[^<]*</name><diff", "<diff"), r"line \d+: name"),
    "voc: words": ("voc", xml("<xmin>", "<xmin>x"), r"line \d+: xmin"),
    "voc: infinite": ("voc", xml("<xmax>[^<]*", "<xmax>inf"), r"line \d+: xmax"),
    "yolo: too few": ("yolo", labels("0 0.5 0.5 0.5"), "line 1: the line is not a box"),
    "yolo: with a score": ("yolo", labels("0 .5 .5 .5 .5 .9"), "line 1: the line is not a box"),
    "yolo: words": ("yolo", labels("zero .5 .5 .5 .5"), "line 1: the line is not a box"),
    "yolo: nan": ("yolo", labels("0 nan .5 .5 .5"), "line 1: the line is not a box"),
    "yolo: no such class": ("yolo", labels("3 .5 .5 .5 .5"), "line 1: the class must be one of"),
    "yolo: half a class": ("yolo", labels("0.5 .5 .5 .5 .5"), "line 1: the line is not a box"),
    "yolo: no area": ("yolo", labels("0 .5 .5 .5 0"), "line 1: the box must have an area"),
}


@pytest.mark.parametrize("case", BAD_BOXES)
def test_a_bad_annotation_is_refused_at_the_start_or_counted(
    case: str, scenes: Path, caplog: pytest.LogCaptureFixture
) -> None:
    form, change, place = BAD_BOXES[case]
    whole = sum(map(len, boxes_of(inputter(scenes, form)).values()))
    coco(scenes, change) if form == "coco" else change(scenes)
    with pytest.raises(FormatError, match=place) as caught:
        inputter(scenes, form)
    assert "data.bad_boxes=skip" in str(caught.value.fix)
    with caplog.at_level(logging.WARNING):
        found = inputter(scenes, form, bad_boxes="skip")
    assert "Skipped 1 invalid annotations" in caplog.text
    assert sum(map(len, boxes_of(found).values())) == whole - 1


# What makes a whole file doubtful is refused in any case.
BAD_FILES: dict[str, tuple[str, Any, str]] = {
    "a category twice": ("coco", both("four"), r"4 is not|name 'four'"),
    "two names of a category": ("coco", both("five"), "must be unique, but 4 is not"),
    "a name twice": (
        "coco",
        lambda c: (
            c["categories"].append({"id": 9, "name": "one"}),
            c["annotations"].append({**c["annotations"][0], "id": 10**6, "category_id": 9}),
            c["annotations"].append({**c["annotations"][0], "id": 10**6 + 1, "category_id": 4}),
        ),
        "but several have the name 'one'",
    ),
    "a picture twice": (
        "coco",
        lambda c: c["images"].append(c["images"][0]),
        "'images' must be unique",
    ),
    "a picture without name": ("coco", without("images", "file_name"), "images, number 0: file_n"),
    "a category without id": ("coco", without("categories", "id"), "categories, number 0: id"),
    "no annotations": ("coco", lambda c: c.pop("annotations"), "must contain a list 'annotations'"),
    "a picture elsewhere": (
        "coco",
        lambda c: c["images"][1].update(file_name="../../x.png"),
        "only files inside the data",
    ),
    "a picture that is missing": (
        "coco",
        lambda c: c["images"][1].update(file_name="train/none.png"),
        "but 1 of 6 do not",
    ),
    "voc: a picture that is missing": (
        "voc",
        lambda root: (root / "voc/JPEGImages/train000.png").unlink(),
        r"train000",
    ),
    "voc: many levels": (
        "voc",
        xml("<annotation>", "<annotation>" + "<a>" * 200_000),
        "nested elements",
    ),
    "voc: a name that leaves the folder": (
        "voc",
        lambda root: (root / "voc/ImageSets/Main/train.txt").write_text("../../secret\n"),
        "only files inside the data",
    ),
    "voc: entities": ("voc", xml("<annotation>", "<!DOCTYPE a><annotation>"), "document type"),
    "yolo: names with a gap": (
        "yolo",
        lambda root: (root / "yolo/data.yaml").write_text("names: {0: a, 2: b}"),
        "must name the classes",
    ),
    "yolo: no names": (
        "yolo",
        lambda root: (root / "yolo/data.yaml").write_text("nc: 3"),
        "must name the classes",
    ),
    "yolo: labels that are no text": (
        "yolo",
        lambda root: (root / "yolo/labels/train/train000.txt").write_bytes(b"0 \xff"),
        "train000.txt, line 1",
    ),
}


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_doubtful_file_is_refused_at_the_start(case: str, scenes: Path) -> None:
    form, change, place = BAD_FILES[case]
    coco(scenes, change) if form == "coco" else change(scenes)
    for policy in ("error", "skip"):
        with pytest.raises((FormatError, ConfigError), match=place):
            inputter(scenes, form, bad_boxes=policy)


def every(key: str, **values: Any) -> Callable[[Any], Any]:
    def change(content: Any) -> None:
        for one in content[key]:
            one.update({name: value(one) for name, value in values.items()})

    return change


def moved_labels(root: Path) -> None:
    """UTF-16, as some editors of Windows save."""
    for file in (root / "yolo/labels/train").glob("*.txt"):
        file.write_text(file.read_text(), encoding="utf-16")


def as_polygons(root: Path) -> None:
    for file in (root / "yolo/labels/train").glob("*.txt"):
        lines = []
        for line in file.read_text().splitlines():
            k, x, y, w, h = map(float, line.split())
            corners = [(x - w / 2, y), (x, y - h / 2), (x + w / 2, y), (x, y + h / 2)]
            lines.append(" ".join(map(str, [int(k), *np.ravel(corners)])))
        file.write_text("\n".join(lines))


def names(text: str) -> Callable[[Path], None]:
    def change(root: Path) -> None:
        (root / "yolo/classes.txt").unlink()
        (root / "yolo/data.yaml").write_text(text)

    return change


# Ten aliases of ten aliases of …: 10^9 texts in a few hundred bytes.
BOMB = "\n".join(
    ["a: &a [x]", *(f"{b}: &{b} [{','.join(10 * ['*' + a])}]" for a, b in pairwise("abcdefghij"))]
)
NO_TEXT = "must name the classes"
HOSTILE: dict[str, tuple[str, Any, str]] = {
    "classes of YAML's aliases": ("yolo", names(f"{BOMB}\nnames: {{0: *j}}"), NO_TEXT),
    "a path of YAML's aliases": ("yolo", names(f"{BOMB}\npath: *j\nnames: [a]"), NO_TEXT),
    "a key of YAML's aliases": ("yolo", names(f"{BOMB}\n? *j\n: 1"), NO_TEXT),
    "a path of many folders": ("yolo", names(f"names: [a]\nval: {'a/' * 300_000}"), "not exist"),
    "an unknown encoding": ("voc", xml("<ann", '<?xml version="1.0" encoding="foo"?><ann'), "foo"),
    "another encoding": ("voc", xml("<ann", '<?xml version="1.0" encoding="utf-7"?><ann'), "byte"),
    "a name with NUL": ("coco", every("images", file_name=lambda one: "train000.png\0"), "picture"),
    "other names with NUL": (
        "coco",
        lambda content: content["images"][1].update(file_name="a\0", width=0),
        "only files inside the data folder",
    ),
    "long names": (
        "coco",
        every("images", file_name=lambda one: "a" * 5000),
        "The picture .* does not exist",
    ),
    "no size": ("coco", every("images", width=lambda _: 1e-320, height=lambda _: 1e-320), "size"),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_a_hostile_file_is_refused_at_once(case: str, scenes: Path) -> None:
    form, change, reason = HOSTILE[case]
    coco(scenes, change) if form == "coco" else change(scenes)
    with pytest.raises((FormatError, ConfigError), match=reason):
        inputter(scenes, form)


def test_the_time_for_a_text_of_many_lines_is_linear(scenes: Path) -> None:
    """Each line is a piece for the parser; a million pieces put together one by one take hours."""
    xml("<object>", "<object><pose>" + "a\n" * 1_000_000 + "</pose>")(scenes)
    assert inputter(scenes, "voc").parts["train"]


def wrong_filename(root: Path) -> None:
    """LabelImg keeps the name of the file that a picture had when it was annotated."""
    for file in (root / "voc/Annotations").glob("*.xml"):
        text = re.sub("<filename>[^<]*</filename>", "", file.read_text())
        other = "<annotation><filename>train001.png</filename>"
        file.write_text(text.replace("<annotation>", other, 1))


SAME: dict[str, tuple[str, Any]] = {
    "coco: ids of categories as texts": ("coco", every("categories", id=lambda c: str(c["id"]))),
    "coco: ids of pictures as texts": (
        "coco",
        every("annotations", image_id=lambda a: str(a["image_id"])),
    ),
    "coco: ids as floats": (
        "coco",
        every("annotations", category_id=lambda a: float(a["category_id"])),
    ),
    "coco: as CVAT and Label Studio write": (
        "coco",
        every(
            "annotations", segmentation=lambda _: [], iscrowd=lambda _: None, area=lambda _: None
        ),
    ),
    "coco: sizes unknown": (
        "coco",
        every("images", width=lambda _: None, height=lambda _: None),
    ),
    "coco: names of Windows": (
        "coco",
        every("images", file_name=lambda i: i["file_name"].replace("/", "\\")),
    ),
    "voc: floats": ("voc", xml("<ymin>([0-9]+)<", r"<ymin>\1.0<")),
    "voc: other names": ("voc", wrong_filename),
    "yolo: UTF-16": ("yolo", moved_labels),
    "yolo: polygons": ("yolo", as_polygons),
    "yolo: names by number": ("yolo", names("names: {2: four, 0: zero, 1: one}")),
    "yolo: names of Roboflow": ("yolo", names("nc: 3\nnames:\n- zero\n- one\n- four\n")),
}


@pytest.mark.parametrize("case", SAME)
def test_other_programs_write_the_same_otherwise(case: str, scenes: Path) -> None:
    form, change = SAME[case]
    expected = boxes_of(inputter(scenes, form))
    coco(scenes, change) if form == "coco" else change(scenes)
    found = boxes_of(inputter(scenes, form))
    assert found.keys() == expected.keys()
    for name, rows in expected.items():
        assert [row[0] for row in found[name]] == [row[0] for row in rows]
        np.testing.assert_allclose(
            [row[1:] for row in found[name]], [row[1:] for row in rows], atol=2e-4
        )


def test_words_of_yaml_are_names(scenes: Path) -> None:
    names("names: [yes, no, 1.0]")(scenes)
    assert list(inputter(scenes, "yolo").class_names) == ["yes", "no", "1.0"]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["coco", "coco without sizes", "yolo"])
def test_boxes_on_the_stored_picture_are_turned_with_it(
    form: str, orientation: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One bright part of a dark picture, measured before EXIF's orientation is applied."""
    stored = np.zeros([40, 80, 3], np.uint8)
    stored[4:14, 50:70] = 255
    exif = Image.Exif()
    exif[0x0112] = orientation
    folder = tmp_path / ("yolo/images/train" if form == "yolo" else "train")
    folder.mkdir(parents=True)
    for i in range(2):
        Image.fromarray(stored).save(folder / f"{i}.png", exif=exif)
    if form == "yolo":
        (tmp_path / "yolo/classes.txt").write_text("a")
        (tmp_path / "yolo/labels/train").mkdir(parents=True)
        for i in range(2):
            line = f"0 {60 / 80} {9 / 40} {20 / 80} {10 / 40}"
            (tmp_path / f"yolo/labels/train/{i}.txt").write_text(line)
    else:
        size = {} if form.endswith("sizes") else {"width": 80, "height": 40}
        images = [{"id": i, "file_name": f"train/{i}.png", **size} for i in range(2)]
        found = [
            {"id": i, "image_id": i, "category_id": 1, "bbox": [50, 4, 20, 10]} for i in range(2)
        ]
        whole = {"images": images, "annotations": found, "categories": [{"id": 1, "name": "a"}]}
        (tmp_path / "train.json").write_text(json.dumps(whole))
    source = inputter(tmp_path, form.split()[0], boxes_on="stored", size=(80, 80))
    image, boxes, class_ids, *_ = next(iter(source.flow("train").iterate(seed=0, epoch=0)))
    rows, columns = np.nonzero(image[0, :, :, 0] > 128)
    seen = np.array([columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]) / 80
    np.testing.assert_allclose(boxes[0, class_ids[0] == 0], [seen], atol=1.5 / 80)
    if orientation > 4 and form == "coco":
        with pytest.raises(DataFlowError, match=r"data\.boxes_on=stored"):
            next(iter(inputter(tmp_path, "coco").flow("train").iterate(seed=0, epoch=0)))
    if orientation > 4 and form == "coco without sizes":
        with caplog.at_level(logging.WARNING), contextlib.suppress(FormatError, ConfigError):
            inputter(tmp_path, "coco", bad_boxes="skip")
        assert "set data.boxes_on=stored" in caplog.text


def masked(tmp_path: Path, mask: Image.Image, **config: Any) -> np.ndarray:
    """The label picture as the inputter reads it, of a grey picture of its size."""
    mask.save(tmp_path / "mask.png")
    picture = np.full([mask.height, mask.width, 3], 9, np.uint8)
    cv2.imwrite(str(tmp_path / "picture.png"), picture)
    (tmp_path / "train.csv").write_text("image,label\n" + "picture.png,mask.png\n" * 2)
    size = (mask.height, mask.width)
    data = segmentation.DataConfig(
        path=str(tmp_path), validation=0, batch_size=2, size=size, **config
    )
    flow = segmentation.make_inputter(data).flow("train")
    return next(iter(flow.iterate(seed=0, epoch=0)))[1][0]


EXPECTED = np.repeat(np.arange(3), 16).reshape(6, 8)
COLOURS = [(0, 0, 0), (200, 0, 0), (0, 0, 200)]


def palette(order: list[int]) -> Image.Image:
    """The expected classes in a palette of another order."""
    indices = np.array([order.index(label) for label in range(3)], np.uint8)[EXPECTED]
    image = Image.fromarray(indices, "P")
    image.putpalette(np.array(COLOURS, np.uint8)[order].tobytes())
    return image


@pytest.mark.parametrize("order", [[0, 1, 2], [2, 0, 1]])
def test_colours_of_a_palette_are_the_classes_whatever_their_order(
    order: list[int], tmp_path: Path
) -> None:
    names = ["ground", "red", "blue"]
    found = masked(tmp_path, palette(order), class_names=names, colours=COLOURS)
    np.testing.assert_array_equal(found, EXPECTED)


def test_a_palette_of_other_colours_holds_labels(tmp_path: Path) -> None:
    image = palette([0, 1, 2])
    image.putpalette(bytes([9, 9, 9, 8, 8, 8, 7, 7, 7]))
    found = masked(tmp_path, image, class_names=["a", "b", "c"], colours=COLOURS)
    np.testing.assert_array_equal(found, EXPECTED)


def test_grey_levels_are_classes_by_colours_that_the_message_proposes(tmp_path: Path) -> None:
    levels = Image.fromarray(np.array([0, 128, 255], np.uint8)[EXPECTED])
    with pytest.raises(DataFlowError, match="got 128") as caught:
        masked(tmp_path, levels, class_names=["a", "b", "c"])
    proposed = "[[0, 0, 0], [128, 128, 128], [255, 255, 255]]"
    assert proposed in str(caught.value) and "void" not in str(caught.value)
    colours = json.loads(proposed)
    found = masked(tmp_path, levels, class_names=["a", "b", "c"], colours=colours)
    np.testing.assert_array_equal(found, EXPECTED)


def test_masks_of_coco_and_the_background(tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "0.png"), np.zeros([10, 20, 3], np.uint8))
    square = [[2, 2, 8, 2, 8, 8, 2, 8]]
    annotations = [{"id": 7, "image_id": 0, "category_id": 2, "segmentation": square}]
    categories = [{"id": 1, "name": "Background"}, {"id": 2, "name": "thing"}]
    picture = {"id": 0, "file_name": "0.png", "width": 20, "height": 10}
    whole = {"images": [picture], "annotations": annotations, "categories": categories}
    config = {"path": str(tmp_path), "inputter": "coco", "validation": 0, "batch_size": 1}

    def read(policy: str = "error") -> Any:
        (tmp_path / "train.json").write_text(json.dumps(whole))
        data = segmentation.DataConfig(**{**config, "size": (10, 20), "bad_boxes": policy})
        found = segmentation.make_inputter(data)
        return found, next(iter(found.flow("train").iterate(seed=0, epoch=0)))[1][0]

    found, label = read()
    assert list(found.class_names) == ["background", "thing"]
    assert label.sum() == 36
    masks: list[Any] = [[], None, [[1, 2, 3]], {"counts": [200], "size": [5, 40]}, "missing"]
    for mask in masks:
        annotations.append({"id": 8, "image_id": 0, "category_id": 2, "segmentation": mask})
        if mask == "missing":
            del annotations[-1]["segmentation"]
        with pytest.raises(FormatError, match="annotation 8"):
            read()
        assert read("skip")[1].sum() == 36
        annotations.pop()
