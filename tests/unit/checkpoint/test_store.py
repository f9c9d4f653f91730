from __future__ import annotations

import itertools
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from scaling import scaled
from towerpack import CheckpointError, ConfigError, StateError
from towerpack.checkpoint import CheckpointStore, _store, list_checkpoints, load_checkpoint


def arrays(step: int) -> dict[str, dict[str, np.ndarray]]:
    """Tensors that tell which step they are of."""
    return {
        "model": {"kernel": np.full((4, 3), step, np.float32), "scale": np.array(step, np.float64)},
        "optimizer": {"iterations": np.array(step, np.int64)},
    }


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir() if entry.name != ".lock")


def test_round_trip(tmp_path: Path) -> None:
    state = {"epoch": 3, "data": {"position": (1, b"\0")}, "score": float("nan")}
    with CheckpointStore(tmp_path / "checkpoints", clock=lambda: 5.0) as store:
        path = store.save(7, arrays(7), state, info={"note": "x"})
    assert names(path) == [
        "manifest.json",
        "model.safetensors",
        "optimizer.safetensors",
        "state.json",
    ]
    for where in (tmp_path, tmp_path / "checkpoints", path):
        found = load_checkpoint(where)
        assert (found.step, found.tag, found.path) == (7, None, path)
        assert found.state["data"] == state["data"]
        assert (found.manifest.saved_at, found.manifest.info) == (5.0, {"note": "x"})
        assert found.manifest.versions["numpy"] == np.__version__
        assert list(found.model) == ["kernel", "scale"]
        assert found.model["scale"].shape == ()
        assert found.optimizer["iterations"] == 7
        np.testing.assert_array_equal(found.model["kernel"], arrays(7)["model"]["kernel"])


@pytest.mark.parametrize(
    "array",
    [
        np.arange(3, dtype=ml_dtypes.bfloat16),
        np.arange(12, dtype=np.float32).reshape(3, 4).T,
        np.arange(12, dtype=np.int16).reshape(3, 4)[::2, ::-1],
        np.arange(3, dtype=">f4"),
        np.zeros((0, 3), np.uint8),
        np.array([True, False]),
        np.array([1 + 2j], np.complex64),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_every_dtype_and_stride(tmp_path: Path, array: np.ndarray) -> None:
    with CheckpointStore(tmp_path) as store:
        path = store.save(1, {"model": {"x": array}})
    back = load_checkpoint(path).model["x"]
    assert (back.dtype.name, back.shape) == (array.dtype.name, array.shape)
    np.testing.assert_array_equal(back, array)
    assert back.flags.writeable


def test_bfloat16_needs_no_import_by_the_reader(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as store:
        store.save(1, {"model": {"x": np.ones(2, ml_dtypes.bfloat16)}})
    program = f"""
from towerpack.checkpoint import load_checkpoint
print(load_checkpoint({str(tmp_path)!r}).model["x"].dtype)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "bfloat16\n", done.stderr


def test_other_programs_read_the_tensors(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as store:
        path = store.save(2, arrays(2))
    read = safetensors.numpy.load_file(path / "model.safetensors")
    np.testing.assert_array_equal(read["kernel"], arrays(2)["model"]["kernel"])


def test_a_save_returns_before_it_is_done_and_the_next_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, in_flight, most = threading.Event(), [], []
    write = _store.write_checkpoint

    def slow(directory: Path, manifest: Any, *content: Any) -> Path:
        in_flight.append(manifest.step)
        most.append(len(in_flight))
        go.wait(10)
        path = write(directory, manifest, *content)
        in_flight.remove(manifest.step)
        return path

    monkeypatch.setattr(_store, "write_checkpoint", slow)
    with CheckpointStore(tmp_path) as store:
        state = {"n": 1}
        first = store.save(1, arrays(1), state)
        state["n"] = 2
        assert store.saving
        assert store.has(1)
        assert not first.exists()
        threading.Timer(0.05, go.set).start()
        store.save(2, arrays(2))
        assert first.exists()
        store.wait()
        assert not store.saving
    assert most == [1, 1]
    assert load_checkpoint(first).state == {"n": 1}


def test_a_program_that_ends_finishes_its_save(tmp_path: Path) -> None:
    program = f"""
import numpy as np
from towerpack.checkpoint import CheckpointStore
store = CheckpointStore({str(tmp_path)!r})
store.save(3, {{"model": {{"x": np.zeros(1_000_000)}}}})
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    assert load_checkpoint(tmp_path).step == 3


def test_keep(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path, keep=2) as store:
        for step in range(5):
            store.save(step, arrays(step), blocking=True)
    assert names(tmp_path) == ["step-00000003", "step-00000004"]


def test_keep_counts_whole_checkpoints_only(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as store:
        for step in (1, 2, 3):
            store.save(step, arrays(step), blocking=True)
    (tmp_path / "step-00000003" / "state.json").unlink()
    with CheckpointStore(tmp_path, keep=2) as store:
        store.save(4, arrays(4))
    assert names(tmp_path) == ["step-00000002", "step-00000003", "step-00000004"]


@pytest.mark.parametrize("exchange", [True, False])
def test_saving_a_step_again_replaces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchange: bool
) -> None:
    if not exchange:
        monkeypatch.setattr("towerpack.checkpoint._write._exchange", lambda *_: False)
    with CheckpointStore(tmp_path) as store:
        store.save(1, arrays(1), "old")
        store.save(1, arrays(1), "new")
    assert load_checkpoint(tmp_path).state == "new"
    assert names(tmp_path) == ["step-00000001"]


@pytest.mark.skipif(sys.platform != "linux", reason="others cannot swap two names")
def test_a_step_that_is_replaced_is_never_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(*_: object) -> None:
        raise AssertionError("the old one was taken away before the new one was in place")

    monkeypatch.setattr("towerpack.checkpoint._write.remove_checkpoint", absent)
    with CheckpointStore(tmp_path) as store:
        store.save(1, arrays(1), "old")
        store.save(1, arrays(1), "new")
    assert load_checkpoint(tmp_path).state == "new"


def test_a_tag_holds_one_checkpoint(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path, keep=1) as store:
        store.save(1, arrays(1), tag="best-val/error")
        store.save(2, arrays(2), tag="best-val/error", info={"score": 0.5})
        store.save(3, arrays(3))
    assert names(tmp_path) == ["best-val_error-00000002", "step-00000003"]
    best = load_checkpoint(tmp_path, tag="best-val/error")
    assert (best.step, best.tag, best.manifest.info) == (2, "best-val/error", {"score": 0.5})
    assert load_checkpoint(tmp_path).step == 3


def test_keep_as_links_the_files(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path, keep=1) as store:
        store.save(1, arrays(1), "s")
        path = store.keep_as(1, "best-error")
        store.save(2, arrays(2))
    assert names(tmp_path) == ["best-error-00000001", "step-00000002"]
    found = load_checkpoint(tmp_path, tag="best-error")
    assert (found.step, found.tag, found.state) == (1, "best-error", "s")
    assert found.model["kernel"][0, 0] == 1
    with CheckpointStore(tmp_path) as store:
        path = store.keep_as(2, "best-error", blocking=True)
    source = tmp_path / "step-00000002" / "model.safetensors"
    assert os.stat(source).st_ino == os.stat(path / "model.safetensors").st_ino
    assert names(tmp_path) == ["best-error-00000002", "step-00000002"]


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="needs Linux's count of bytes read")
def test_keep_as_does_not_read_the_tensors(tmp_path: Path) -> None:
    def bytes_read() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])  # rchar

    size = 32 << 20
    with CheckpointStore(tmp_path) as store:
        store.save(1, {"model": {"x": np.zeros(size, np.uint8)}}, blocking=True)
        before = bytes_read()
        store.keep_as(1, "best", blocking=True)
        assert bytes_read() - before < size / 8


def test_keep_as_copies_where_there_are_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    with CheckpointStore(tmp_path) as store:
        store.save(1, arrays(1))
        store.keep_as(1, "best")
    assert load_checkpoint(tmp_path, tag="best").model["kernel"][0, 0] == 1


def test_keep_as_needs_the_checkpoint(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as store:
        store.save(1, arrays(1))
        with pytest.raises(CheckpointError, match="step 2 has no checkpoint"):
            store.keep_as(2, "best")


def test_tags_that_share_a_name_are_refused(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as store:
        store.save(1, arrays(1), tag="best-a/b")
        with pytest.raises(ConfigError, match="best-a_b"):
            store.save(1, arrays(1), tag="best-a_b")


@pytest.mark.parametrize("tag", ["step", "", "../../x", ".hidden", "abandoned-x"])
def test_tags_stay_inside_and_apart(tmp_path: Path, tag: str) -> None:
    directory = tmp_path / "checkpoints"
    with CheckpointStore(directory) as store:
        path = store.save(1, arrays(1), tag=tag)
        store.save(1, arrays(1))
    assert path.parent == directory
    assert load_checkpoint(directory, tag=tag).tag == tag
    assert load_checkpoint(directory).tag is None


def test_later_checkpoints_are_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with CheckpointStore(tmp_path) as store:
        for step in (1, 2):
            store.save(step, arrays(step))
        moved = store.abandon_after(1)
        store.save(2, arrays(2))
        moved += store.abandon_after(1)
    assert [path.name for path in moved] == ["abandoned-step-00000002", "abandoned-step-00000002.2"]
    assert load_checkpoint(tmp_path).step == 1
    assert "renamed the later" in caplog.text


def test_a_directory_has_one_writer(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path):
        with pytest.raises(CheckpointError, match=f"pid {os.getpid()}"):
            CheckpointStore(tmp_path)
    with CheckpointStore(tmp_path):
        pass


def test_leftovers_of_a_killed_writer_are_removed(tmp_path: Path) -> None:
    for name in (".tmp-step-00000009-1", ".trash-step-00000001-1"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"x")
    with CheckpointStore(tmp_path):
        assert names(tmp_path) == []


def test_a_closed_store_refuses(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.close()
    store.close()
    with pytest.raises(CheckpointError, match="closed"):
        store.save(1, arrays(1))


@pytest.mark.parametrize(
    ("error", "call"),
    [
        (StateError, lambda s: s.save(1, arrays(1), {"f": len})),
        (CheckpointError, lambda s: s.save(1, {"model": {"x": np.array(["text"])}})),
        (CheckpointError, lambda s: s.save(1, {"model": {"x": np.zeros(1, np.complex128)}})),
        (ConfigError, lambda s: s.save(1, {"../model": {}})),
        (ConfigError, lambda s: s.save(-1, {})),
        (ConfigError, lambda s: s.save(1, {}, info={"score": float("nan")})),
        (ConfigError, lambda s: s.save(1, {}, info={1: "key"})),
        (ConfigError, lambda s: s.save(1, {}, info={"x": "y" * 100_000})),
    ],
)
def test_what_cannot_be_saved_is_refused_at_once(tmp_path: Path, error: Any, call: Any) -> None:
    with CheckpointStore(tmp_path) as store:
        with pytest.raises(error):
            call(store)
        store.save(2, arrays(2))
    assert names(tmp_path) == ["step-00000002"]


def test_keep_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"keep must be at least 1.*got 0"):
        CheckpointStore(tmp_path, keep=0)


@pytest.mark.parametrize("notice", ["save", "keep_as", "wait", "close"])
def test_a_failure_in_the_background_reaches_the_caller_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, notice: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    store = CheckpointStore(tmp_path)
    store.save(1, arrays(1), blocking=True)
    with monkeypatch.context() as patch:
        patch.setattr("towerpack.checkpoint._write.write_tensors", full)
        store.save(2, arrays(2))
        while store.saving:
            time.sleep(0.001)
    assert "No space left" in caplog.text
    calls = {
        "save": lambda: store.save(3, arrays(3)),
        "keep_as": lambda: store.keep_as(1, "best"),
        "wait": store.wait,
        "close": store.close,
    }
    with pytest.raises(CheckpointError, match="step 2 was not saved: No space left") as caught:
        calls[notice]()
    assert isinstance(caught.value.__cause__, OSError)
    assert "to fix" in str(caught.value)
    assert "step-00000001" in str(caught.value)
    assert names(tmp_path) == ["step-00000001"]
    if notice != "close":
        store.save(4, arrays(4))
    store.close()
    assert load_checkpoint(tmp_path).step == (1 if notice == "close" else 4)


def test_rows(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path / "checkpoints", clock=lambda: 1.5) as store:
        store.save(1, arrays(1))
        store.keep_as(1, "best-val/error", info={"score": 2})
        store.save(2, arrays(2))
    (tmp_path / "checkpoints" / "step-00000002" / "manifest.json").unlink()
    best, one, two = list_checkpoints(tmp_path)
    assert (best.tag, best.step, best.info, best.valid) == ("best-val/error", 1, {"score": 2}, True)
    assert (one.tag, one.saved_at, one.nbytes > 100) == (None, 1.5, True)
    assert (two.valid, two.problem, two.saved_at) == (False, "manifest.json is missing", None)


def test_reading_goes_on_while_the_writer_removes(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path, keep=1) as store:
        store.save(1, arrays(1), blocking=True)
        found = load_checkpoint(tmp_path)
        store.save(2, arrays(2), blocking=True)
        assert found.model["kernel"][0, 0] == 1


def test_a_reader_beside_a_writer_that_keeps_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[int] = []
    failures: list[BaseException] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                found = load_checkpoint(tmp_path)
                assert found.model["kernel"][0, 0] == found.state == found.step
                list_checkpoints(tmp_path)
                seen.append(found.step)
        except BaseException as error:
            failures.append(error)

    with CheckpointStore(tmp_path, keep=1) as store, caplog.at_level(logging.WARNING):
        store.save(0, arrays(0), 0, blocking=True)
        reader = threading.Thread(target=read)
        reader.start()
        for step in range(1, scaled(200, at_least=15)):
            store.save(step, arrays(step), step)
        store.wait()
        done.set()
        reader.join()
    assert not failures
    assert seen == sorted(seen)
    assert caplog.text == ""


@pytest.mark.parametrize("tag", [None, "best"])
def test_a_reader_beside_a_writer_that_replaces(tmp_path: Path, tag: str | None) -> None:
    done, seen = threading.Event(), list[int]()

    def write() -> None:
        with CheckpointStore(tmp_path) as store:
            for number in range(1, scaled(100, at_least=15)):
                # One step again and again, or one tag of other steps.
                step = 1 if tag is None else number
                store.save(step, arrays(number), number, tag=tag)
        done.set()

    with CheckpointStore(tmp_path) as store:
        store.save(1, arrays(0), 0, tag=tag)
    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        found = load_checkpoint(tmp_path, tag=tag)
        assert found.model["kernel"][0, 0] == found.state
        seen.append(found.state)
    writer.join()
    assert seen == sorted(seen)
    assert load_checkpoint(tmp_path, tag=tag).state == scaled(100, at_least=15) - 1


@pytest.mark.parametrize("order", list(itertools.permutations([9, 10, 1000])), ids=str)
def test_the_newest_is_that_of_the_highest_step(tmp_path: Path, order: tuple[int, ...]) -> None:
    *untagged, tagged = order
    with CheckpointStore(tmp_path) as store:
        for step in untagged:
            store.save(step, arrays(step), step)
        store.save(tagged, arrays(tagged), tagged, tag="best")
    assert load_checkpoint(tmp_path).state == max(untagged)
    assert load_checkpoint(tmp_path, tag="best").state == tagged
    assert [row.step for row in list_checkpoints(tmp_path)] == sorted(order)
    for step in untagged:
        shutil.rmtree(tmp_path / f"step-{step:08d}")
    shutil.copytree(tmp_path / f"best-{tagged:08d}", tmp_path / "step-00000900")
    assert load_checkpoint(tmp_path).state == tagged  # the tagged one, as no other is valid


def test_of_a_tag_the_last_saved_stays_and_of_several_the_newest_is_loaded(tmp_path: Path) -> None:
    for first, second in ((7, 10), (10, 7)):
        with CheckpointStore(tmp_path) as store:
            store.save(first, arrays(first), tag="best")
            store.save(second, arrays(second), tag="best")
        assert names(tmp_path) == [f"best-{second:08d}"]
    with CheckpointStore(tmp_path / "others") as store:
        for step in (9, 11, 10):  # of a writer that was killed before it removed the older ones
            store.save(step, arrays(step), step, tag=f"best{step}", blocking=True)
            (tmp_path / "others" / f"best{step}-{step:08d}").rename(tmp_path / f"best-{step:08d}")
    assert load_checkpoint(tmp_path, tag="best").step == 11


def test_all_files_have_the_mode_that_files_of_the_process_have(tmp_path: Path) -> None:
    with CheckpointStore(tmp_path) as store:
        path = store.save(1, {"model": {"w": np.zeros(3, np.float32)}}, {}, blocking=True)
    assert len({file.stat().st_mode for file in path.iterdir()}) == 1
