from __future__ import annotations

import csv
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from towerpack import ConfigError, FormatError
from towerpack.dataflow import (
    BatchData,
    DataFromList,
    ImageCSV,
    ImageFolder,
    ImageFromFile,
    MapDataComponent,
    ShuffleData,
)
from towerpack.dataflow.images import decode_image, encode_jpeg


def picture(seed: int, height: int = 12, width: int = 10) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Three classes, in several formats, with what does not belong there."""
    root = tmp_path / "images"
    for i, name in enumerate(["b/1.png", "b/0.PNG", "a/x/7.bmp", "a/3.png", "c/é.gif", "c/9.webp"]):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        options = {"lossless": True} if name.endswith("webp") else {}
        Image.fromarray(picture(i)).save(root / name, **options)
    for name in ("b/notes.txt", "b/.hidden.png", ".git/0.png", "README", "a/x/Thumbs.db"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"no image")
    return root


ORDER = [3, 2, 1, 0, 5, 4]  # a/3, a/x/7, b/0, b/1, c/9, c/é


class TestImageFromFile:
    def test_images(self, root: Path) -> None:
        files = [str(root / "b/1.png"), root / "a/x/7.bmp"]
        ds = ImageFromFile(files)
        assert len(ds) == 2 and str(ds) == "ImageFromFile(2)"
        (first,), (second,) = ds
        assert np.array_equal(first, picture(0)) and np.array_equal(second, picture(2))
        assert type(next(iter(ds))) is list

    def test_grey_and_resized(self, root: Path) -> None:
        files = [root / "b/1.png"]
        assert next(iter(ImageFromFile(files, 1)))[0].shape == (12, 10, 1)
        assert next(iter(ImageFromFile(files, 3, (6, 8))))[0].shape == (6, 8, 3)
        assert next(iter(ImageFromFile(files, 1, 5)))[0].shape == (5, 5, 1)
        half = np.zeros((12, 10, 3), np.uint8)
        half[:, 5:] = (200, 100, 50)
        Image.fromarray(half).save(root / "half.png")
        ((small,),) = ImageFromFile([root / "half.png"], resize=(3, 4))
        assert small[:, 0].tolist() == [[0, 0, 0]] * 3
        assert small[:, 3].tolist() == [[200, 100, 50]] * 3

    def test_wrong_arguments(self) -> None:
        arguments: Any
        for arguments, told in (
            (("a.png",), r"'a.png' \(str\)"),
            ((["a.png"], 3, "big"), "size must be"),
            ((["a.png"], 3, (1, -1)), "size must be"),
            ((["a.png"], 4), "channels must be 3 or 1, got 4"),
        ):
            with pytest.raises(ConfigError, match=told):
                ImageFromFile(*arguments)

    def test_missing_and_odd_files(self, root: Path) -> None:
        for name in ("absent.png", "b", "b/notes.txt", "a\0b"):
            with pytest.raises(FormatError) as caught:
                list(ImageFromFile([root / "b/1.png", root / name]))
            assert name in str(caught.value)
        for name in ("b/1.png", "a/x/7.bmp", "c/é.gif", "c/9.webp"):
            content = (root / name).read_bytes()
            for size in (0, 20, len(content) // 2):
                (root / name).write_bytes(content[:size])
                with pytest.raises(FormatError, match=name):
                    list(ImageFromFile([root / name]))

    @pytest.mark.timeout(20)
    def test_what_is_no_file_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "fifo.png")
        (tmp_path / "zero.png").symlink_to("/dev/zero")
        for name in ("fifo.png", "zero.png"):
            with pytest.raises(FormatError, match="a pipe or a device"):
                list(ImageFromFile([tmp_path / name]))

    def test_too_many_pixels(self, tmp_path: Path) -> None:
        Image.fromarray(picture(0, 40, 40)).save(tmp_path / "small.png")
        with pytest.raises(FormatError, match="max_pixels"):
            list(ImageFromFile([tmp_path / "small.png"], max_pixels=1599))
        assert len(list(ImageFromFile([tmp_path / "small.png"], max_pixels=1600))) == 1


class TestImageFolder:
    def test_images_and_labels(self, root: Path, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level("INFO"):
            ds = ImageFolder(root)
        assert ds.classes == ["a", "b", "c"] and ds.labels.tolist() == [0, 0, 1, 1, 2, 2]
        assert ds.left_out == 5 and "ignored 5 files" in caplog.text
        assert str(ds) == "ImageFolder(images)"
        for (image, label), i, expected in zip(ds, ORDER, [0, 0, 1, 1, 2, 2], strict=True):
            # A GIF has a palette.
            assert np.array_equal(image, picture(i)) or i == 4
            assert label == expected
        images, labels = next(iter(BatchData(ShuffleData(ds), 6)))
        assert images.shape == (6, 12, 10, 3) and labels.dtype == np.int64

    def test_paths(self, root: Path) -> None:
        found = [
            (Path(p).relative_to(root).as_posix(), label)
            for p, label in ImageFolder(root, decode=False)
        ]
        assert found[:3] == [("a/3.png", 0), ("a/x/7.bmp", 0), ("b/0.PNG", 1)]

    def test_classes_in_another_order(self, root: Path) -> None:
        ds = ImageFolder(root, classes=["c", "a"], decode=False)
        assert ds.labels.tolist() == [0, 0, 1, 1]
        with pytest.raises(ConfigError, match="no folder for d, e"):
            ImageFolder(root, classes=["e", "a", "d"])

    def test_links(self, root: Path, tmp_path: Path) -> None:
        (root / "a" / "x" / "loop").symlink_to(root)
        (root / "d").symlink_to(root / "b")
        assert ImageFolder(root).labels.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]

    def test_nothing_there(self, root: Path, tmp_path: Path) -> None:
        (tmp_path / "empty" / "a").mkdir(parents=True)
        for path in (root / "no", root / "README"):
            with pytest.raises(ConfigError, match="does not exist"):
                ImageFolder(path)
        with pytest.raises(ConfigError, match=r"no images(.|\n)*fix +put the images"):
            ImageFolder(tmp_path / "empty")


class TestImageCSV:
    def write(self, root: Path, text: str | bytes) -> Path:
        data = text if isinstance(text, bytes) else text.encode()
        (root / "list.csv").write_bytes(data)
        return root / "list.csv"

    def test_integers(self, root: Path) -> None:
        ds = ImageCSV(self.write(root, "b/1.png,7\r\n\r\na/3.png, -1\n"))
        assert ds.classes is None and len(ds) == 2 and str(ds) == "ImageCSV(list.csv)"
        (image, label), (_, other) = ds
        assert np.array_equal(image, picture(0)) and (label, other) == (7, -1)

    def test_names(self, root: Path) -> None:
        path = self.write(root, '\ufeff"b/1.png",dog\na/3.png,"cat, big"\nb/0.PNG,dog\n')
        ds = ImageCSV(path, decode=False)
        assert ds.files[0] == str(root / "b/1.png")
        assert ds.classes == ["cat, big", "dog"] and ds.labels.tolist() == [1, 0, 1]
        ds = ImageCSV(path, decode=False, classes=["dog", "mouse", "cat, big"])
        assert ds.labels.tolist() == [0, 2, 0]
        with pytest.raises(FormatError, match=r"line 2: the label 'cat, big' is not one of"):
            ImageCSV(path, classes=["dog"])
        with pytest.raises(ConfigError, match="different strings"):
            ImageCSV(path, classes=["dog", "cat, big", "dog"])

    def test_header(self, root: Path) -> None:
        path = self.write(root, "path,label\nb/1.png,3\n")
        assert ImageCSV(path, header=True).labels.tolist() == [3]
        assert ImageCSV(path).labels.tolist() == [3]
        with pytest.raises(FormatError, match=r"'label' in .*line 1"):
            ImageCSV(path, header=False)
        for names in ("picture,kind", "IMG , category"):
            path = self.write(root, f"{names}\nb/1.png,ant\nb/0.PNG,bee\n")
            assert ImageCSV(path).classes == ["ant", "bee"]
        for first in ("b/1.png,dog", "b/lost.png,dog", "b,ant", "lost,3"):  # b is a folder
            path = self.write(root, f"{first}\nb/1.png,{'4' if '3' in first else 'ant'}\n")
            assert len(ImageCSV(path, decode=False)) == 2

    def test_no_pictures(self, root: Path) -> None:
        for text, header in (("", True), ("\r\n\n", False), ("path,label", True)):
            with pytest.raises(ConfigError, match=r"no images in .*list\.csv"):
                ImageCSV(self.write(root, text), header=header)

    def test_lines_of_spaces_are_empty(self, root: Path) -> None:
        text = "  \nb/1.png,3\n \t \n\na/3.png,4\n   "
        for delimiter in ",", " ", "\t":
            path = self.write(root, text.replace(",", delimiter))
            assert ImageCSV(path, delimiter=delimiter).labels.tolist() == [3, 4]

    def test_paths(self, root: Path, tmp_path: Path) -> None:
        path = self.write(root, f"b/1.png;1\n{root / 'a/3.png'};2\n")
        ds = ImageCSV(path, delimiter=";", decode=False)
        assert list(ds.files) == [str(root / "b/1.png"), str(root / "a/3.png")]
        other = ImageCSV(path, delimiter=";", decode=False, root=tmp_path)
        assert other.files[0] == str(tmp_path / "b/1.png")

    def test_bad_lines_are_named(self, root: Path) -> None:
        for text, line in (
            ("a,1\nb\n", 2),
            ("a,1\n\n\nb,2,3\n", 4),
            ("a,1\n,2\n", 2),
            ('a,1\n"b,2\n', 2),
            (b"a,1\nb\0\n", 2),
            ("b/1.png,3\n , \n", 2),
        ):
            with pytest.raises(FormatError, match=rf"list\.csv, line {line}\b"):
                ImageCSV(self.write(root, text))
        with pytest.raises(FormatError, match=r"'1' in .*line 1 and 'x' in .*line 3"):
            ImageCSV(self.write(root, "a,1\nb,2\nc,x\n"))

    @pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "cp1252"])
    @pytest.mark.parametrize("delimiter", [",", ";", "\t"])
    def test_tables_of_other_programs(self, root: Path, encoding: str, delimiter: str) -> None:
        """Byte order marks and the first line decide; other encodings are said, or refused."""
        text = f'datei{delimiter}tier\r\n"b/1.png"{delimiter}té\r\na/3.png{delimiter}  tè\r\n'
        path = self.write(root, text.encode(encoding))
        if encoding == "cp1252":
            with pytest.raises(FormatError, match=r"list\.csv, line 2(.|\n)*0xE9 at position 23"):
                ImageCSV(path)
        ds = ImageCSV(path, encoding=encoding if encoding == "cp1252" else None)
        assert ds.classes == ["tè", "té"] and ds.labels.tolist() == [1, 0]

    @given(
        labels=st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))),
        delimiter=st.sampled_from(",;\t"),
        encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
        quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
        end=st.sampled_from(["\n", "\r\n", "\r"]),
    )
    def test_what_is_written_is_read(
        self,
        tmp_path_factory: pytest.TempPathFactory,
        labels: list[str],
        delimiter: str,
        encoding: str,
        quoting: Any,
        end: str,
    ) -> None:
        """Tables of any usual form give their labels, but for spaces around them."""
        labels = [label for label in labels if re.search(r"\S", label.strip())]
        labels = ["a b" if re.fullmatch(r"\s*[+-]?\d+\s*", label) else label for label in labels]
        if quoting == csv.QUOTE_MINIMAL:  # Line ends of other systems are not quoted then.
            labels = [label for label in labels if not re.search(r"[\r\n]", label)]
        path = tmp_path_factory.getbasetemp() / "list.csv"
        with open(path, "w", encoding=encoding, newline="") as file:
            rows = csv.writer(file, delimiter=delimiter, quoting=quoting, lineterminator=end)
            rows.writerows([("img", "no class"), *(("a.png", label) for label in labels)])
        if labels and "no class" not in labels:
            ds = ImageCSV(path, decode=False)
            assert [(ds.classes or [])[k] for _, k in ds] == [label.strip() for label in labels]

    def test_a_file_too_large_for_an_image_is_not_read(self, root: Path) -> None:
        with open(root / "film.png", "wb") as file:
            file.truncate(2**30 + 1)  # holes, which take no room on the disk
        with pytest.raises(FormatError, match=r"film\.png .* it has 1_073_741_825 bytes"):
            list(ImageCSV(self.write(root, "film.png,1\n")))

    def test_names_that_are_not_utf8(self, root: Path) -> None:
        name = b"caf\xe9.png"
        (root / "b/1.png").rename(root / os.fsdecode(name))
        ((image, _),) = ImageCSV(self.write(root, name + b",1\n"))
        assert np.array_equal(image, picture(0))

    @given(st.text("a1,\n\r\"' ", max_size=30) | st.binary(max_size=30))
    def test_garbage(self, tmp_path_factory: pytest.TempPathFactory, text: str | bytes) -> None:
        path = self.write(tmp_path_factory.getbasetemp(), text)
        try:
            for file, label in ImageCSV(path, decode=False):
                assert isinstance(file, str) and isinstance(label, int)
        except (FormatError, ConfigError) as error:
            assert "list.csv" in str(error)

    @pytest.mark.parametrize("wrong", [{"classes": [0, 1]}, {"max_pixels": "9"}])
    def test_wrong_arguments(self, root: Path, wrong: Any) -> None:
        path = self.write(root, "b/1.png,a\n")
        for make in (lambda: ImageCSV(path, **wrong), lambda: ImageFolder(root, **wrong)):
            with pytest.raises(ConfigError, match=r"class|max_pixels"):
                make()

    def test_home(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(root.parent))
        assert len(ImageFolder("~/images")) == len(ImageFolder(root))
        ((image, _),) = ImageCSV(self.write(root, "b/1.png,3\n"), root="~/images")
        assert np.array_equal(image, picture(0))


def test_what_a_bad_file_is_left_out_by(tmp_path: Path) -> None:
    files = [tmp_path / "class" / f"{name}.jpg" for name in "abc"]
    files[0].parent.mkdir()
    for file in files:
        file.write_bytes(encode_jpeg(picture(0)))
    lines = tmp_path / "list.csv"
    lines.write_text("".join(f"{file},3\n" for file in files))
    sources = [
        (ImageFromFile(files), None),
        (ImageFolder(tmp_path), ImageFolder(tmp_path, decode=False)),
        (ImageCSV(lines), ImageCSV(lines, decode=False)),
    ]
    files[1].write_bytes(encode_jpeg(picture(0, 60, 80))[:900])
    for source, names in sources:
        with pytest.raises(FormatError, match=r"b\.jpg") as caught:
            list(source)
        (code,) = re.findall(r"MapDataComponent\(.*on_error=\"skip\"\)", caught.value.fix or "")
        # As told, word for word.
        told = {"MapDataComponent": MapDataComponent, "Path": Path, "decode_image": decode_image}
        told |= {"DataFromList": DataFromList, "files": files, "ds": names}
        found = list(eval(code, told))
        assert len(found) == 2 and all(dp[0].shape == (12, 10, 3) for dp in found)
