"""Files of annotations, good and damaged: read alike, refused with their place, or left out."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from PIL import Image
from pycocotools import mask as masks

from towerpack import FormatError, TowerpackError
from towerpack.apps import detection, segmentation, write_picture
from towerpack.apps._pictures import header_of

BOXES = [(4, 4, 20, 10), (30, 20, 10, 12), (8, 24, 12, 12)]
"""Left, top, width, height in pictures of 64 x 48 pixels."""


def found_boxes(root: Path, kind: str, **settings: Any) -> dict[str, list[list[Any]]]:
    """Pixels, classes and crowds of the boxes in each picture."""
    if kind == "voc" and (root / "train").is_dir():
        settings = {"train": "train", **settings}
    data = detection.DataConfig(
        inputter=kind, path=str(root), size=(32, 32), batch_size=2, validation=0, **settings
    )
    source = detection.make_inputter(data)
    parts = source.parts  # type: ignore[attr-defined]
    names = source.class_names
    return {
        Path(one.picture).name: [
            [names[label], bool(crowd), *(box * [64, 48, 64, 48]).round(2).tolist()]
            for box, label, crowd in zip(
                one.on(*header_of(one.picture).upright_size), one.class_ids, one.crowd, strict=True
            )
        ]
        for part in parts.values()
        for one in part
    }


def found_labels(root: Path, kind: str, **settings: Any) -> dict[str, list[list[int]]]:
    """Label pictures, and the names of the classes."""
    data = segmentation.DataConfig(
        inputter=kind, path=str(root), size=(48, 64), batch_size=2, validation=0, **settings
    )
    source: Any = segmentation.make_inputter(data)
    decode = {Path(one.picture).name: one for part in source.parts.values() for one in part}
    names = np.array([*source.class_names, *[""] * (256 - len(source.class_names))])
    return {name: names[source.decoder()(one)[1]].tolist() for name, one in decode.items()}


def pictures(folder: Path, names: str = "ab") -> None:
    for name in names:
        write_picture(folder / f"{name}.png", np.full((48, 64, 3), 90, np.uint8))


# COCO. Damage changes the content of the file: images, annotations and categories.


def coco_content() -> dict[str, list[Any]]:
    corners = [(x, y, x + w, y + h) for x, y, w, h in BOXES]
    return {
        "images": [
            {"id": i, "file_name": f"{name}.png", "width": 64, "height": 48}
            for i, name in enumerate("ab", 5)
        ],
        "categories": [{"id": 7, "name": "dog"}, {"id": 3, "name": "cat"}],
        "annotations": [
            {
                "id": 11 + i,
                "image_id": 5 + i % 2,
                "category_id": (3, 7)[i % 2],
                "bbox": list(BOXES[i]),
                "area": BOXES[i][2] * BOXES[i][3],
                "iscrowd": 0,
                "segmentation": [[x1, y1, x2, y1, x2, y2, x1, y2]],
            }
            for i, (x1, y1, x2, y2) in enumerate(corners)
        ],
    }


def write_coco(root: Path, change: Callable[[Any], Any] = lambda content: None) -> None:
    pictures(root)
    content = coco_content()
    changed = change(content)
    (root / "train.json").write_text(json.dumps(content if changed is None else changed))


def put(kind: str, place: int, **values: Any) -> Callable[[Any], None]:
    """Change fields; `...` removes a field."""

    def change(content: Any) -> None:
        for key, value in values.items():
            content[kind][place][key] = value
            if value is ...:
                del content[kind][place][key]

    return change


def each(kind: str, function: Callable[[Any], Any]) -> Callable[[Any], None]:
    """Change the ids of all images or categories, and where annotations name them."""

    def change(content: Any) -> None:
        for entry in content[kind]:
            entry["id"] = function(entry["id"])
        for entry in content["annotations"]:
            key = {"images": "image_id", "categories": "category_id"}[kind]
            entry[key] = function(entry[key])

    return change


def a_mask(height: int = 48, width: int = 64) -> np.ndarray:
    x, y, w, h = BOXES[1]
    mask = np.zeros((height, width), np.uint8, order="F")
    mask[y : y + h, x : x + w] = 1
    return mask


def run_lengths(mask: np.ndarray) -> list[int]:
    flat = np.concatenate([[0], mask.ravel(order="F"), [2]])
    edges = np.flatnonzero(np.diff(flat.astype(int)))
    return np.diff([0, *edges]).tolist()


def compressed(mask: np.ndarray) -> dict[str, Any]:
    made = masks.encode(np.asfortranarray(mask))
    return {"size": made["size"], "counts": made["counts"].decode()}


SAME_COCO: dict[str, Callable[[Any], Any]] = {
    "string category ids": each("categories", str),
    "string image ids": each("images", lambda i: f"0{i}"),
    "image ids that are no numbers": each("images", lambda i: f"scan-{i}"),
    "ids as floats": each("images", float),
    "category ids as strings on one side": put("categories", 0, id="7"),
    "image ids as strings on one side": put("annotations", 2, image_id="5"),
    "iscrowd missing": put("annotations", 1, iscrowd=...),
    "iscrowd null": put("annotations", 1, iscrowd=None),
    "iscrowd false": put("annotations", 1, iscrowd=False),
    "area missing": put("annotations", 1, area=...),
    "area null": put("annotations", 1, area=None),
    "size missing": put("images", 1, width=..., height=...),
    "size null": put("images", 1, width=None, height=None),
    "size 0": put("images", 1, width=0, height=0),
    "size as strings": put("images", 1, width="64", height="48"),
    "backslashes": put("images", 1, file_name=".\\b.png"),
    "unknown fields": put("annotations", 1, attributes={"occluded": False}, score=None),
    "numbers as strings": put("annotations", 1, bbox=[str(v) for v in BOXES[1]]),
}
# Of one task: what it does not read may be anything.
SAME_BOXES = {
    "segmentation empty": put("annotations", 1, segmentation=[]),
    "segmentation null": put("annotations", 1, segmentation=None),
    "segmentation missing": put("annotations", 1, segmentation=...),
}
SAME_MASKS = {
    "bbox missing": put("annotations", 1, bbox=...),
    "bbox null": put("annotations", 1, bbox=None),
    "run lengths": put(
        "annotations", 1, segmentation={"size": [48, 64], "counts": run_lengths(a_mask())}
    ),
    "compressed run lengths": put("annotations", 1, segmentation=compressed(a_mask())),
}
BAD_COCO: dict[str, Callable[[Any], Any]] = {
    "id twice": put("annotations", 1, id=11),
    "image unknown": put("annotations", 1, image_id=99),
    "image null": put("annotations", 1, image_id=None),
    "image missing": put("annotations", 1, image_id=...),
    "category unknown": put("annotations", 1, category_id=99),
    "category missing": put("annotations", 1, category_id=...),
    "category a list": put("annotations", 1, category_id=[3]),
    "iscrowd a word": put("annotations", 1, iscrowd="many"),
    "no mapping": lambda content: content["annotations"].__setitem__(1, [1, 2]),
}
BAD_BOXES = {
    "bbox missing": put("annotations", 1, bbox=...),
    "bbox null": put("annotations", 1, bbox=None),
    "bbox empty": put("annotations", 1, bbox=[]),
    "bbox of 3": put("annotations", 1, bbox=[1, 2, 3]),
    "bbox a mapping": put("annotations", 1, bbox={"x": 1, "y": 2, "w": 3, "h": 4}),
    "bbox of words": put("annotations", 1, bbox=["a", "b", "c", "d"]),
    "bbox NaN": put("annotations", 1, bbox=[1, 2, float("nan"), 4]),
    "bbox infinite": put("annotations", 1, bbox=[1, 2, 3, float("inf")]),
    "bbox null inside": put("annotations", 1, bbox=[1, 2, None, 4]),
    "bbox without area": put("annotations", 1, bbox=[1, 2, 0, 4]),
    "bbox outside": put("annotations", 1, bbox=[64, 2, 5, 4]),
    "area a word": put("annotations", 1, area="large"),
    "area negative": put("annotations", 1, area=-1),
}
BAD_MASKS = {
    "empty": put("annotations", 1, segmentation=[]),
    "null": put("annotations", 1, segmentation=None),
    "missing": put("annotations", 1, segmentation=...),
    "empty polygon": put("annotations", 1, segmentation=[[]]),
    "two points": put("annotations", 1, segmentation=[[1, 1, 9, 9]]),
    "odd": put("annotations", 1, segmentation=[[1, 1, 9, 9, 1, 9, 3]]),
    "flat": put("annotations", 1, segmentation=[1, 1, 9, 1, 9, 9]),
    "words": put("annotations", 1, segmentation=[["a", "b", "c", "d", "e", "f"]]),
    "NaN": put("annotations", 1, segmentation=[[1, 1, 9, 1, 9, float("nan")]]),
    "outside": put("annotations", 1, segmentation=[[70, 1, 90, 1, 90, 9]]),
    "runs without size": put("annotations", 1, segmentation={"counts": run_lengths(a_mask())}),
    "runs without counts": put("annotations", 1, segmentation={"size": [48, 64]}),
    "runs too short": put("annotations", 1, segmentation={"size": [48, 64], "counts": [5, 9]}),
    "runs negative": put(
        "annotations", 1, segmentation={"size": [48, 64], "counts": [3073, 1, -2]}
    ),
    "runs of nothing": put("annotations", 1, segmentation={"size": [48, 64], "counts": [3072]}),
    "runs of a different size": put("annotations", 1, segmentation=compressed(a_mask(50, 60))),
    "compressed too short": put(
        "annotations",
        1,
        segmentation={"size": [48, 64], "counts": compressed(a_mask())["counts"][:-2]},
    ),
    "compressed damaged": put("annotations", 1, segmentation={"size": [48, 64], "counts": "x"}),
}
# Not of one annotation, so that they cannot be left out.
BAD_FILES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "category twice": (put("categories", 1, id=7), "category id 7 occurs 2 times"),
    "category twice as a string": (put("categories", 1, id="7"), "category id 7 occurs 2 times"),
    "category without name": (put("categories", 1, name=...), "categories.1.name"),
    "category of no name": (put("categories", 1, name=""), "categories.1.name"),
    "category without id": (put("categories", 1, id=...), "categories.1.id"),
    "image twice": (put("images", 1, id=5), "image id 5 occurs 2 times"),
    "image without file": (put("images", 1, file_name=...), "images.1.file_name"),
    "image without id": (put("images", 1, id=None), "images.1.id"),
    "another size": (put("images", 1, width=640, height=480), "must have the size of the picture"),
    "image not there": (put("images", 1, file_name="c.png"), "no picture .*c.png"),
    "no list": (lambda content: content["annotations"], "is damaged"),
    "no annotations": (lambda content: {**content, "annotations": None}, "annotations"),
    "no categories": (
        lambda content: {k: content[k] for k in ("images", "annotations")},
        "categories",
    ),
    "no images": (lambda content: {**content, "images": []}, "images: List should have at least 1"),
}


@pytest.mark.parametrize("case", [*SAME_COCO, *SAME_BOXES, *SAME_MASKS])
def test_coco_that_is_written_in_another_way_reads_the_same(tmp_path: Path, case: str) -> None:
    write_coco(tmp_path / "good")
    write_coco(tmp_path / "same", {**SAME_COCO, **SAME_BOXES, **SAME_MASKS}[case])
    for read in (found_boxes, found_labels):
        if case not in {found_boxes: SAME_MASKS, found_labels: SAME_BOXES}[read]:
            assert read(tmp_path / "same", "coco") == read(tmp_path / "good", "coco")


@pytest.mark.parametrize(
    ("read", "case"),
    [
        *((found_boxes, case) for case in (*BAD_COCO, *BAD_BOXES)),
        *((found_labels, case) for case in (*BAD_COCO, *BAD_MASKS)),
    ],
)
def test_bad_coco_is_refused_by_file_and_id_or_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, read: Any, case: str
) -> None:
    change = {**BAD_COCO, **(BAD_BOXES if read is found_boxes else BAD_MASKS)}[case]
    write_coco(tmp_path / "bad", change)
    place = r"\w+"
    with pytest.raises(FormatError, match=f"bad/train.json, annotation {place}(.|\n)*bad_boxes"):
        read(tmp_path / "bad", "coco")
    write_coco(tmp_path / "good", lambda content: content["annotations"].pop(1) and None)
    with caplog.at_level(logging.WARNING):
        found = read(tmp_path / "bad", "coco", bad_boxes="skip")
    assert found == read(tmp_path / "good", "coco")
    assert f"Skipped 1 invalid annotations. The first is {tmp_path}/bad/train.json" in caplog.text


@pytest.mark.parametrize("skip", ["error", "skip"])
@pytest.mark.parametrize("case", BAD_FILES)
@pytest.mark.parametrize("read", [found_boxes, found_labels])
def test_a_bad_coco_file_is_refused(tmp_path: Path, read: Any, case: str, skip: str) -> None:
    change, _ = BAD_FILES[case]
    write_coco(tmp_path, change)
    with pytest.raises(
        TowerpackError, match=r"(?s)train\.json|not exist|must exist|a different size"
    ):
        read(tmp_path, "coco", bad_boxes=skip)


def test_a_category_called_background_is_the_background(tmp_path: Path) -> None:
    write_coco(tmp_path / "one")
    wanted = found_labels(tmp_path / "one", "coco")
    for number, name in enumerate(("background", "Background", "_background_")):

        def change(content: Any, name: str = name) -> None:
            content["categories"].insert(1, {"id": 0, "name": name})
            content["annotations"].append(
                {**content["annotations"][0], "id": 99, "category_id": 0, "iscrowd": 0}
            )
            content["annotations"][-1]["segmentation"] = [[50, 2, 60, 2, 60, 9, 50, 9]]

        write_coco(tmp_path / f"{number}", change)
        assert found_labels(tmp_path / f"{number}", "coco") == wanted


# PASCAL VOC and YOLO. Damage replaces text of the second of three objects.

OBJECT = (
    "<object><name>{name}</name><difficult>0</difficult><bndbox><xmin>{}</xmin><ymin>{}</ymin>"
    "<xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"
)


def write_voc(root: Path, old: str = "", new: str = "", file: str = "a.xml") -> None:
    pictures(root / "train")
    for k, name in enumerate("ab"):
        objects = [
            OBJECT.format(x + 1, y + 1, x + w, y + h, name="dog" if i == 1 else "cat")
            for i, (x, y, w, h) in enumerate(BOXES if k == 0 else BOXES[:1])
        ]
        text = (
            f"<annotation><filename>{name}.png</filename><size><width>64</width>"
            "<height>48</height></size>\n{}\n</annotation>"
        ).format("\n".join(objects))
        (root / f"train/{name}.xml").write_text(text)
    path = root / "train" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def write_yolo(root: Path, line: str | None = None, names: str = "names: [cat, dog]") -> None:
    pictures(root / "images/train")
    (root / "labels/train").mkdir(parents=True)
    for k, name in enumerate("ab"):
        lines = [
            f"{int(i == 1)} {(x + w / 2) / 64} {(y + h / 2) / 48} {w / 64} {h / 48}"
            for i, (x, y, w, h) in enumerate(BOXES if k == 0 else BOXES[:1])
        ]
        if line is not None and k == 0:
            lines[1] = line
        (root / f"labels/train/{name}.txt").write_text("\n".join(lines))
    (root / "data.yaml").write_text(names)


SECOND = "<name>dog</name>"
BAD_VOC = {
    "no box": ("<bndbox><xmin>31</xmin><ymin>21</ymin><xmax>40</xmax><ymax>32</ymax></bndbox>", ""),
    "no corner": ("<xmin>31</xmin>", ""),
    "empty corner": ("<xmin>31</xmin>", "<xmin/>"),
    "word": ("<xmin>31</xmin>", "<xmin>left</xmin>"),
    "NaN": ("<xmin>31</xmin>", "<xmin>nan</xmin>"),
    "no area": ("<xmin>31</xmin>", "<xmin>41</xmin>"),
    "no name": (SECOND, ""),
    "empty name": (SECOND, "<name> </name>"),
    "difficult": (f"{SECOND}<difficult>0", f"{SECOND}<difficult>very"),
}
SAME_VOC = {
    "floats": ("<xmin>31</xmin>", "<xmin>31.0</xmin>"),
    "space": (SECOND, "<name>\n dog\t</name>"),
    "no difficult": (f"{SECOND}<difficult>0</difficult>", SECOND),
    "no size": ("<size><width>64</width><height>48</height></size>", ""),
    "size 0": ("<width>64</width>", "<width>0</width>"),
    "no filename": ("<filename>a.png</filename>", ""),
    "filename of another picture": ("<filename>a.png</filename>", "<filename>b.png</filename>"),
    "filename of no picture": ("<filename>a.png</filename>", "<filename>z.jpg</filename>"),
    "path": ("<filename>a.png</filename>", "<filename>C:\\old\\a.png</filename>"),
}
BAD_YOLO = {
    "class out of range": "2 0.5 0.5 0.2 0.2",
    "class negative": "-1 0.5 0.5 0.2 0.2",
    "class a fraction": "0.5 0.5 0.5 0.2 0.2",
    "class a word": "dog 0.5 0.5 0.2 0.2",
    "class NaN": "nan 0.5 0.5 0.2 0.2",
    "no box": "1",
    "3 numbers": "1 0.5 0.5 0.2",
    "a score": "1 0.5 0.5 0.2 0.2 0.9",
    "two points": "1 0.5 0.5",
    "odd polygon": "1 0.1 0.1 0.2 0.2 0.3 0.1 0.4",
    "pixels": "1 35 26 10 12",
    "NaN": "1 nan 0.5 0.2 0.2",
    "word": "1 0.5 0.5 wide 0.2",
    "commas": "1,0.5,0.5,0.2,0.2",
    "no area": "1 0.5 0.5 0 0.2",
}
X1, Y1, X2, Y2 = 30 / 64, 20 / 48, 40 / 64, 32 / 48
SAME_YOLO = {
    "polygon": f"1 {X1} {Y1} {X2} {Y1} {X2} {Y2} {X1} {Y2}",
    "float class": f"1.0 {(X1 + X2) / 2} {(Y1 + Y2) / 2} {X2 - X1} {Y2 - Y1}",
    "tabs": f" 1\t{(X1 + X2) / 2}  {(Y1 + Y2) / 2} {X2 - X1} {Y2 - Y1} \r",
}


@pytest.mark.parametrize("case", SAME_VOC)
def test_voc_that_is_written_in_another_way_reads_the_same(tmp_path: Path, case: str) -> None:
    write_voc(tmp_path / "good")
    write_voc(tmp_path / "same", *SAME_VOC[case])
    assert found_boxes(tmp_path / "same", "voc") == found_boxes(tmp_path / "good", "voc")


@pytest.mark.parametrize("case", SAME_YOLO)
def test_yolo_that_is_written_in_another_way_reads_the_same(tmp_path: Path, case: str) -> None:
    write_yolo(tmp_path / "good")
    write_yolo(tmp_path / "same", SAME_YOLO[case])
    assert found_boxes(tmp_path / "same", "yolo") == found_boxes(tmp_path / "good", "yolo")


@pytest.mark.parametrize(
    ("kind", "case"), [*(("voc", c) for c in BAD_VOC), *(("yolo", c) for c in BAD_YOLO)]
)
def test_bad_lines_are_refused_by_file_and_line_or_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, case: str
) -> None:
    if kind == "voc":
        write_voc(tmp_path, *BAD_VOC[case])
        place = "train/a.xml, line 3"
    else:
        write_yolo(tmp_path, BAD_YOLO[case])
        place = "labels/train/a.txt, line 2"
    with pytest.raises(FormatError, match=f"{place}(.|\n)*bad_boxes"):
        found_boxes(tmp_path, kind, class_names=["cat", "dog"])
    with caplog.at_level(logging.WARNING):
        found = found_boxes(tmp_path, kind, class_names=["cat", "dog"], bad_boxes="skip")
    assert {name: [box[0] for box in boxes] for name, boxes in found.items()} == {
        "a.png": ["cat", "cat"],
        "b.png": ["cat"],
    }
    assert "Skipped 1 invalid annotations" in caplog.text and place in caplog.text


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("names: {1: dog, 0: cat}", ["cat", "dog"]),
        ("names:\n  '1': dog\n  '0': cat\nnc: 2", ["cat", "dog"]),
        ("names: [yes, no]", ["yes", "no"]),
        ("names: {0: on, 1: off}", ["on", "off"]),
        ("names: [1, 2.50]", ["1", "2.50"]),
        ("names: [null, ~]", ["null", "~"]),
        ("nc: 2\ntrain: ../train/images\nnames: ['cat', \"dog\"]", ["cat", "dog"]),
        ("names: {0: cat, 0: dog}", "duplicate keys"),
        ("names: {0: cat, 2: dog}", "must name the classes"),
        ("names: {1: cat, 2: dog}", "must name the classes"),
        ("names: {a: cat, b: dog}", "must name the classes"),
        ("names: [[cat], [dog]]", "must name the classes"),
        ("nc: 3\nnames: [cat, dog]", "nc is 3, but there are 2 names"),
        ("nc: 2", "must name the classes"),
        ("", "must name the classes"),
        ("names: [cat", "must name the classes"),
        ("names: [cat, cat]", "must be unique"),
    ],
)
def test_names_in_a_yaml_file(tmp_path: Path, text: str, names: Any) -> None:
    write_yolo(tmp_path, names=text)
    if isinstance(names, str):
        with pytest.raises(TowerpackError, match=names):
            found_boxes(tmp_path, "yolo")
    else:
        found = found_boxes(tmp_path, "yolo")
        assert [box[0] for box in found["a.png"]] == [names[0], names[1], names[0]]


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "utf-16-be"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    write_yolo(tmp_path / "yolo")
    write_voc(tmp_path / "voc")
    wanted = [found_boxes(tmp_path / kind, kind) for kind in ("yolo", "voc")]
    for file in (*tmp_path.rglob("*.txt"), *tmp_path.rglob("*.xml"), *tmp_path.rglob("*.yaml")):
        mark = "\ufeff" if encoding == "utf-16-be" else ""
        file.write_bytes((mark + file.read_text()).encode(encoding))
    assert [found_boxes(tmp_path / kind, kind) for kind in ("yolo", "voc")] == wanted


def test_the_stem_decides_which_picture_has_the_boxes(tmp_path: Path) -> None:
    write_voc(tmp_path)
    wanted = found_boxes(tmp_path, "voc")
    (tmp_path / "train/a.png").rename(tmp_path / "train/old.PNG")
    (tmp_path / "train/a.xml").write_text(
        (tmp_path / "train/a.xml").read_text().replace("a.png", "old.PNG")
    )
    found = found_boxes(tmp_path, "voc")  # only now the name counts
    assert found == {"old.PNG": wanted["a.png"], "b.png": wanted["b.png"]}
    (tmp_path / "train/a.xml").write_text(
        (tmp_path / "train/a.xml").read_text().replace("old.PNG", "b.png")
    )
    with pytest.raises(FormatError, match=r"b.png of .*a.xml"):
        found_boxes(tmp_path, "voc")  # b.png has boxes of its own


def test_space_inside_of_names_stays(tmp_path: Path) -> None:
    write_voc(tmp_path / "x", SECOND, "<name>cup &amp; plate</name>")
    found = found_boxes(tmp_path / "x", "voc")
    assert found["a.png"][1][0] == "cup & plate"


# Pictures that are not there, and pictures that EXIF turns.


@pytest.mark.parametrize("kind", ["coco", "voc", "yolo", "coco masks", "csv"])
def test_a_missing_picture_is_found_at_the_start(tmp_path: Path, kind: str) -> None:
    read = found_boxes
    if kind == "csv":
        write_labels(tmp_path, [np.zeros((48, 64), np.uint8), np.ones((48, 64), np.uint8)])
    else:
        {"voc": write_voc, "yolo": write_yolo}.get(kind, write_coco)(tmp_path)
    if kind in ("csv", "coco masks"):
        read, kind = found_labels, kind.split()[0]
    read(tmp_path, kind)
    next(tmp_path.rglob("b.png")).unlink()
    with pytest.raises(TowerpackError, match=r"must exist|does not exist"):
        read(tmp_path, kind)


def test_a_missing_picture_of_an_own_reader_is_found_at_the_start() -> None:
    one = detection.Annotated("nowhere.png", np.array([[0, 0, 1, 1]], np.float32), np.zeros(1, int))
    data = detection.DataConfig(validation=0)
    from towerpack.apps.detection.augmenters import none

    source = detection.DetectionInputter(data, lambda _: (["a"], {"train": [one]}), none)
    with pytest.raises(FormatError, match="must exist"):
        source.parts  # noqa: B018


def turned(path: Path, upright: np.ndarray, orientation: int) -> None:
    """Write a picture so that EXIF turns it upright."""
    back = {2: 0, 3: 3, 4: 1, 5: 5, 6: 2, 7: 6, 8: 4}  # Pillow's numbers of the inverses
    image = Image.fromarray(upright)
    if orientation > 1:
        image = image.transpose(Image.Transpose(back[orientation]))
    exif = Image.Exif()
    exif[0x0112] = orientation
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, exif=exif)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_annotations_of_turned_pictures_lie_on_their_objects(
    tmp_path: Path, orientation: int, suffix: str
) -> None:
    """Measured on the stored picture by OpenCV, for each format; compared with the upright one."""
    picture = np.zeros((48, 64, 3), np.uint8)
    picture[8:20, 36:60] = 255
    turned(tmp_path / f"images/a.{suffix}", picture, orientation)
    with Image.open(tmp_path / f"images/a.{suffix}") as opened:
        stored = np.asarray(opened.convert("L"))
    height, width = stored.shape
    x, y, w, h = cv2.boundingRect((stored > 128).astype(np.uint8))
    polygon = [x, y, x + w, y, x + w, y + h, x, y + h]
    one = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [x, y, w, h]}
    content = {
        "images": [{"id": 1, "file_name": f"a.{suffix}", "width": width, "height": height}],
        "annotations": [{**one, "segmentation": [polygon]}],
        "categories": [{"id": 1, "name": "box"}],
    }
    (tmp_path / "train.json").write_text(json.dumps(content))
    (tmp_path / "labels").mkdir()
    shares = (x + w / 2) / width, (y + h / 2) / height, w / width, h / height
    (tmp_path / "labels/a.txt").write_text(" ".join(map(str, (0, *shares))))
    (tmp_path / "a.xml").write_text(
        f"<annotation><object><name>box</name><bndbox><xmin>{x + 1}</xmin><ymin>{y + 1}</ymin>"
        f"<xmax>{x + w}</xmax><ymax>{y + h}</ymax></bndbox></object></annotation>"
    )
    write_picture(tmp_path / "mask.png", (stored > 128).astype(np.uint8))
    (tmp_path / "train.csv").write_text(f"images/a.{suffix},mask.png")
    wanted = [["box", False, 36.0, 8.0, 60.0, 20.0]]
    more: Any = {"boxes_on": "stored"}
    assert found_boxes(tmp_path, "coco", **more) == {f"a.{suffix}": wanted}
    found = found_boxes(tmp_path, "voc", train=["."], images="images", **more)
    assert found == {f"a.{suffix}": wanted}
    found = found_boxes(tmp_path, "yolo", train=["images"], class_names=["box"], **more)
    assert found == {f"a.{suffix}": wanted}
    objects = picture[..., 0] > 128
    for kind, names in (("coco", None), ("csv", ["background", "box"])):
        label = found_labels(tmp_path, kind, class_names=names, **more)[f"a.{suffix}"]
        assert ((np.array(label) == "box") == objects).all()
    if orientation > 4:  # The stated size fits only the stored picture.
        for read, kind in ((found_boxes, "coco"), (found_labels, "coco"), (found_labels, "csv")):
            names = ["background", "box"] if kind == "csv" else None
            with pytest.raises(FormatError, match=r"size(.|\n)*data.boxes_on=stored"):
                read(tmp_path, kind, class_names=names)


@pytest.mark.parametrize("boxes_on", ["upright", "stored"])
@pytest.mark.parametrize("kind", ["coco", "voc"])
def test_annotations_that_fit_only_the_other_way_are_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, boxes_on: str
) -> None:
    """Without a stated size; the picture is 96 x 40 as stored, and 40 x 96 upright."""
    turned(tmp_path / "images/a.png", np.zeros((96, 40, 3), np.uint8), 6)
    other = "stored" if boxes_on == "upright" else "upright"

    def read(*box: int) -> None:
        x, y, w, h = box if boxes_on == "upright" else (box[1], box[0], box[3], box[2])
        one = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [x, y, w, h]}
        content = {
            "images": [{"id": 1, "file_name": "a.png"}],
            "annotations": [{**one, "segmentation": [[x, y, x + w, y, x + w, y + h]]}],
            "categories": [{"id": 1, "name": "box"}],
        }
        (tmp_path / "train.json").write_text(json.dumps(content))
        (tmp_path / "train").mkdir(exist_ok=True)
        made = OBJECT.format(x + 1, y + 1, x + w, y + h, name="box")
        (tmp_path / "train/a.xml").write_text(f"<annotation>{made}</annotation>")
        function = found_labels if kind == "coco masks" else found_boxes
        with caplog.at_level(logging.WARNING):
            function(tmp_path, kind.split()[0], images="images", boxes_on=boxes_on)

    read(10, 4, 30, 10)
    assert "EXIF" not in caplog.text
    read(30, 4, 60, 10)
    assert f"data.boxes_on={other}" in caplog.text


# Label pictures.


def write_labels(root: Path, labels: list[Any], classes: str = "one\ntwo\n") -> None:
    pictures(root, "ab")
    for name, label in zip("ab", labels, strict=True):
        image = label if isinstance(label, Image.Image) else Image.fromarray(label)
        image.save(root / f"{name}-label.png")
    (root / "train.csv").write_text("a.png,a-label.png\nb.png,b-label.png\n")
    (root / "classes.txt").write_text(classes)


def halves(*levels: int, dtype: Any = np.uint8) -> np.ndarray:
    """A label picture with as many columns as levels."""
    return np.repeat(np.array(levels, dtype), -(-64 // len(levels)))[None, :64].repeat(48, 0)


def columns(found: dict[str, Any], name: str = "a.png") -> list[str]:
    row = found[name][0]
    return [label for i, label in enumerate(row) if i == 0 or row[i - 1] != label]


@pytest.mark.parametrize("level", [7, 255])
def test_the_last_label_picture_is_looked_at_before_a_run_starts(
    tmp_path: Path, level: int
) -> None:
    write_labels(tmp_path, [halves(0), halves(0, level)])
    with pytest.raises(FormatError, match=f"line 2: .*b-label.png must .*got {level}") as caught:
        found_labels(tmp_path, "csv")
    assert "data.colors" in str(caught.value) and "data.void" not in str(caught.value)
    write_labels(tmp_path, [halves(0), halves(0, 1)[1:]])
    with pytest.raises(FormatError, match=r"line 2: .*must have the size of the picture"):
        found_labels(tmp_path, "csv")


def with_palette(label: np.ndarray, colors: list[tuple[int, int, int]]) -> Image.Image:
    image = Image.fromarray(label, "P")
    image.putpalette([value for color in colors for value in color] + [7] * 3 * (256 - len(colors)))
    return image


def test_colors_of_a_palette_decide_if_colors_are_given(tmp_path: Path) -> None:
    red, blue = (200, 10, 20), (20, 10, 200)
    classes = "one,200,10,20\ntwo,20,10,200\n"
    same = with_palette(halves(0, 1), [red, blue])
    other = with_palette(halves(1, 2), [(9, 9, 9), blue, red])
    write_labels(tmp_path / "x", [same, other], classes)
    found = found_labels(tmp_path / "x", "csv")
    assert columns(found) == ["one", "two"]
    assert columns(found, "b.png") == ["two", "one"]
    # Without colors, indices count.
    swapped = with_palette(halves(0, 1), [blue, red])
    write_labels(tmp_path / "y", [same, swapped])
    assert columns(found_labels(tmp_path / "y", "csv"), "b.png") == ["one", "two"]
    # Void indices may have any color; other colors are refused.
    unknown = with_palette(halves(0, 1, 255), [red, blue])
    write_labels(tmp_path / "z", [same, unknown], classes)
    assert columns(found_labels(tmp_path / "z", "csv", void=[255]), "b.png") == ["one", "two", ""]
    with pytest.raises(FormatError, match=r"b-label.png must have only labels .*got 255"):
        found_labels(tmp_path / "z", "csv")


def test_gray_colors_decide_over_the_order(tmp_path: Path) -> None:
    write_labels(tmp_path, [halves(0, 255), halves(255)], "one,255,255,255\ntwo,0,0,0\n")
    found = found_labels(tmp_path, "csv")
    assert columns(found) == ["two", "one"]
    assert columns(found, "b.png") == ["one"]
