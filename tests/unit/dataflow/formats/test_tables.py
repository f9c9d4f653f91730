"""`TableData` and `HFData`: tables of Arrow, pandas, CSV, Parquet and the library datasets."""

from __future__ import annotations

import datetime
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from towerpack import ConfigError, FormatError
from towerpack.dataflow import (
    BatchData,
    DataFlow,
    DataFromList,
    HFData,
    ParquetData,
    PrefetchData,
    ShuffleData,
    TableData,
)
from towerpack.dataflow.content import content_of
from towerpack.dataflow.images import encode_jpeg
from towerpack.dataflow.testing import check_flow, same_datapoints

pa: Any = pytest.importorskip("pyarrow")
pq: Any = pytest.importorskip("pyarrow.parquet")
pd: Any = pytest.importorskip("pandas")
hf: Any = pytest.importorskip("datasets")
hf.disable_progress_bars()

ROWS = 60


def table() -> Any:
    """Columns of many types, in three chunks."""
    index = range(ROWS)
    whole = pa.table(
        {
            "i": pa.array(index, pa.int64()),
            "maybe": pa.array([None if i % 7 == 3 else i / 2 for i in index], pa.float32()),
            "pair": pa.array([[i, i + 1] for i in index], pa.list_(pa.int16())),
            "ragged": pa.array([[0.5] * (i % 3) for i in index], pa.large_list(pa.float64())),
            "holes": pa.array([None if i == 4 else [i, None][: 1 + i % 2] for i in index]),
            "text": pa.array([None if i == 5 else f"ä{i}" for i in index], pa.large_string()),
            "view": pa.array([f"a long text with number {i}" for i in index], pa.string_view()),
            "class": pa.array([f"c{i % 3}" for i in index]).dictionary_encode(),
            "when": pa.array([None if i == 6 else i for i in index], pa.timestamp("us", "UTC")),
            "price": pa.array([Decimal(i) / 4 for i in index], pa.decimal128(8, 2)),
            "nested": [{"a": [i], "b": {"c": None}} for i in index],
            "nothing": pa.nulls(ROWS),
        }
    )
    return pa.concat_tables([whole.slice(0, 25), whole.slice(25, 1), whole.slice(26)])


def values(i: int) -> dict[str, Any]:
    """Row i of the table."""
    holes = None if i == 4 else [i, None][: 1 + i % 2]
    return {
        "i": np.int64(i),
        "maybe": None if i % 7 == 3 else np.float32(i / 2),
        "pair": np.array([i, i + 1], np.int16),
        "ragged": np.array([0.5] * (i % 3)),
        "holes": holes if holes is None or None in holes else np.array(holes),
        "text": None if i == 5 else f"ä{i}",
        "view": f"a long text with number {i}",
        "class": f"c{i % 3}",
        "when": np.datetime64("NaT" if i == 6 else i, "us"),
        "price": Decimal(i) / 4,
        "nested": {"a": [i], "b": {"c": None}},
        "nothing": None,
    }


def assert_rows(flow: Any, rows: list[int]) -> None:
    """The flow has these rows of the table."""
    found = list(flow)
    assert len(found) == len(rows) == len(flow)
    for row, i in zip(found, rows, strict=True):
        assert same_datapoints(row, values(i)), (row, values(i))


def saved(path: Path, data: Any) -> Any:
    """A data set in a mapped file."""
    data.save_to_disk(path)
    return hf.load_from_disk(path)


def test_rows_of_tables() -> None:
    assert_rows(TableData(table()), list(range(ROWS)))
    assert_rows(TableData(table().slice(20, 9)), list(range(20, 29)))
    assert_rows(TableData(table().combine_chunks().to_batches()[0]), list(range(ROWS)))
    assert list(TableData(table().slice(0, 0))) == []
    order = [int(row["i"]) for row in ShuffleData(TableData(table())).iterate(seed=1, epoch=0)]
    assert sorted(order) == list(range(ROWS)) != order
    assert TableData(table()).plan().origin(3)[0].name == "row 3"
    for columns in ("i", ["pair", "i"]):
        check_flow(lambda columns=columns: ShuffleData(TableData(table(), columns)))


def test_batches_are_read_as_columns() -> None:
    (pairs, numbers) = next(iter(BatchData(ShuffleData(TableData(table(), ["pair", "i"])), ROWS)))
    assert pairs.dtype == np.int16 and np.array_equal(pairs[:, 1], numbers + 1)
    pairs += 1  # The batch is not a view of the table.
    assert table().column("pair").to_pylist()[7] == [7, 8]


def flows(folder: Path) -> Iterator[DataFlow]:
    """A flow of each kind of source."""
    data = hf.Dataset(table().drop_columns(["view"]))
    mapped = saved(folder / "mapped", data.cast_column("i", hf.Value("int64")))
    yield TableData(table())
    yield HFData(data)
    yield HFData(mapped)
    yield HFData(mapped.shuffle(seed=2).select(range(3, 40)))
    yield HFData(mapped.select(range(5, 20)).rename_column("i", "j").remove_columns("text"))
    yield HFData(mapped.add_column("more", list(range(ROWS))))
    yield HFData(hf.concatenate_datasets([mapped, data, mapped.filter(lambda row: row["i"] > 30)]))


def test_workers_and_random_access_agree(tmp_path: Path) -> None:
    for flow in flows(tmp_path):
        expected = list(flow)
        plan = flow.plan()
        assert len(flow) == len(expected)
        workers = PrefetchData(flow, 1)
        for row, other, i in zip(workers, expected, range(len(flow)), strict=True):
            assert same_datapoints(row, other)
            assert same_datapoints(plan.get(i), other)


def test_content_notices_changes(tmp_path: Path) -> None:
    first, second = ([content_of(f) for f in flows(tmp_path / name)] for name in "ab")
    assert len({*first}) == len(first) and first[:2] == second[:2]
    again = hf.load_from_disk(tmp_path / "a" / "mapped")
    assert content_of(HFData(again)) == first[2]
    assert content_of(HFData(again.select(range(3)))) != content_of(
        HFData(again.select(range(1, 4)))
    )
    changed = table().set_column(0, "i", pa.array([*range(ROWS - 1), 0]))
    assert content_of(TableData(changed)) != first[0]


def test_workers_map_files_without_datasets(tmp_path: Path) -> None:
    flow = HFData(saved(tmp_path / "a", hf.Dataset(table().select(["i"]))))
    import cloudpickle

    (tmp_path / "node").write_bytes(cloudpickle.dumps(flow.plan()))
    assert (tmp_path / "node").stat().st_size < 5000
    program = "import pickle, sys; plan = pickle.load(open(sys.argv[1], 'rb'))\n"
    program += "print(plan.get(7)['i'], 'datasets' in sys.modules)"
    command = [sys.executable, "-c", program, str(tmp_path / "node")]
    assert subprocess.check_output(command, text=True).split() == ["7", "False"]
    (file,) = flow.paths
    file.write_bytes(file.read_bytes() + b"\0")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "was changed after it was opened" in done.stderr


def features() -> Any:
    """A feature of each kind."""
    return hf.Features(
        {
            "image": hf.Image(),
            "sound": {"bytes": hf.Value("binary"), "path": hf.Value("string")},
            "label": hf.ClassLabel(names=["cat", "dog"]),
            "grid": hf.Array2D((2, 3), "float32"),
            "frames": hf.Array3D((None, 1, 2), "uint8"),
            "boxes": hf.Sequence({"x": hf.Value("int8")}),
            "pictures": [hf.Image()],
        }
    )


def examples(folder: Path) -> list[dict[str, Any]]:
    """Images in the data set, in a file, and a missing one."""
    jpeg = encode_jpeg(np.full((8, 9, 3), (200, 100, 0), np.uint8))
    (folder / "a.jpg").write_bytes(jpeg)
    media: list[Any] = [{"bytes": jpeg, "path": "x.jpg"}, str(folder / "a.jpg"), None]
    return [
        {
            "image": image,
            "sound": {"bytes": b"RIFF", "path": None},
            "label": "dog",
            "grid": np.full((2, 3), i),
            "frames": np.full((i, 1, 2), i),
            "boxes": {"x": [1]},
            "pictures": [{"bytes": jpeg, "path": None}],
        }
        for i, image in enumerate(media)
    ]


@pytest.mark.parametrize("iterable", [False, True])
def test_features(tmp_path: Path, iterable: bool) -> None:
    data = hf.Dataset.from_list(examples(tmp_path), features=features())
    data = data.cast_column("sound", hf.Audio())  # Encoding would need another library.
    held = data
    data = data.to_iterable_dataset() if iterable else saved(tmp_path / "data", data)
    for decode in (False, True):
        rows = list(HFData(data, decode=decode))
        jpeg = (tmp_path / "a.jpg").read_bytes()
        for i, row in enumerate(rows):
            assert row["label"] == 1 and row["sound"] == b"RIFF"
            assert same_datapoints(row["grid"], np.full((2, 3), i, np.float32))
            assert same_datapoints(row["frames"], np.full((i, 1, 2), i, np.uint8))
            assert row["pictures"] == [{"bytes": jpeg, "path": None}]
        assert rows[2]["image"] is None
        if decode:
            assert [row["image"].shape for row in rows[:2]] == [(8, 9, 3)] * 2
            assert abs(rows[0]["image"][4, 4].astype(int) - (200, 100, 0)).max() < 9
        else:
            assert [row["image"] for row in rows[:2]] == [jpeg, jpeg]
    (tmp_path / "a.jpg").unlink()
    with pytest.raises(FormatError, match=r"a\.jpg"):
        list(HFData(held, "image"))


def test_iterable_data_sets_are_read_in_order() -> None:
    data = hf.Dataset(table().select(["i", "pair"])).to_iterable_dataset(num_shards=3)
    shuffled = data.shuffle(seed=4, buffer_size=20)
    assert [int(i) for (i,) in HFData(data, "i")] == list(range(ROWS))
    orders = [[int(i) for (i,) in HFData(shuffled, "i").iterate(epoch=e)] for e in (0, 1, 1)]
    assert sorted(orders[0]) == list(range(ROWS)) and orders[0] != orders[1] == orders[2]
    check_flow(lambda: HFData(shuffled, ["pair", "i"]))
    assert [int(i) for (i,) in PrefetchData(HFData(shuffled, "i"), 2)] == orders[0]
    made = hf.IterableDataset.from_generator(lambda: ({"a": i, "b": None} for i in range(3)))
    assert list(HFData(made)) == [{"a": i, "b": None} for i in range(3)]
    assert list(HFData(made, ["b", "a"])) == [(None, i) for i in range(3)]
    with pytest.raises(TypeError, match="not known"):
        len(HFData(made))


def test_formats_of_data_sets() -> None:
    data = hf.Dataset(table().select(["i", "pair", "text"]))
    row = next(iter(HFData(data.with_format("numpy", columns=["pair", "i"]))))
    assert row.keys() == {"i", "pair"}
    for wrong in (
        data.with_format("pandas"),
        data.with_format("numpy", dtype=np.int8),
        data.with_transform(lambda rows: rows),
    ):
        with pytest.raises(ConfigError, match="with the format"):
            HFData(wrong)


def test_pandas() -> None:
    frame = pd.DataFrame(
        {
            "x": [1.0, np.nan],
            "n": pd.array([1, None], "Int64"),
            "class": pd.Categorical(["b", None]),
            "day": pd.to_datetime(["2020-01-01", None]),
            3: ["text", None],
        },
        index=[7, 9],
    )
    first, second = TableData(frame)
    assert first["x"] == 1 and np.isnan(second["x"]) and first["x"].dtype == np.float64
    assert first["n"] == np.int64(1) and first["class"] == "b" and first["3"] == "text"
    assert [second[name] for name in ("n", "class", "3")] == [None] * 3
    assert first["day"] == datetime.datetime(2020, 1, 1) and np.isnat(second["day"])
    assert "index" in next(iter(TableData(frame.reset_index())))
    with pytest.raises(ConfigError, match="column 'mixed' of the data frame"):
        TableData(pd.DataFrame({"mixed": [1, "a"]}))
    with pytest.raises(ConfigError, match="must have one column 'a', but has 2"):
        TableData(pd.DataFrame([[1, 2]], columns=["a", "a"]))


def test_files(tmp_path: Path) -> None:
    for i in range(2):
        (tmp_path / f"{i}.csv").write_text(f"id,word,x\n{i},a,0.5\n{i + 2},b,\n")
    flow = TableData(str(tmp_path / "*.csv"))
    assert str(flow) == "TableData(0.csv and 1 more)"
    assert [tuple(row.values()) for row in flow] == [
        (0, "a", 0.5),
        (2, "b", None),
        (1, "a", 0.5),
        (3, "b", None),
    ]
    (tmp_path / "a.tsv").write_text("id\tword\n1\ta,b\n")
    assert list(TableData(tmp_path / "a.tsv", ["word"])) == [("a,b",)]
    pq.write_table(table().drop_columns(["view"]), tmp_path / "a.parquet", row_group_size=7)
    read, expected = TableData(tmp_path / "a.parquet"), ParquetData(tmp_path / "a.parquet")
    assert same_datapoints(list(read), list(expected))
    assert read.plan().origin(9)[0].name == expected.plan().origin(9)[0].name


def test_wrong_arguments(tmp_path: Path) -> None:
    data = hf.Dataset(table())
    for wrong in (3, {"train": data}, table(), DataFromList([(1,)])):
        with pytest.raises(ConfigError, match="HFData needs a Dataset"):
            HFData(wrong)
    for wrong in (3, {"a": [1]}, np.zeros(3)):
        with pytest.raises(ConfigError, match="TableData needs a table"):
            TableData(wrong)
    for make in (HFData, TableData):
        source = data if make is HFData else table()
        with pytest.raises(ConfigError, match="must have one column 'j'"):
            make(source, ["i", "j"])
        with pytest.raises(ConfigError, match="at least one column"):
            make(source, [])
    with pytest.raises(ConfigError, match="needs a column of images"):
        HFData(data, decode=True)
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "a.csv").write_text("id\n1\n")
    (tmp_path / "b.csv").write_text("id\ntext\n")
    (tmp_path / "a.xlsx").write_bytes(b"PK")
    for names in (["empty.csv"], ["a.csv", "b.csv"], ["a.xlsx"]):
        with pytest.raises(FormatError, match=names[-1]):
            TableData([tmp_path / name for name in names])
