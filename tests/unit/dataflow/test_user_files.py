"""What file formats share: opening, sizes, flat strings."""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import weakref
from functools import partial
from pathlib import Path

import cloudpickle
import pytest

from towerpack import ConfigError, FormatError
from towerpack.dataflow._user_files import OpenFile, PerProcess, Strings, file_of, files_of, reading


def test_a_handle_for_each_process(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(bytes(range(100)))
    handle = PerProcess(partial(OpenFile, tmp_path / "f"))
    mine = handle.get()
    assert handle.get() is mine and mine.read_at(10, 3) == bytes([10, 11, 12])
    copy = cloudpickle.loads(cloudpickle.dumps(handle))
    assert copy.get() is not mine and copy.get().read_at(99, 5) == bytes([99])
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.write(write, b"another" if handle.get() is not mine else b"the same")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 100) == b"another"
    os.close(read), os.close(write)


def test_an_error_of_reading_does_not_keep_what_was_open() -> None:
    """Since Python 3.12 it would until garbage is collected, were `reading` a generator."""

    class Opened:
        pass

    def read() -> None:
        opened = Opened()
        seen.append(weakref.ref(opened))
        with reading("f", "anything"):
            raise ValueError("damaged")

    seen: list[weakref.ref[Opened]] = []
    gc.disable()
    try:
        with contextlib.suppress(FormatError):
            read()
        assert seen[0]() is None
    finally:
        gc.enable()


def test_files(tmp_path: Path) -> None:
    for name in ("b.tar", "a.tar", "[x].tar"):
        (tmp_path / name).touch()
    a, b, odd = tmp_path / "a.tar", tmp_path / "b.tar", tmp_path / "[x].tar"
    assert files_of(a) == files_of(str(a)) == files_of([a]) == [a]
    assert files_of([b, str(a)]) == [b, a]
    assert files_of(str(tmp_path / "*.tar")) == files_of(tmp_path / "*.tar") == [odd, a, b]
    assert files_of(str(odd)) == [odd]
    for wrong in (tmp_path / "c", [a, tmp_path / "c"], [], str(tmp_path / "*.zip")):
        with pytest.raises(ConfigError, match="no file"):
            files_of(wrong)
    with pytest.raises(ConfigError, match="a directory"):
        file_of(tmp_path)


def test_reading_names_the_file() -> None:
    with pytest.raises(FormatError, match=r"x\.npz cannot be read as an npz file") as caught:
        with reading("x.npz", "an npz file"):
            raise KeyError("shape")
    assert caught.value.got == "KeyError: 'shape'" and isinstance(caught.value.__cause__, KeyError)
    for error in (ConfigError("ours"), MemoryError(), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            with reading("x.npz", "an npz file"):
                raise error


def test_strings() -> None:
    texts = ["", "a", "", "ä€😀", os.fsdecode(b"\xff\x00"), "\0", "x" * 1000]
    strings = pickle.loads(pickle.dumps(Strings(texts)))
    assert list(strings) == texts and len(strings) == len(texts) and list(Strings([])) == []
    assert strings[1:3] == texts[1:3] and strings[::-1] == texts[::-1]
    for i in range(-len(texts), len(texts)):
        assert strings[i] == texts[i]
    for i in (len(texts), -len(texts) - 1):
        with pytest.raises(IndexError):
            strings[i]
