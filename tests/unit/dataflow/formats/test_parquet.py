from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bit_flips import errors_of_flipped_bits
from scaling import scaled
from towerpack import ConfigError, FormatError
from towerpack.dataflow import BatchData, ShuffleData
from towerpack.dataflow.formats import ParquetData
from towerpack.dataflow.testing import same_datapoints

pa: Any = pytest.importorskip("pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet")

ROWS = 50


def table(start: int = 0) -> Any:
    index = range(start, start + ROWS)
    return pa.table(
        {
            "i": pa.array(index, pa.int64()),
            "half": pa.array(np.arange(start, start + ROWS, dtype=np.float32) / 2),
            "even": [i % 2 == 0 for i in index],
            "vector": pa.array([[i, i + 1, i + 2] for i in index], pa.list_(pa.int16(), 3)),
            "ragged": pa.array([list(range(i % 4)) for i in index], pa.list_(pa.uint8())),
            "word": [f"ä{i}" for i in index],
            "class": pa.array([f"c{i % 3}" for i in index]).dictionary_encode(),
            "bytes": [bytes([i % 256]) for i in index],
            "null": pa.array([None if i == 3 else i for i in index], pa.int32()),
            "struct": [{"a": i} for i in index],
            "day": pa.array([datetime.date(2020, 1, 1)] * ROWS),
        }
    )


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    for i in range(2):
        pq.write_table(table(i * ROWS), tmp_path / f"{i}.parquet", row_group_size=20)
    return [tmp_path / "0.parquet", tmp_path / "1.parquet"]


def test_rows(paths: list[Path]) -> None:
    ds = ParquetData(paths)
    assert len(ds) == 100 and str(ds) == "ParquetData(0.parquet and 1 more)"
    for i, row in enumerate(ds):
        expected = {"i": np.int64(i), "half": np.float32(i / 2), "even": np.bool_(i % 2 == 0)}
        expected["vector"] = np.arange(i, i + 3, dtype=np.int16)
        expected["ragged"] = np.arange(i % 4, dtype=np.uint8)
        expected |= {"word": f"ä{i}", "class": f"c{i % 3}", "bytes": bytes([i])}
        expected |= {"struct": {"a": i}, "day": np.datetime64("2020-01-01")}
        assert row.pop("null") == (None if i == 3 else i)
        assert same_datapoints(row, expected)
    pq.write_table(table().slice(0, 0), paths[0])
    assert list(ParquetData(paths[0])) == []


def test_columns_are_tuples(paths: list[Path]) -> None:
    ds = ParquetData(str(paths[0].parent / "*.parquet"), ["vector", "i"])
    vector, index = next(iter(BatchData(ShuffleData(ds), 100)))
    assert sorted(index.tolist()) == list(range(100))
    assert np.array_equal(vector[:, 0], index) and vector.dtype == np.int16


def test_what_is_read_may_be_changed(paths: list[Path]) -> None:
    ds = ParquetData(paths, ["vector", "ragged", "struct"])
    expected = list(ds)
    for vector, ragged, struct in ds:
        vector += 1
        ragged += 1
        struct["a"] = -1
    for batch in BatchData(ds, 10, stack="list"):
        batch[0][0] += 1
    np.testing.assert_equal(list(ds), expected)


def test_groups_are_decoded_once_if_they_fit(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    original = pq.ParquetFile.read_row_group

    def counted(self: Any, index: int, **options: Any) -> Any:
        read.append(index)
        return original(self, index, **options)

    monkeypatch.setattr(pq.ParquetFile, "read_row_group", counted)
    ds = ShuffleData(ParquetData(paths, ["i"]))
    assert len(list(ds)) == len(list(ds)) == 100 and len(read) == 6
    read.clear()
    plan = ParquetData(paths, ["i"], cache_bytes=2 * 20 * 9).plan()
    for position in (0, 20, 1, 40, 2, 21):  # the longest unused group is given up first
        plan.read([position])
    assert read == [0, 1, 2, 1]


def test_wrong_arguments(paths: list[Path], tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must have one column 'wort', but has 0"):
        ParquetData(paths, ["wort"])
    with pytest.raises(ConfigError, match="at least one column"):
        ParquetData(paths, [])
    pq.write_table(pa.table({"i": [1.5]}), tmp_path / "other.parquet")
    with pytest.raises(FormatError, match="does not have the columns"):
        ParquetData([paths[0], tmp_path / "other.parquet"])


def test_truncation_and_garbage(paths: list[Path], tmp_path: Path) -> None:
    content, bad = paths[0].read_bytes(), tmp_path / "bad.parquet"
    lies = b"PAR1" + bytes(100) + b"\xff\xff\xff\x7fPAR1"
    pq.write_table(pa.table({"t": pa.array([b"\xff"]).view(pa.string())}), bad)
    for wrong in (bad.read_bytes(), b"", content[: len(content) // 2], content[:-1], lies):
        bad.write_bytes(wrong)
        with pytest.raises(FormatError, match=r"bad\.parquet"):
            list(ParquetData(bad))


def test_flipped_bits(paths: list[Path]) -> None:
    count = scaled(2000)
    assert errors_of_flipped_bits(paths[0], "ParquetData", count=count, memory_gb=8) > count // 20


def column(path: Path, values: Any) -> list[Any]:
    pq.write_table(pa.table({"x": values}), path)
    return [dp[0] for dp in ParquetData(path, ["x"])]


ZONED = pa.timestamp("ns", "UTC")


@pytest.mark.parametrize(
    "kind", [ZONED, pa.date32(), pa.date64(), pa.duration("ns"), pa.time64("ns")]
)
def test_one_null_does_not_change_what_dates_are(tmp_path: Path, kind: Any) -> None:
    day = 86_400_000 if kind == pa.date64() else 1
    whole = column(tmp_path / "a", pa.array([day, 2 * day], kind))
    nullable = column(tmp_path / "b", pa.array([day, None, 2 * day], kind))
    assert {value.dtype for value in whole + nullable} == {whole[0].dtype}
    assert whole[0].dtype.kind in "mM" and np.isnat(nullable[1])
    assert [nullable[0], nullable[2]] == whole and whole[0] < whole[1]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([[1, None], None], pa.list_(pa.int64())),
        ([[1, None], None, [3, None]], pa.list_(pa.int8(), 2)),
        (["a", None, "a string that is longer than twelve bytes"], pa.string_view()),
        ([b"\xff", None], pa.binary_view()),
        ([["a", None], None, []], pa.list_(pa.string_view())),
        ([{"a": "b"}, None], pa.struct([("a", pa.string_view())])),
    ],
)
def test_nulls_and_views(tmp_path: Path, values: list[Any], kind: Any) -> None:
    assert column(tmp_path / "a", pa.array(values, kind)) == values


@pytest.mark.parametrize("make", [pa.list_, pa.large_list, lambda kind: pa.list_(kind, 2)])
def test_lists_of_dates(tmp_path: Path, make: Any) -> None:
    rows = column(tmp_path / "a", pa.array([[1, 2], [3, None]], make(pa.timestamp("ns"))))
    assert rows[0].tolist() == [1, 2] and rows[1].dtype == "M8[ns]"
    assert np.isnat(rows[1]).tolist() == [False, True]
