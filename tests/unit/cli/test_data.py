from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from towerpack import ConfigError
from towerpack.cli import app, main
from towerpack.cli._data_components import components_of
from towerpack.cli._data_files import open_data
from towerpack.cli._flow import call_flow_function, open_flow
from towerpack.dataflow import DataFromList, ImageFromFile, TarSerializer
from towerpack.dataflow.formats import (
    LMDBSerializer,
    TFRecordSerializer,
    TFRecordWriter,
    encode_example,
)

PROGRAM = """
import numpy as np
from neighbour import SIZE
from towerpack.dataflow import BatchData, DataFromArrays, RepeatedData, ShuffleData

def train():
    images = np.arange(SIZE * 12, dtype=np.uint8).reshape(SIZE, 2, 2, 3)
    ds = ShuffleData(DataFromArrays({"image": images, "label": np.arange(SIZE)}))
    return BatchData(RepeatedData(ds), 4)

def fails():
    return 1 / 0

def forgets():
    train()

number = 3
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("program_for_test", "neighbour"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    (tmp_path / "program_for_test.py").write_text(PROGRAM)
    (tmp_path / "neighbour.py").write_text("SIZE = 10\n")
    return tmp_path


def towerpack(*arguments: Any) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["data", *map(str, arguments)], catch_exceptions=False)
    return result.exit_code, result.stdout


def row(text: str, start: str) -> str:
    (found,) = [line for line in text.splitlines() if line.strip().startswith(start)]
    return " ".join(found.split())


@pytest.mark.parametrize("target", ["program_for_test.py:train", "program_for_test:train"])
def test_inspect_a_program(folder: Path, target: str) -> None:
    code, text = towerpack("inspect", target, "--num", 2)
    assert code == 0
    assert row(text, "pipeline").startswith("pipeline DataFromArrays(10) > ShuffleData")
    assert row(text, "datapoints") == "datapoints endless"
    assert row(text, "read") == "read in any order"
    assert "datapoint 0" in text and "datapoint 1" in text
    images = [line for line in text.splitlines() if line.strip().startswith("image")]
    assert len(images) == 2 and re.search(r"uint8 +4 × 2 × 2 × 3 +\d+ … \d+ +48 B", images[0])


def test_inspect_for_programs(folder: Path) -> None:
    np.savez(folder / "a.npz", x=np.array([[0.5, np.nan], [1, 2]], np.float32))
    code, text = towerpack("inspect", "a.npz", "--json", "--skip", 0)
    found = json.loads(text)
    assert code == 0
    assert found == {
        "pipeline": "NumpyData(a.npz)",
        "datapoints": 2,
        "random_access": True,
        "shown": [
            {
                "position": 0,
                "components": [
                    {
                        "name": "x",
                        "type": "float32",
                        "shape": [2],
                        "value": "0.5 … 0.5, 1 nan",
                        "nbytes": 8,
                    }
                ],
            }
        ],
    }
    (shown,) = json.loads(towerpack("inspect", "a.npz", "--json", "--skip", 1)[1])["shown"]
    assert shown["position"] == 1 and shown["components"][0]["value"] == "1 … 2"
    assert "No datapoints at these positions" in towerpack("inspect", "a.npz", "--skip", 9)[1]


def test_formats_are_recognised(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image").fromarray(np.zeros((4, 5, 3), np.uint8))
    (folder / "images" / "cat").mkdir(parents=True)
    image.save(folder / "images" / "cat" / "1.png")
    np.save(folder / "no_extension.npy", np.zeros((3, 2)))
    (folder / "no_extension.npy").rename(folder / "no_extension")
    np.savez(folder / "a.npz", x=np.zeros(3))
    (folder / "list.csv").write_text("path,label\nimages/cat/1.png,cat\n")
    (folder / "a.svm").write_text("1 1:2\n")
    TarSerializer.save(DataFromList([{"cls": 1}]), folder / "a.tar")
    h5py: Any = pytest.importorskip("h5py")
    with h5py.File(folder / "a.h5", "w") as file:
        file["deep/x"], file["y"] = np.zeros((3, 2)), np.arange(3)
    pa: Any = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet").write_table(pa.table({"x": [1]}), folder / "a.parquet")
    LMDBSerializer.save(DataFromList([(1,), (2,)]), folder / "a.lmdb")
    lmdb: Any = pytest.importorskip("lmdb")
    with lmdb.open(str(folder / "plain.lmdb"), subdir=False) as env, env.begin(write=True) as txn:
        txn.put(b"key", b"value")
    (folder / "db").mkdir()
    (folder / "db" / "data.mdb").write_bytes((folder / "a.lmdb").read_bytes())
    for name, told in (
        ("a.lmdb", "LMDBData(a.lmdb) > MapData(_decoded)"),
        ("db", "LMDBData(db/data.mdb) > MapData(_decoded)"),
        ("plain.lmdb", "LMDBData(plain.lmdb)"),
        ("images", "ImageFolder(images)"),
        ("images/cat", "ImageFromFile(1)"),
        ("images/cat/1.png", "ImageFromFile(1)"),
        ("no_extension", "NumpyData(no_extension)"),
        ("a.npz", "NumpyData(a.npz)"),
        ("list.csv", "ImageCSV(list.csv)"),
        ("a.svm", "SVMLightData(a.svm)"),
        ("a.tar", "TarData(a.tar)"),
        ("a.h5", "HDF5Data(a.h5, deep/x, y)"),
        ("a.parquet", "ParquetData(a.parquet)"),
    ):
        ds = open_data(folder / name)
        assert str(ds) == told
        assert len(list(ds)) == len(ds) > 0


def test_tfrecords_are_shown_as_what_they_hold(folder: Path) -> None:
    with TFRecordWriter("example.tfrecord") as writer:
        writer.write(encode_example({"image": b"jpeg", "label": 7}))
    TFRecordSerializer.save(DataFromList([{"x": 2.5}]), "packed.tfrecord")
    with TFRecordWriter("bytes.tfrecord") as writer:
        writer.write(b"hello")
    with TFRecordWriter("none.tfrecord"):
        pass
    (shown,) = open_data(folder / "example.tfrecord")
    assert shown["image"] == [b"jpeg"] and shown["label"].tolist() == [7]
    assert list(open_data(folder / "packed.tfrecord")) == [{"x": 2.5}]
    assert list(open_data(folder / "bytes.tfrecord")) == [[b"hello"]]
    assert list(open_data(folder / "none.tfrecord")) == []


def test_a_folder_of_images(folder: Path) -> None:
    image = pytest.importorskip("PIL.Image").new("RGB", (5, 4))
    for name in ("b.png", "a.JPG", ".hidden.png"):
        image.save(folder / name)
    ds = open_data(folder)
    assert isinstance(ds, ImageFromFile)
    assert [Path(file).name for file in ds.files] == ["a.JPG", "b.png"]


def test_what_is_not_recognised(folder: Path) -> None:
    (folder / "notes").write_text("hello")
    (folder / "nothing").write_text("")
    (folder / "empty").mkdir()
    for name, got in (("notes", "b'hello'"), ("nothing", "an empty file"), ("empty", "a folder")):
        with pytest.raises(ConfigError, match=f"has no known data format(.|\n)*{got}"):
            open_data(folder / name)


def test_speed(folder: Path) -> None:
    code, text = towerpack("speed", "program_for_test.py:train", "--num", 7, "--warmup", 2)
    assert code == 0
    assert row(text, "datapoints").startswith("datapoints 7 in ")
    assert re.search(r"rate +[\d,.]+ /s, [\d,.]+ µs each", text)
    assert re.search(r"first +after [\d.e-]+ s +\n", text)
    text = towerpack("speed", "program_for_test.py:train", "--num", 2)[1]
    assert re.search(r"first +after [\d.e-]+ s, included in the rate; --warmup 1 excludes", text)
    code, text = towerpack(
        "speed", "program_for_test:train", "--num", 10**9, "--seconds", 0, "--json"
    )
    report = json.loads(text)
    assert report["datapoints"] == 1 and report["nbytes"] == 48 + 32


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("program_for_test.py:fails", "raised ZeroDivisionError: division by zero"),
        ("program_for_test:fails", "raised ZeroDivisionError: division by zero"),
        ("program_for_test.py:forgets", "must return a DataFlow, got a NoneType"),
        ("program_for_test.py:trian", "Did you mean 'train'?"),
        ("program_for_test.py:number", "'number' in program_for_test.py must be a function"),
        ("absent.py:train", "There is no file absent.py"),
        ("absent:train", "There is no module 'absent'"),
        ("absent.deeper:train", "There is no module 'absent.deeper'"),
        ("../x:train", "not the name of a module"),
        ("broken.py:train", "importing broken.py raised SyntaxError"),
        ("train", "is not the name of a function"),
        ("x:", "is not the name of a function"),
        ("x:y()", "is not the name of a function"),
    ],
)
def test_bad_programs(folder: Path, program: str, told: str) -> None:
    (folder / "broken.py").write_text("def train(:")
    with pytest.raises(ConfigError, match=re.escape(told)):
        try:
            call_flow_function(program)
        except ConfigError as error:
            raise ConfigError(str(error)) from error


def test_the_traceback_leads_into_the_program(folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        call_flow_function("program_for_test.py:fails")
    details = caught.value.details or ""
    assert "return 1 / 0" in details and "_flow.py" not in details


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("absent", "There is no file or folder absent"),
        ("program_for_test.py", "name the function: program_for_test.py:function"),
        ("bad.npz", "cannot be read as an npz file"),
    ],
)
def test_errors_are_told_without_a_traceback(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    target: str,
    told: str,
) -> None:
    (folder / "bad.npz").write_bytes(b"PK\x03\x04")
    monkeypatch.setattr(sys, "argv", ["towerpack", "data", "inspect", target])
    with pytest.raises(SystemExit, match="1"):
        main()
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    assert told in err and re.search("^  (to fix|expected)", err, re.MULTILINE)


def test_usage_errors_are_2(folder: Path) -> None:
    assert towerpack("inspect", "program_for_test.py:train", "--num", 0)[0] == 2
    assert towerpack("inspect")[0] == 2


def test_components() -> None:
    datapoint = [
        {"deep": [1, (2.5, True)], "none": None},
        "x" * 100,
        b"\0",
        list(range(100)),
        np.array(["a", "b"]),
        np.zeros((0, 3)),
        np.float32("nan"),
        np.array([None, 1], object),
        b"\0" * 100,
        np.full((2, 3), 7),
    ]
    told = {one.name: (one.type, one.shape, one.value) for one in components_of(datapoint)}
    assert told["0.deep.0"] == ("int", None, "1")
    assert told["0.deep.1.0"] == ("float", None, "2.5")
    assert told["0.none"] == ("NoneType", None, "None")
    assert told["1"] == ("str", (100,), f"'{'x' * 48}'…")
    assert told["3"] == ("list", None, "100 elements")
    assert told["4"] == ("<U1", (2,), "'a'")
    assert told["5"] == ("float64", (0, 3), "empty")
    assert told["6"] == ("float32", (), "nan")
    assert told["7"] == ("object", (2,), "None")
    assert told["8"] == ("bytes", (100,), f"{bytes(12)!r}…")  # each takes four characters
    assert told["9"] == ("int64", (2, 3), "all 7")
    assert components_of(3)[0].name == ""


def test_strings_count_in_bytes() -> None:
    sizes = {one.name: one.nbytes for one in components_of(("äöü", "abc", "\ud800", b"\xff"))}
    assert sizes == {"0": 6, "1": 3, "2": 3, "3": 1}


def test_what_is_no_function_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text("size = 3\n")
    with pytest.raises(ConfigError, match=r"'size' in .* must be a function(.|\n)*a int"):
        open_flow(f"{tmp_path}/odd.py:size")


def test_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    np.save(tmp_path / "x.npy", np.zeros(3))
    assert len(open_flow("~/x.npy")) == 3
    program = "from towerpack.dataflow import FakeData\ndef make(): return FakeData([[2]], 4)\n"
    (tmp_path / "at_home.py").write_text(program)
    assert len(open_flow("~/at_home.py:make")) == 4


BAD_PROGRAM = """
import numpy as np
from towerpack.dataflow import (
    DataFromGenerator, DataFromList, MapData, MapDataComponent, MultiProcessRunner,
    MultiThreadMapData, BatchData, RepeatedData
)
from towerpack.dataflow.images import decode_image

picture = np.zeros((4, 4, 3), np.uint8)
ten = DataFromList([(picture, i) for i in range(10)])

def look_up():
    return {"a": 1}["b"]

def load(dp):
    return look_up(),

def reload(dp):
    try:
        look_up()
    except KeyError as error:
        raise ValueError("not that") from error

def decode(dp):
    return decode_image(b"nothing"),

def mapped():
    return MapData(ten, load)

def streamed():
    return BatchData(RepeatedData(MapData(DataFromGenerator(lambda: iter(ten)), load)), 2)

def generated():
    def rows():
        yield picture, 0
        yield load(1)
    return DataFromGenerator(rows)

def chained():
    return MapData(ten, reload)

def threads():
    return MultiThreadMapData(ten, 2, load)

def workers():
    return MultiProcessRunner(MapData(ten, load), 2, 1)

def left_out():
    return MapData(ten, load, on_error="skip", max_errors=3)

def built_in():
    return MapData(ten, int)

def refused():
    return MapData(ten, decode)

def refused_by_ours():
    return MapDataComponent(ten, decode_image)

def fails():
    return look_up()

def misused():
    decode_image(None, strict=True, wrong=1)
"""


@pytest.fixture
def told(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    (folder / "bad_program.py").write_text(BAD_PROGRAM)
    monkeypatch.delitem(sys.modules, "bad_program", raising=False)

    def run(command: str, program: str, *more: str) -> list[str]:
        arguments = ["towerpack", "data", command, f"bad_program.py:{program}", *more]
        monkeypatch.setattr(sys, "argv", arguments)
        with pytest.raises(SystemExit, match="1"):
            main()
        return capfd.readouterr().err.splitlines()

    return run


def functions_in(lines: list[str]) -> list[str]:
    return [line.rpartition(" in ")[2] for line in lines if line.startswith("  File ")]


@pytest.mark.parametrize(
    ("command", "program"),
    [
        *[("inspect", program) for program in ("mapped", "streamed", "threads")],
        *[(command, "mapped") for command in ("speed", "profile", "grid")],
    ],
)
def test_the_cause_of_an_error_leads_into_the_program(
    told: Callable[..., list[str]], command: str, program: str
) -> None:
    lines = told(command, program, *(["x.png"] if command == "grid" else []))
    assert lines[0] == "Traceback (most recent call last):"
    assert lines.count(lines[0]) == 1
    assert functions_in(lines) == ["load", "look_up"]
    end = lines.index("KeyError: 'b'")
    assert lines[end + 1].startswith("MapError: Map") or "MapData(load) raised" in lines[end + 1]
    assert "correct the error shown above" in "".join(lines[end + 1 :])


def test_the_cause_in_a_generator(told: Callable[..., list[str]]) -> None:
    lines = told("inspect", "generated", "--num", "2")
    assert functions_in(lines) == ["rows", "load", "look_up"]
    assert "DataFlowError: DataFromGenerator" in lines[lines.index("KeyError: 'b'") + 1]


def test_the_cause_of_a_cause(told: Callable[..., list[str]]) -> None:
    lines = told("inspect", "chained")
    assert functions_in(lines) == ["reload", "look_up", "reload"]
    assert lines.index("KeyError: 'b'") < lines.index("ValueError: not that")


def test_the_cause_in_a_worker_is_told_once(told: Callable[..., list[str]]) -> None:
    text = "\n".join(told("inspect", "workers"))
    assert text.count("KeyError: 'b'") == 1 and text.count("in look_up") == 1
    assert text.count("Traceback in the worker") == 1


def test_the_cause_of_the_last_one_that_was_left_out(told: Callable[..., list[str]]) -> None:
    lines = told("inspect", "left_out")
    assert functions_in(lines) == ["load", "look_up"] and lines.count("KeyError: 'b'") == 1
    assert sum("failed for 4 of the first" in line for line in lines) == 1


def test_the_cause_in_what_has_no_frames(told: Callable[..., list[str]]) -> None:
    lines = told("inspect", "built_in")
    assert lines[0].startswith("TypeError: int() argument") and lines[1].startswith("MapError")
    assert functions_in(lines) == [] and "Traceback" not in "".join(lines)


def test_causes_that_are_our_own(told: Callable[..., list[str]]) -> None:
    lines = told("inspect", "refused")
    assert functions_in(lines) == ["decode"]
    assert sum("MapError: MapData(decode) raised FormatError" in line for line in lines) == 1
    lines = told("inspect", "refused_by_ours")
    assert functions_in(lines) == [] and lines[0].startswith("MapError: ")


def test_programs_that_fail_are_told_once(told: Callable[..., list[str]]) -> None:
    lines = told("inspect", "fails")
    assert lines[0].startswith("ConfigError: ") and lines[-1] == "KeyError: 'b'"
    assert functions_in(lines) == ["fails", "look_up"]
    assert functions_in(told("inspect", "misused")) == ["misused"]
