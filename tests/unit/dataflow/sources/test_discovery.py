"""Which files of a folder are used, and that every other file is told with its reason."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from towerpack.dataflow import ImageFolder
from towerpack.dataflow.sources._discovery import (
    LeftOut,
    Refusal,
    discover,
    is_hidden,
    not_a_text,
    not_an_image,
    summary,
)

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")


def found(root: Path, refusal: Refusal) -> tuple[list[str], dict[str, str]]:
    """Names of the files used, and the reasons for the others, below a folder."""
    left_out: list[LeftOut] = []
    used = [os.path.relpath(file, root) for file in discover(root, refusal, left_out)]
    return used, {os.path.relpath(file, root): why for file, why in left_out}


@pytest.mark.parametrize("name", ["a.jfif", "a", "a.JPG_large", "a.txt", "a.b"])
@pytest.mark.parametrize("kind", FORMATS)
def test_images_are_recognized_by_their_first_bytes(tmp_path: Path, kind: str, name: str) -> None:
    Image.new("RGB", (5, 4)).save(tmp_path / name, kind)
    assert found(tmp_path, not_an_image) == ([name], {})


@pytest.mark.parametrize(
    "content", [b"", b"BMW makes cars, and they are long", b"RIFF\0\0\0\0WAVEfmt ", b"%PDF-1.4"]
)
def test_other_files_are_left_out_with_the_reason(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    used, left_out = found(tmp_path, not_an_image)
    assert not used and left_out["a"].startswith("not a JPEG")
    Image.new("RGB", (5, 4)).save(tmp_path / "raw.CR2", "TIFF")
    assert "raw.CR2" in found(tmp_path, not_an_image)[1]


def test_texts_are_recognized_by_their_names(tmp_path: Path) -> None:
    texts = ["1.TXT", "2.md", "3.Text", "4", "5.", "6.RST"]
    for name in (*texts, "a.html", "b.py"):
        (tmp_path / name).write_text("a text")
    (tmp_path / "binary").write_bytes(b"\0\1")
    used, left_out = found(tmp_path, not_a_text)
    assert used == texts and set(left_out) == {"a.html", "b.py", "binary"}


@pytest.mark.parametrize(
    "name", [".a.jpg", "._a.jpg", ".ipynb_checkpoints/a.jpg", "__MACOSX/a.jpg", "Thumbs.db",
             "desktop.ini", "x/.hidden/a.jpg", "DESKTOP.INI"]
)  # fmt: skip
@pytest.mark.parametrize("refusal", [not_an_image, not_a_text, lambda _: None])
def test_hidden_files_are_counted_but_not_used(tmp_path: Path, name: str, refusal: Refusal) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_bytes(b"\xff\xd8\xff")
    used, left_out = found(tmp_path, refusal)
    assert not used and list(left_out.values()) == ["hidden"]
    assert any(is_hidden(part) for part in Path(name).parts)


def test_links_are_followed_once(tmp_path: Path) -> None:
    (tmp_path / "elsewhere/deep").mkdir(parents=True)
    (tmp_path / "root/a").mkdir(parents=True)
    for name in ("elsewhere/1.png", "elsewhere/deep/2.png", "root/a/3.png"):
        (tmp_path / name).write_bytes(b"")
    links: dict[str, str | Path] = {
        "file.png": tmp_path / "elsewhere/1.png",
        "folder": tmp_path / "elsewhere",
        "folder-again": tmp_path / "elsewhere/deep",
        "gone": tmp_path / "no such file",
        "gone.png": "no such file.png",
        "itself": "itself",
        "up": "..",
        "far-up": tmp_path,
        "device.png": os.devnull,
    }
    for name, target in links.items():
        (tmp_path / "root/a" / name).symlink_to(target)
    (tmp_path / "elsewhere/back").symlink_to(tmp_path / "root/a")
    os.mkfifo(tmp_path / "root/a/pipe.png")
    used, left_out = found(tmp_path / "root/a", not_an_image)
    assert used == ["3.png", "file.png", "folder/1.png", "folder/deep/2.png"]
    broken, loop, other = "a broken link", "a link to a folder", "a pipe or a device"
    expected = {
        "device.png": other, "far-up": loop, "folder-again": loop, "folder/back": loop,
        "gone": broken, "gone.png": broken, "itself": broken, "pipe.png": other, "up": loop,
    }  # fmt: skip
    assert set(left_out) == set(expected)
    assert all(why.startswith(expected[name]) for name, why in left_out.items())


def test_every_file_is_used_or_left_out(tmp_path: Path) -> None:
    for i, name in enumerate(("x/1.jpg", "x/y/2.PNG", "x/y/n.csv", "x/._1.jpg", "z.txt", "w")):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(i))
    refusals: tuple[Callable[[str], str | None], ...] = (not_an_image, not_a_text)
    for refusal in refusals:
        used, left_out = found(tmp_path, refusal)
        files = {os.path.relpath(path, tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
        assert {*used, *left_out} == files and len(used) + len(left_out) == len(files)


def test_a_class_does_not_disappear(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Pictures with unusual names are used; a class without pictures is named in a warning."""
    for name in ("cat/1.jpg", "emu/1.jfif", "emu/2", "fox/page.html", "loose.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (5, 4)).save(tmp_path / name, "JPEG" if "page" not in name else "PPM")
    (tmp_path / "gnu").symlink_to(tmp_path / "no such folder")
    (tmp_path / "all").symlink_to(tmp_path)
    with caplog.at_level("INFO"):
        folder = ImageFolder(tmp_path)
    assert folder.classes == ["cat", "emu", "fox"] and folder.labels.tolist() == [0, 1, 1]
    assert "there are no images of fox" in caplog.text
    skipped = {Path(file).name: why for file, why in folder.skipped}
    assert skipped["gnu"] == "a broken link" and skipped["all"].startswith("a link")
    assert skipped["loose.png"] == "not in the folder of a class" and folder.left_out == 4
    assert summary(folder.skipped) in caplog.text
