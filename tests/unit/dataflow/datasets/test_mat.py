"""MAT-files: what SciPy and MATLAB write is read, and what is damaged is refused."""

from __future__ import annotations

import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataset_files import damaged, mat_bytes
from towerpack._core.errors import FormatError
from towerpack.dataflow.datasets._mat import read_arrays, read_mat

NUMBERS = [np.dtype(code) for code in ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")]


def read(folder: Path, data: bytes, *names: str) -> list[Any]:
    (folder / "a.mat").write_bytes(data)
    return read_mat(folder / "a.mat", names)


def element(kind: int, data: bytes, order: str = "<") -> bytes:
    return struct.pack(f"{order}2I", kind, len(data)) + data + bytes(-len(data) % 8)


def small(kind: int, data: bytes, order: str = "<") -> bytes:
    return struct.pack(f"{order}I", len(data) << 16 | kind) + data.ljust(4, b"\0")


def head(shape: list[int], cls: int, flags: int = 0, order: str = "<", name: bytes = b"x") -> bytes:
    return (
        element(6, struct.pack(f"{order}2I", flags << 8 | cls, 0), order)
        + element(5, np.array(shape, f"{order}i4").tobytes(), order)
        + small(1, name, order)
    )


def zlib_element(matrix: bytes) -> bytes:
    return zlib.compress(element(14, matrix))


def file(matrix: bytes, order: str = "<", kind: int = 14) -> bytes:
    mark = b"IM" if order == "<" else b"MI"
    return b"MATLAB 5.0 MAT-file".ljust(124) + b"\0\1" + mark + element(kind, matrix, order)


@pytest.mark.parametrize("compress", [True, False])
class TestScipy:
    @pytest.mark.parametrize("dtype", NUMBERS, ids=str)
    def test_numbers(self, tmp_path: Path, dtype: np.dtype[Any], compress: bool) -> None:
        for shape in ((1, 1), (3, 5), (2, 3, 4), (0, 4), (32, 32, 3, 2)):
            array = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
            (found,) = read(tmp_path, mat_bytes({"a": array}, compress=compress), "a")
            assert found.dtype == dtype and np.array_equal(found, array)

    def test_everything_else(self, tmp_path: Path, compress: bool) -> None:
        cell = np.empty((1, 3), object)
        cell[0] = [np.arange(4), "text", {"b": np.eye(2), "c": "é"}]
        data = mat_bytes({"cell": cell, "s": {"x": 1.5}, "t": "words"}, compress=compress)
        found, structure, text = read(tmp_path, data, "cell", "s", "t")
        assert np.array_equal(found[0].ravel(), np.arange(4)) and found[1] == "text"
        assert np.array_equal(found[2][0]["b"], np.eye(2)) and found[2][0]["c"] == "é"
        assert structure[0]["x"] == 1.5 and text == "words"

    def test_others_are_passed_over(self, tmp_path: Path, compress: bool) -> None:
        variables = {"complex": np.array([1j]), "a": np.arange(3)}
        data = mat_bytes(variables, compress=compress)
        assert read(tmp_path, data, "a")[0].ravel().tolist() == [0, 1, 2]
        with pytest.raises(FormatError, match="complex"):
            read(tmp_path, data, "complex")

    def test_missing(self, tmp_path: Path, compress: bool) -> None:
        with pytest.raises(FormatError, match="no variable 'b'"):
            read(tmp_path, mat_bytes({"a": 1}, compress=compress), "a", "b")

    @given(draw=st.randoms(use_true_random=False))
    @settings(
        max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
    )
    def test_damage(self, tmp_path: Path, draw: Any, compress: bool) -> None:
        cell = np.empty((1, 2), object)
        cell[0] = [{"B": np.zeros((9, 9), bool)}, "text"]
        data = mat_bytes({"a": np.arange(50), "cell": cell}, compress=compress)
        try:
            read(tmp_path, damaged(data, draw.randrange), "a", "cell")
        except FormatError as error:
            assert "a.mat" in str(error)


class TestMatlab:
    """What MATLAB writes and SciPy does not."""

    @pytest.mark.parametrize("order", ["<", ">"])
    def test_numbers_stored_smaller(self, tmp_path: Path, order: str) -> None:
        matrix = head([2, 2], 6, order=order) + small(2, bytes([1, 2, 3, 4]), order)
        (found,) = read(tmp_path, file(matrix, order), "x")
        assert found.dtype == np.float64 and found.tolist() == [[1, 3], [2, 4]]
        values = np.array([7, 300], f"{order}u2").tobytes()
        matrix = head([1, 2], 6, order=order) + small(4, values, order)
        assert read(tmp_path, file(matrix, order), "x")[0].tolist() == [[7, 300]]

    def test_logical(self, tmp_path: Path) -> None:
        matrix = head([1, 3], 9, flags=2) + small(2, b"\1\0\1")
        assert read(tmp_path, file(matrix), "x")[0].tolist() == [[1, 0, 1]]

    def test_empty_cells(self, tmp_path: Path) -> None:
        matrix = head([1, 2], 1) + element(14, b"") + element(14, b"")
        assert [one.shape for one in read(tmp_path, file(matrix), "x")[0]] == [(0, 0), (0, 0)]


class TestHostile:
    def refused(self, folder: Path, data: bytes) -> str:
        with pytest.raises(FormatError) as caught:
            read(folder, data, "x")
        return str(caught.value)

    def test_no_mat_file(self, tmp_path: Path) -> None:
        for data in (b"", b"text", bytes(1000)):
            assert "does not begin" in self.refused(tmp_path, data)
        assert "7.3" in self.refused(tmp_path, b"MATLAB 7.3 MAT-file".ljust(600))

    def test_large_claims(self, tmp_path: Path) -> None:
        tracemalloc.start()
        try:
            huge = struct.pack("<2I", 14, 0xFFFFFFF0)
            self.refused(tmp_path, file(b"")[:128] + huge)
            packed = zlib.compress(huge + bytes(100))
            assert "claims 4,29" in self.refused(tmp_path, file(packed, kind=15))
            self.refused(tmp_path, file(head([1 << 30, 1 << 30], 1)))
            self.refused(tmp_path, file(head([1 << 30, 1 << 30], 6) + small(2, b"1")))
            self.refused(tmp_path, file(head([1, 1], 6) + struct.pack("<2I", 2, 1 << 31)))
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()

    def test_deep_nesting(self, tmp_path: Path) -> None:
        matrix = head([1, 1], 6) + small(2, b"1")
        for _ in range(2000):
            matrix = head([1, 1], 1) + element(14, matrix)
        assert "8 deep" in self.refused(tmp_path, file(matrix))

    def test_a_million_empty_cells(self, tmp_path: Path) -> None:
        matrix = head([1, 1 << 20], 1) + element(14, b"") * (1 << 20)
        assert "1,048,576 elements" in self.refused(tmp_path, file(zlib_element(matrix), kind=15))

    def test_odd_heads(self, tmp_path: Path) -> None:
        for shape in ([], [1], [-1, 3], [1] * 40):
            self.refused(tmp_path, file(head(shape, 6) + small(2, b"1")))
        for cls in (0, 3, 5, 16, 17, 255):
            matrix = head([1, 1], cls) + small(2, b"1")
            if cls:
                assert "not read" in self.refused(tmp_path, file(matrix))

    def test_text_where_numbers_belong(self, tmp_path: Path) -> None:
        (tmp_path / "a.mat").write_bytes(mat_bytes({"a": "text"}))
        with pytest.raises(FormatError, match=r"a in .*a\.mat is a str"):
            read_arrays(tmp_path / "a.mat", ["a"])

    def test_a_part_that_is_cut_off(self, tmp_path: Path) -> None:
        text = struct.pack("<2I", 16, 40) + b"only ten.."
        assert "40 bytes where 10" in self.refused(tmp_path, file(head([1, 40], 4) + text))

    def test_fields_without_width(self, tmp_path: Path) -> None:
        matrix = head([1, 1], 2) + small(5, bytes(4)) + element(1, b"")
        self.refused(tmp_path, file(matrix))
