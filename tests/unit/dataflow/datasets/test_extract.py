"""Archives: what is in them comes out, and nothing else happens."""

from __future__ import annotations

import gzip
import io
import lzma
import os
import stat
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataset_files import damaged, serving, tar_bytes, zip_bytes
from towerpack._core.errors import DataFlowError, FormatError
from towerpack.dataflow.datasets import extract
from towerpack.dataflow.datasets._download import RemoteFile
from towerpack.dataflow.datasets._extract import fetch_member

FILES = {"top/a.txt": b"one", "top/in/b.bin": bytes(range(256)) * 700, "c": b""}


def put(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def found(folder: Path) -> dict[str, bytes]:
    """Files but locks."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(".lock")
    }


def link_tar(kind: bytes, target: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        info = tarfile.TarInfo("link")
        info.type, info.linkname = kind, target
        tar.addfile(info)
        inner = tarfile.TarInfo("link/evil")
        inner.size = 4
        tar.addfile(inner, io.BytesIO(b"evil"))
    return out.getvalue()


def link_zip(target: str, inner: tuple[str, ...]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, target)
        for name in inner:
            archive.writestr(name, "evil")
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "data"),
    [
        *[(f"a.tar{end}", tar_bytes(FILES, f"w:{end[1:]}")) for end in ("", ".gz", ".bz2", ".xz")],
        ("a.tgz", tar_bytes(FILES)),
        ("a.zip", zip_bytes(FILES)),
        ("named.anything", zip_bytes(FILES)),
    ],
)
def test_all_kinds(tmp_path: Path, name: str, data: bytes) -> None:
    folder = tmp_path / "new" / "folder"
    assert extract(put(tmp_path, name, data), folder) == folder
    assert found(folder) == FILES


def test_gzip(tmp_path: Path) -> None:
    extract(put(tmp_path, "labels.idx.gz", gzip.compress(b"labels")), tmp_path / "out")
    assert found(tmp_path / "out") == {"labels.idx": b"labels"}


def test_what_is_there_stays_or_is_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    (folder / "top").mkdir(parents=True)
    put(folder / "top", "mine", b"mine")
    put(folder / "top", "a.txt", b"old")
    extract(put(tmp_path, "a.zip", zip_bytes(FILES)), folder)
    assert found(folder) == {**FILES, "top/mine": b"mine"}


def test_leftovers_of_a_killed_process(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    (folder / ".a.zip.extracting" / "top").mkdir(parents=True)
    put(folder / ".a.zip.extracting" / "top", "half", b"half")
    extract(put(tmp_path, "a.zip", zip_bytes(FILES)), folder)
    assert found(folder) == FILES


EVIL_NAMES = [
    "../evil",
    "a/../../evil",
    "/tmp/evil",
    "..",
    "a/..",
    "C:/evil",
    "C:evil",
    "\\evil",
    "..\\evil",
    "a" * 2000,
    "a\\b",
    "//evil",
]


class TestHostile:
    """Nothing comes out, and nothing is written anywhere else."""

    def refused(self, tmp_path: Path, name: str, data: bytes, **arguments: int) -> str:
        folder = tmp_path / "deep" / "out"
        archive = put(tmp_path, name, data)
        with pytest.raises(FormatError) as caught:
            extract(archive, folder, **arguments)
        assert found(tmp_path) == {name: data}
        assert [path.name for path in folder.iterdir() if path.is_dir()] == []
        assert str(archive) in str(caught.value)
        return str(caught.value)

    @pytest.mark.parametrize("evil", EVIL_NAMES)
    def test_names_that_lead_out(self, tmp_path: Path, evil: str) -> None:
        self.refused(tmp_path, "a.tar", tar_bytes({"good": b"good", evil: b"evil"}, "w"))

    @pytest.mark.parametrize("evil", EVIL_NAMES)
    def test_names_that_lead_out_of_a_zip(self, tmp_path: Path, evil: str) -> None:
        message = self.refused(tmp_path, "a.zip", zip_bytes({"good": b"good", evil: b"evil"}))
        assert "a file named" in message

    @pytest.mark.parametrize(
        "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE]
    )
    def test_links_and_devices(self, tmp_path: Path, kind: bytes) -> None:
        outside = tmp_path / "outside"
        outside.mkdir()
        message = self.refused(tmp_path, "a.tar", link_tar(kind, str(outside)))
        assert "link or device" in message

    def test_links_in_a_zip(self, tmp_path: Path) -> None:
        for inner in ((), ("link/evil",)):
            data = link_zip(str(tmp_path), inner)
            assert "a link or device" in self.refused(tmp_path, "a.zip", data)

    def test_through_a_link_that_is_there(self, tmp_path: Path) -> None:
        """The user's own links are followed: data may lie on another disk."""
        (tmp_path / "disk").mkdir()
        (tmp_path / "out").symlink_to(tmp_path / "disk")
        extract(put(tmp_path, "a.zip", zip_bytes(FILES)), tmp_path / "out")
        assert found(tmp_path / "disk") == FILES

    @pytest.mark.parametrize(
        ("name", "data"),
        [
            ("a.tar.gz", tar_bytes({"zeros": bytes(80 << 20)})),
            ("a.zip", zip_bytes({"zeros": bytes(80 << 20)})),
            ("a.gz", gzip.compress(bytes(80 << 20))),
            ("a.tar.xz", lzma.compress(tar_bytes({"zeros": bytes(80 << 20)}, "w"), preset=0)),
        ],
    )
    def test_bombs(self, tmp_path: Path, name: str, data: bytes) -> None:
        self.refused(tmp_path, name, data)
        if name == "a.tar.xz":
            return  # no honest archive is packed so tightly
        extract(tmp_path / name, tmp_path / "big", max_bytes=80 << 20)
        assert (tmp_path / "big" / ("a" if name == "a.gz" else "zeros")).stat().st_size == 80 << 20

    def test_many_small_files_count_together(self, tmp_path: Path) -> None:
        files = {str(i): bytes(100) for i in range(20)}
        assert "1,999" in self.refused(tmp_path, "a.zip", zip_bytes(files), max_bytes=1999)

    def test_a_name_twice(self, tmp_path: Path) -> None:
        for pair in (("a", "a"), ("a", "a/b"), ("a/b", "a")):
            out = io.BytesIO()
            with tarfile.open(fileobj=out, mode="w") as tar:
                for name in pair:
                    info = tarfile.TarInfo(name)
                    tar.addfile(info, io.BytesIO())
            assert "twice" in self.refused(tmp_path, "a.tar", out.getvalue())
            os.unlink(tmp_path / "a.tar")

    def test_encrypted(self, tmp_path: Path) -> None:
        data = bytearray(zip_bytes({"a": b"secret"}))
        data[6] |= 1
        data[data.index(b"PK\x01\x02") + 8] |= 1
        assert "encrypted" in self.refused(tmp_path, "a.zip", bytes(data))

    def test_a_lie_about_the_size(self, tmp_path: Path) -> None:
        data = bytearray(zip_bytes({"a": bytes(1000)}))
        at = data.index(b"PK\x01\x02") + 24
        data[at : at + 4] = (10).to_bytes(4, "little")
        self.refused(tmp_path, "a.zip", bytes(data))


@pytest.mark.parametrize("name", ["a.tar", "a.tar.gz", "a.zip", "a.gz"])
@given(draw=st.randoms(use_true_random=False))
@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_damage_is_an_error_or_harmless(tmp_path: Path, name: str, draw: object) -> None:
    whole = {
        "a.tar": tar_bytes(FILES, "w"),
        "a.tar.gz": tar_bytes(FILES),
        "a.zip": zip_bytes(FILES),
        "a.gz": gzip.compress(b"labels" * 100),
    }[name]
    folder = tmp_path / "out"
    archive = put(tmp_path, name, damaged(whole, draw.randrange))  # type: ignore[attr-defined]
    try:
        extract(archive, folder)
    except FormatError as error:
        assert str(archive) in str(error)
    assert {path.name for path in tmp_path.iterdir()} <= {name, "out"}


def test_writing_fails(tmp_path: Path) -> None:
    put(tmp_path, "file", b"")
    with pytest.raises(DataFlowError, match="cannot be extracted"):
        extract(put(tmp_path, "a.zip", zip_bytes(FILES)), tmp_path / "file" / "in")


class TestFetchMember:
    def test_once(self, tmp_path: Path) -> None:
        with serving({"a.zip": zip_bytes(FILES)}) as served:
            remote = RemoteFile("a.zip", (served.url,))
            path = fetch_member(remote, tmp_path / "out", "top/a.txt")
            assert path.read_bytes() == b"one"
            fetch_member(remote, tmp_path / "out", "top/in")
            assert len(served.requests) == 1

    def test_several_want_it(self, tmp_path: Path) -> None:
        with serving({"a.zip": zip_bytes(FILES)}) as served:
            served.pause_s = 0.1
            remote = RemoteFile("a.zip", (served.url,))
            with ThreadPoolExecutor(4) as pool:
                wanted = [pool.submit(fetch_member, remote, tmp_path, "top/a.txt") for _ in "1234"]
                assert {one.result().read_bytes() for one in wanted} == {b"one"}
            assert len(served.requests) == 1

    def test_not_in_it(self, tmp_path: Path) -> None:
        with serving({"a.zip": zip_bytes(FILES)}) as served:
            remote = RemoteFile("a.zip", (served.url + "/",))
            with pytest.raises(FormatError, match=r"no other\.txt in"):
                fetch_member(remote, tmp_path, "other.txt")

    def test_what_is_there_needs_nobody(self, tmp_path: Path) -> None:
        put(tmp_path, "mine", b"mine")
        remote = RemoteFile("a.zip", ("http://127.0.0.1:9",))
        assert fetch_member(remote, tmp_path, "mine") == tmp_path / "mine"
