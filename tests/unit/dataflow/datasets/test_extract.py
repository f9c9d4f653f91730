"""Archives: what is in them comes out, and nothing else happens."""

from __future__ import annotations

import gzip
import io
import lzma
import random
import stat
import tarfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dataset_files import damaged, serving, tar_bytes, zip_bytes
from towerpack._core.errors import DataFlowError, FormatError
from towerpack.dataflow.datasets import _extract, extract
from towerpack.dataflow.datasets._download import RemoteFile

FILES = {"top/a.txt": b"one", "top/in/b.bin": bytes(range(256)) * 700, "c": b""}
ZEROS = bytes(4 << 20)


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


@pytest.mark.parametrize(
    ("name", "data"),
    [
        *[(f"a.tar{end}", tar_bytes(FILES, f"w:{end[1:]}")) for end in ("", ".gz", ".bz2", ".xz")],
        ("a.tgz", tar_bytes(FILES)),
        ("a.zip", zip_bytes(FILES)),
        ("named.anything", zip_bytes(FILES)),
        ("with_a_zip_inside.tar", tar_bytes({**FILES, "z": zip_bytes({"other": b""})}, "w")),
    ],
)
def test_all_kinds(tmp_path: Path, name: str, data: bytes) -> None:
    folder = tmp_path / "new" / "folder"
    (folder / f".{name}.extracting" / "half").mkdir(parents=True)  # left by a killed process
    (folder / "top").mkdir()
    put(folder / "top", "mine", b"mine")
    put(folder / "top", "a.txt", b"old")
    assert extract(put(tmp_path, name, data), folder) == folder
    out = found(folder)
    out.pop("z", None)
    assert out == {**FILES, "top/mine": b"mine"}
    extract(put(tmp_path, "labels.idx.gz", gzip.compress(b"labels")), tmp_path / "out")
    assert found(tmp_path / "out") == {"labels.idx": b"labels"}


def long_header() -> bytes:
    """A tar whose extended header is as long as it says."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        info = tarfile.TarInfo("a")
        info.pax_headers = {"comment": "x" * (16 << 20)}
        tar.addfile(info)
    return gzip.compress(out.getvalue())


def tar_of(*members: tuple[str, bytes]) -> bytes:
    """Empty members of several types."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, kind in members:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, "/tmp" if kind in (b"1", b"2") else ""
            tar.addfile(info)
    return out.getvalue()


def link_zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        info = zipfile.ZipInfo("link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "/tmp")
        archive.writestr("link/evil", "evil")
    return out.getvalue()


def encrypted() -> bytes:
    data = bytearray(zip_bytes({"a": b"secret"}))
    data[6] |= 1
    data[data.index(b"PK\x01\x02") + 8] |= 1
    return bytes(data)


def lying() -> bytes:
    """A zip with a smaller size than true."""
    data = bytearray(zip_bytes({"a": bytes(1000)}))
    at = data.index(b"PK\x01\x02") + 24
    data[at : at + 4] = (10).to_bytes(4, "little")
    return bytes(data)


TAR = tar_bytes(FILES, "w")
EVIL_NAMES = ["../evil", "a/../../evil", "/tmp/evil", "..", "C:evil", "..\\evil"]
HOSTILE = {
    **{f"tar {n}": ("a.tar", tar_bytes({"good": b"", n: b"e"}, "w")) for n in EVIL_NAMES},
    **{f"zip {n}": ("a.zip", zip_bytes({"good": b"", n: b"e"})) for n in EVIL_NAMES},
    **{f"a {k} in it": ("a.tar", tar_of(("l", k.encode()), ("l/e", b"0"))) for k in "126"},
    "a link in it": ("a.zip", link_zip()),
    "a name of which nothing is left": ("a.zip", zip_bytes({"b": b""}).replace(b"b", b"\0")),
    "encrypted": ("a.zip", encrypted()),
    "a lie about the size": ("a.zip", lying()),
    "cut off": ("a.tar", TAR[:2000]),
    "a damaged header": ("a.tar", TAR[:1024] + b"x" * 512 + TAR[1536:]),
    "a wrong checksum": ("a.tar.gz", tar_bytes(FILES)[:-8] + bytes(8)),
    "text": ("a", b"text" * 1000),
    "a long header": ("a.tar.gz", long_header()),
    "very many files": (
        "a.tar.gz",
        gzip.compress(tar_of(*((str(i), b"0") for i in range(30_000)))),
    ),
    "tar.gz bomb": ("a.tar.gz", tar_bytes({"zeros": ZEROS})),
    "zip bomb": ("a.zip", zip_bytes({"zeros": ZEROS})),
    "gz bomb": ("a.gz", gzip.compress(ZEROS)),
    "xz bomb": ("a.tar.xz", lzma.compress(tar_bytes({"zeros": ZEROS}, "w"), preset=0)),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_nothing_comes_out_of_hostile_archives(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_extract, "_ALWAYS_ALLOWED", 2 << 20)
    name, data = HOSTILE[case]
    folder = tmp_path / "deep" / "out"
    archive = put(tmp_path, name, data)
    with pytest.raises(FormatError, match=str(archive)):
        extract(archive, folder)
    assert found(tmp_path) == {name: data}
    assert not any(path.is_dir() for path in folder.iterdir())


@pytest.mark.parametrize("members", [[("a", b"0"), ("a/b", b"0")], [("a/b", b"0"), ("a", b"0")]])
def test_what_cannot_be_written(tmp_path: Path, members: Any) -> None:
    with pytest.raises(DataFlowError, match="cannot be extracted"):
        extract(put(tmp_path, "a.tar", tar_of(*members)), tmp_path / "out")
    with pytest.raises(DataFlowError, match="cannot be extracted"):
        extract(put(tmp_path, "a.zip", zip_bytes(FILES)), tmp_path / "a.tar" / "in")


def test_the_folder_itself_may_be_an_entry(tmp_path: Path) -> None:
    data = tar_of(("./", b"5"), ("./a", b"0"), (".", b"5"), ("./b/", b"5"), ("./b/c", b"0"))
    extract(put(tmp_path, "a.tar", data), tmp_path / "out")
    assert found(tmp_path / "out") == {"a": b"", "b/c": b""}
    data = zip_bytes({"./": b"", "./a": b"1", "b/": b"", "b/c": b""})
    extract(put(tmp_path, "a.zip", data), tmp_path / "zip")
    assert found(tmp_path / "zip") == {"a": b"1", "b/c": b""}


def test_a_long_name_makes_no_long_message(tmp_path: Path) -> None:
    archive = put(tmp_path, "a.tar.gz", tar_bytes({"a" * 1_000_000: b""}))
    with pytest.raises(DataFlowError, match="File name too long") as caught:
        extract(archive, tmp_path / "out")
    assert len(str(caught.value)) < 2000


def test_the_limit_counts_all_files(tmp_path: Path) -> None:
    archive = put(tmp_path, "a.zip", zip_bytes({str(i): bytes(100) for i in range(20)}))
    with pytest.raises(FormatError, match="more than 1,999 bytes"):
        extract(archive, tmp_path / "out", max_bytes=1999)
    extract(archive, tmp_path / "out", max_bytes=2000)


WHOLE = {"a.tar": TAR, "a.tar.gz": tar_bytes(FILES), "a.zip": zip_bytes(FILES)}


@pytest.mark.parametrize("name", WHOLE)
def test_damage_is_an_error_or_harmless(tmp_path: Path, name: str) -> None:
    for seed in range(10):
        archive = put(tmp_path, name, damaged(WHOLE[name], random.Random(seed).randrange))
        try:
            extract(archive, tmp_path / "out")
        except DataFlowError as error:
            assert str(archive) in str(error)
        assert {path.name for path in tmp_path.iterdir()} <= {name, "out"}


def test_several_want_a_member(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    put(tmp_path, "mine", b"mine")
    (tmp_path / "fetched").mkdir()
    large = zip_bytes({**FILES, "zeros": ZEROS})
    put(tmp_path / "fetched", "a.zip", large)
    with serving({"a.zip": large}) as served:
        remote = RemoteFile("a.zip", (served.url + "/",))
        assert _extract.fetch_member(remote, tmp_path, "mine") == tmp_path / "mine"
        for folder in (tmp_path, tmp_path / "fetched"):
            with ThreadPoolExecutor(4) as pool:
                wanted = [
                    pool.submit(_extract.fetch_member, remote, folder, "top/a.txt") for _ in "1234"
                ]
                assert {one.result().read_bytes() for one in wanted} == {b"one"}
        assert served.requests == ["a.zip"]
        assert sum("extracting" in message for message in caplog.messages) == 2
        with pytest.raises(FormatError, match=r"no other\.txt in"):
            _extract.fetch_member(remote, tmp_path, "other.txt")


def test_members_leave_modes_and_our_own_bugs_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without `filter=` of `TarFile.extractall`, which Python 3.11.2 lacks."""
    archive = tmp_path / "a.tar"
    with tarfile.open(archive, "w") as tar:
        member = tarfile.TarInfo("d/setuid")
        member.mode, member.size, member.mtime = 0o4777, 3, 1_000_000
        tar.addfile(member, io.BytesIO(b"abc"))
    monkeypatch.delattr(tarfile, "data_filter", raising=False)
    status = (extract(archive, tmp_path / "out") / "d" / "setuid").stat()
    assert not status.st_mode & 0o6022 and status.st_mtime == 1_000_000

    def broken(*arguments: Any) -> None:
        raise TypeError("a bug of ours")

    monkeypatch.setattr(_extract, "_merge", broken)
    with pytest.raises(TypeError, match="a bug of ours"):
        extract(archive, tmp_path / "again")
    assert list((tmp_path / "again").glob("*extracting")) == []
