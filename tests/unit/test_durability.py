"""A power cut loses nothing: content is synced before a rename, and its folder after it."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towerpack import dataflow as df
from towerpack._core.files import replace_file
from towerpack.checkpoint import CheckpointStore

Save = Callable[[Path], Any]


class Disk:
    """Watches what has been synced, and whether renames and links wait for it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._synced: dict[tuple[int, int], tuple[int, int]] = {}
        self._unnamed: dict[tuple[int, int], str] = {}  # folders whose new names may be lost
        self.faults: list[str] = []
        self.moves = 0
        fsync = os.fsync

        def sync(fd: int) -> None:
            fsync(fd)
            inode, self._synced[inode] = _seen(os.fstat(fd))
            self._unnamed.pop(inode, None)

        monkeypatch.setattr(os, "fsync", sync)
        for name in ("rename", "replace", "link"):
            monkeypatch.setattr(os, name, partial(self._move, getattr(os, name)))

    def _move(self, move: Callable[..., None], source: Any, target: Any, **options: Any) -> None:
        source, target = Path(source), Path(target)
        if not target.name.startswith(".trash-"):
            content = [source, *(source.rglob("*") if source.is_dir() else [])]
            for path in content:
                inode, state = _seen(path.stat())
                if self._synced.get(inode) != state:
                    self.faults.append(f"{path.name} was not synced when it became {target}")
        # A checkpoint that takes another's place fails here, and is then exchanged for it.
        self.moves += 1
        inode, _ = _seen(target.parent.stat())
        self._unnamed[inode] = f"the folder of {target.name} is not synced"
        move(source, target, **options)

    def check(self) -> None:
        """Check that what was moved and where it is now would survive a power cut."""
        assert self.moves, "nothing was renamed"
        assert not self.faults + list(self._unnamed.values())
        self.moves = 0


def _seen(stat: os.stat_result) -> tuple[tuple[int, int], tuple[int, int]]:
    return (stat.st_dev, stat.st_ino), (stat.st_size, stat.st_mtime_ns)


def tensors(step: int) -> dict[str, dict[str, np.ndarray]]:
    return {"model": {"x": np.full(5, step, np.float32)}, "optimizer": {"n": np.array(step)}}


def test_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_links(source: Any, target: Any) -> None:
        raise OSError(errno.EOPNOTSUPP, "no links here")

    disk = Disk(monkeypatch)
    with CheckpointStore(tmp_path, keep=2) as store:
        for step in (1, 2, 3, 3):  # The first is removed, the last takes another's place.
            store.save(step, tensors(step), {"step": step}, blocking=True)
            disk.check()
        store.keep_as(3, "best", blocking=True)
        disk.check()
        store.save(4, tensors(4), tag="best", blocking=True)
        disk.check()
        monkeypatch.setattr(os, "link", no_links)
        store.keep_as(2, "copied", blocking=True)
        disk.check()
        store.abandon_after(2)
        disk.check()


def flow() -> df.DataFlow:
    return df.DataFromList([{"x": np.arange(3) + i} for i in range(4)], shuffle=False)


@pytest.mark.parametrize(
    "save",
    [
        lambda path: replace_file(path, b"new"),
        lambda path: df.LMDBSerializer.save(flow(), path),
        lambda path: df.NumpySerializer.save(flow(), path),
        lambda path: df.TFRecordSerializer.save(flow(), path),
        lambda path: df.HDF5Serializer.save(df.MapData(flow(), lambda dp: [dp["x"]]), path, ["x"]),
        lambda path: df.TarSerializer.save(
            df.MapData(flow(), lambda dp: {"x.npy": dp["x"]}), path.with_suffix(".tar")
        ),
    ],
    ids=["file", "lmdb", "npz", "tfrecord", "hdf5", "tar"],
)
@pytest.mark.parametrize("old", [False, True], ids=["new", "replaced"])
def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save: Save, old: bool) -> None:
    if old:
        save(tmp_path / "file")
    disk = Disk(monkeypatch)
    save(tmp_path / "file")
    disk.check()
    assert len(list(tmp_path.iterdir())) == 1
