"""State dicts of PyTorch, written here byte by byte in its two formats."""

from __future__ import annotations

import io
import pickle
import resource
import sys
import types
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towerpack import CheckpointError
from towerpack.checkpoint import read_torch_file

VALUES = {
    "conv.weight": np.arange(24, dtype=np.float32).reshape(2, 3, 2, 2),
    "bn.num_batches_tracked": np.array(7, np.int64),
    "half": np.array([0.5, 2], np.float16),
}


class Storage:
    def __init__(self, key: str, array: np.ndarray) -> None:
        self.key, self.array = key, array


class Tensor:
    def __init__(self, key: str, array: np.ndarray, *, offset: int = 0) -> None:
        self.storage, self.array, self.offset = Storage(key, array), array, offset

    def __reduce__(self) -> Any:
        strides = tuple(s // self.array.itemsize for s in self.array.strides)
        rest = (self.offset, self.array.shape, strides, False, OrderedDict())
        return sys.modules["torch._utils"]._rebuild_tensor_v2, (self.storage, *rest)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Enough of PyTorch to pickle references to it."""
    module, utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
    for name in ("FloatStorage", "LongStorage", "HalfStorage"):
        setattr(module, name, type(name, (), {"__module__": "torch"}))

    def _rebuild_tensor_v2() -> None: ...

    _rebuild_tensor_v2.__module__ = "torch._utils"
    _rebuild_tensor_v2.__qualname__ = "_rebuild_tensor_v2"
    utils._rebuild_tensor_v2 = _rebuild_tensor_v2
    monkeypatch.setitem(sys.modules, "torch", module)
    monkeypatch.setitem(sys.modules, "torch._utils", utils)
    return module


def pickled(value: Any, torch: types.ModuleType) -> bytes:
    kinds = {"f4": "FloatStorage", "i8": "LongStorage", "f2": "HalfStorage"}

    class Pickler(pickle.Pickler):
        def persistent_id(self, obj: Any) -> Any:
            if not isinstance(obj, Storage):
                return None
            kind = getattr(torch, kinds[obj.array.dtype.str[1:]])
            return ("storage", kind, obj.key, "cpu", obj.array.size)

    out = io.BytesIO()
    Pickler(out, protocol=2).dump(value)
    return out.getvalue()


def write(path: Path, torch: types.ModuleType, kind: str, **change: Any) -> Path:
    tensors = {n: Tensor(str(i), v, **change) for i, (n, v) in enumerate(VALUES.items())}
    state = pickled({"epoch": 3, "model": OrderedDict(tensors)}, torch)
    if kind == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("model/data.pkl", state)
            for tensor in tensors.values():
                archive.writestr(f"model/data/{tensor.storage.key}", tensor.array.tobytes())
        return path
    keys = [tensor.storage.key for tensor in tensors.values()]
    parts = [pickle.dumps(p, 2) for p in (0x1950A86A20F9469CFC6C, 1001, {})]
    data = [v.size.to_bytes(8, "little") + v.tobytes() for v in VALUES.values()]
    path.write_bytes(b"".join([*parts, state, pickle.dumps(keys, 2), *data]))
    return path


@pytest.mark.parametrize("kind", ["zip", "stream"])
def test_both_formats(kind: str, tmp_path: Path, torch: types.ModuleType) -> None:
    path = write(tmp_path / "w.pth", torch, kind)
    found = read_torch_file(path)
    assert found.keys() == {f"model.{name}" for name in VALUES}
    for name, value in VALUES.items():
        np.testing.assert_array_equal(found[f"model.{name}"], value, strict=True)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_torch_file(path)
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_torch_file(write(path, torch, kind, offset=1))  # beyond its storage


def test_the_number_at_the_start_says_that_it_is_a_file_of_pytorch(
    tmp_path: Path, torch: types.ModuleType
) -> None:
    path = write(tmp_path / "w.pth", torch, "stream")
    data = path.read_bytes()
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, 2)
    assert data.startswith(magic)
    path.write_bytes(pickle.dumps(7, 2) + data[len(magic) :])
    with pytest.raises(CheckpointError, match="not a PyTorch file"):
        read_torch_file(path)


def again_and_again() -> bytes:
    inner: dict[str, Any] = {}
    for _ in range(60):
        inner = {"a": inner, "b": inner}
    return pickle.dumps(inner)


def zipped(data: bytes = b"", **entry: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/data.pkl", data or pickle.dumps({}))
        for name, content in entry.items():
            archive.writestr(f"m/data/{name}", content)
    return out.getvalue()


def without_module(name: str, state: Any) -> bytes:
    """A pickle that sets attributes of what PyTorch calls."""
    return b"\x80\x02ctorch._utils\n" + name.encode() + b"\n" + pickle.dumps(state, 2)[2:-1] + b"b."


def in_itself() -> bytes:
    inner: dict[str, Any] = {}
    inner["a"] = inner
    return pickle.dumps(inner)


HARMFUL = {
    "a dict in itself": in_itself(),
    "a huge memo": b"\x80\x02}r\xff\xff\xff\x7f.",
    "huge bytes": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\x00\x00.",
    "attributes of a function": without_module("_rebuild_tensor_v2", (None, {"__doc__": "1"})),
    "a dict of a function": without_module("_rebuild_parameter", {"__wrapped__": 1}),
    "a dtype": b"\x80\x02ctorch\nFloatStorage\n" + pickle.dumps((3, ">"), 2)[2:-1] + b"b.",
    "shared dicts": again_and_again(),
    "much in little": zipped(zeros=bytes(80 << 20)),
    "very many lists": b"\x80\x02(" + b"]" * 12_000_000 + b"l.",
    "tuples in each other as a key": b"\x80\x02})" + b"\x85" * 300_000 + b"K\x00s.",
    "no name of a storage": b"\x80\x02(X\x01\x00\x00\x00ae.",
}  # fmt: skip


@pytest.mark.parametrize("kind", ["zip", "stream"])
@pytest.mark.parametrize("case", HARMFUL)
def test_a_file_that_is_made_to_do_harm_does_none(
    case: str, kind: str, tmp_path: Path, torch: types.ModuleType
) -> None:
    (tmp_path / "w.pth").write_bytes(
        zipped(HARMFUL[case]) if kind == "zip" and HARMFUL[case][:2] != b"PK" else HARMFUL[case]
    )
    limits = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + (1 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (most, limits[1]))
    try:
        with pytest.raises(CheckpointError, match="cannot be read"):
            read_torch_file(tmp_path / "w.pth")
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert read_torch_file(write(tmp_path / "good.pth", torch, "zip")).keys()  # as before


def test_a_tensor_is_not_larger_than_its_file(tmp_path: Path, torch: types.ModuleType) -> None:
    small = np.zeros(1, np.float32)
    huge = np.lib.stride_tricks.as_strided(small, (1 << 30, 1 << 10), (0, 0))
    path = tmp_path / "w.pth"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("m/data.pkl", pickled({"w": Tensor("0", huge)}, torch))
        archive.writestr("m/data/0", small.tobytes())
    with pytest.raises(CheckpointError, match="the limit is"):
        read_torch_file(path)


def test_nothing_of_a_pickle_is_run(tmp_path: Path) -> None:
    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "ran",)

    (tmp_path / "w.pth").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(CheckpointError, match=r"it holds a pathlib"):
        read_torch_file(tmp_path / "w.pth")
    assert not (tmp_path / "ran").exists()
    with pytest.raises(CheckpointError, match="No such file"):
        read_torch_file(tmp_path / "none.pth")
