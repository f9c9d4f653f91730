from __future__ import annotations

import json
import math
import os
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from towerpack import CheckpointMismatchError, ConfigError
from towerpack.checkpoint import CheckpointStore
from towerpack.cli import app, main


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two checkpoints, the older also kept as the best."""
    with CheckpointStore(tmp_path / "checkpoints", clock=lambda: 1e9) as store:
        for step in (1000, 2000):
            kernel = np.array([[1, 2], [3, math.nan]], np.float32)
            model = {"conv0/kernel": kernel, "conv0/[bias]": np.array([math.inf, 0.5])}
            slots = {"iterations": np.array(step), "empty": np.zeros((0, 3), np.uint8)}
            state = {"epoch": step // 1000, "data": {"position": 17}, "[x]": "text"}
            store.save(step, {"model": model, "optimizer": slots}, state)
        store.keep_as(
            1000, "best-val/error", info={"best": [{"name": "val/error", "value": 0.07123456}]}
        )
    return tmp_path


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def towerpack(*arguments: Any) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    return result.exit_code, result.stdout


def row(text: str, start: str) -> str:
    (found,) = [line for line in text.splitlines() if line.strip().startswith(start)]
    return " ".join(found.split())


def test_ls(run: Path) -> None:
    code, text = towerpack("ckpt", "ls", run)
    assert code == 0
    assert "best-val/error" in text
    assert "val/error 0.07123" in text
    assert row(text, "2,000").startswith("2,000")
    assert row(text, "2,000").endswith("whole")
    assert "2001-09-0" in text
    assert "A resumed run continues from step 2,000." in text
    assert "Pass --check" in text


def test_ls_finds_flipped_bits_on_request(run: Path) -> None:
    flip(run / "checkpoints" / "step-00002000" / "model.safetensors")
    assert "damaged" not in towerpack("ckpt", "ls", run)[1]
    assert towerpack("ckpt", "ls", run, "--check", "--json")[0] == 1
    code, text = towerpack("ckpt", "ls", run / "checkpoints", "--check")
    assert code == 1
    assert "damaged: model.safetensors is damaged (its checksum does not match)" in text
    assert "A resumed run continues from step 1,000. 1 damaged." in text
    assert "Pass --check" not in text


def test_ls_of_whole_ones_with_check(run: Path) -> None:
    code, text = towerpack("ckpt", "ls", run, "--check")
    assert (code, text.count(" valid")) == (0, 3)


def test_ls_of_nothing_loadable(run: Path) -> None:
    for path in (run / "checkpoints").glob("*/manifest.json"):
        path.unlink()
    code, text = towerpack("ckpt", "ls", run)
    assert code == 0
    assert text.count("manifest.json is missing") == 3
    assert "No checkpoint can be loaded. 3 damaged." in text


def test_ls_of_a_run_that_has_not_saved(tmp_path: Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    code, text = towerpack("ckpt", "ls", tmp_path)
    assert (code, text.endswith("yet.\n")) == (0, True)


def test_ls_for_programs(run: Path) -> None:
    _, text = towerpack("ckpt", "ls", run, "--json")
    rows = [json.loads(line) for line in text.splitlines()]
    assert [(r["step"], r["tag"], r["valid"]) for r in rows] == [
        (1000, "best-val/error", True),
        (1000, None, True),
        (2000, None, True),
    ]
    assert rows[0]["info"]["best"][0]["value"] == 0.07123456


def test_show(run: Path) -> None:
    code, text = towerpack("ckpt", "show", run)
    assert code == 0
    assert "model: 2 tensors, 6 numbers" in text
    assert row(text, "conv0/kernel") == "conv0/kernel 2 × 2 float32 16 B 2 0.8165 1 3 1"
    assert row(text, "conv0/[bias]") == "conv0/[bias] 2 float64 16 B 0.5 0 0.5 0.5 1"
    assert row(text, "iterations") == "iterations scalar int64 8 B 2000 0 2000 2000"
    assert row(text, "empty") == "empty 0 × 3 uint8 0 B"
    assert row(text, "epoch") == "epoch int 2"
    assert row(text, "data") == "data dict {'position': 17}"
    assert row(text, "[x]") == "[x] str text"
    assert f"numpy {np.__version__}" in text


def test_show_folds_no_names_on_80_columns(run: Path) -> None:
    terminal = {"FORCE_COLOR": "1", "COLUMNS": "80", "NO_COLOR": "1"}
    shown = CliRunner().invoke(app, ["ckpt", "show", str(run)], env=terminal).stdout
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    assert row(text, "conv0/kernel").startswith("conv0/kernel 2 × 2 2 0.8165 1 3")


def test_show_one_and_a_tag(run: Path) -> None:
    assert "2,000" in towerpack("ckpt", "show", run / "checkpoints" / "step-00002000")[1]
    text = towerpack("ckpt", "show", run, "--tag", "best-val/error")[1]
    assert row(text, "tag") == "tag best-val/error"
    assert row(text, "info") == "info val/error 0.07123"


def test_show_some_tensors(run: Path) -> None:
    text = towerpack("ckpt", "show", run, "--match", "kern.l$")[1]
    assert "model: 1 tensors, 4 numbers (of 2 tensors)" in text
    assert "bias" not in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("ls absent", "CheckpointError: absent does not exist"),
        ("show absent", "absent does not exist"),
        ("show . --match (", "ConfigError: --match '('"),
        ("show checkpoints/step-00002000", "state.json is damaged"),
    ],
)
def test_errors_are_told_without_a_traceback(
    run: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    told: str,
) -> None:
    flip(run / "checkpoints" / "step-00002000" / "state.json")
    monkeypatch.chdir(run)
    monkeypatch.setattr(sys, "argv", ["towerpack", "ckpt", *arguments.split()])
    with pytest.raises(SystemExit, match="1"):
        main()
    out, err = capsys.readouterr()
    assert told in err and "to fix" in err and "Traceback" not in err
    assert out == ""


# diff, convert, average


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Two files of weights, and a run that has the numbers of the first."""
    one = {
        "w": np.array([[1.0, math.nan], [3.0, 4.0]], np.float32),
        "half": np.ones(3, np.float16),
        "n": np.array([1, 2]),
        "same": np.zeros(2, np.float32),
    }
    two = {
        **one,
        "w": one["w"] + np.float32([[0, 0], [0, 0.5]]),
        "n": np.array([1, 3]),
        "new": one["n"],
    }
    two["half"] = np.full(3, 2, np.float16)
    np.savez(tmp_path / "one.npz", **one)
    np.savez(tmp_path / "two.npz", **two)
    with CheckpointStore(tmp_path / "run" / "checkpoints") as store:
        store.save(5, {"model": one, "optimizer": {"ema/w": np.zeros((2, 2), np.float32)}}, {})
    return tmp_path


def test_diff(files: Path) -> None:
    assert towerpack("ckpt", "diff", files / "one.npz", files / "run") == (
        0,
        "0 differ, 4 are the same.\n",
    )
    code, text = towerpack("ckpt", "diff", files / "one.npz", files / "two.npz")
    assert code == 1
    assert "0.5" in row(text, "w ")
    assert "1 numbers" in row(text, "n ")
    assert "only in the second" in row(text, "new")
    assert "4 differ, 1 are the same." in text
    assert (
        "half"
        not in towerpack("ckpt", "diff", files / "one.npz", files / "two.npz", "--tolerance", 1)[1]
    )


def test_nan_of_one_alone_is_a_difference(files: Path) -> None:
    np.savez(files / "nan.npz", half=np.full(3, math.nan, np.float16))
    assert "nan" in row(towerpack("ckpt", "diff", files / "one.npz", files / "nan.npz")[1], "half")


@pytest.mark.parametrize("name", ["w.npz", "w.safetensors"])
def test_convert_keeps_every_bit(files: Path, name: str) -> None:
    assert towerpack("ckpt", "convert", files / "run", "-o", files / name)[0] == 0
    assert towerpack("ckpt", "diff", files / name, files / "run")[0] == 0
    assert not list(files.glob(".*"))
    with pytest.raises(ConfigError, match=rf"{name} must be a new .* but it exists"):
        towerpack("ckpt", "convert", files / "run", "-o", files / name)
    averaged = files / f"ema-{name}"
    towerpack("ckpt", "convert", files / "run", "-o", averaged, "--ema")
    assert "0 differ" not in towerpack("ckpt", "diff", averaged, files / "run")[1]
    with pytest.raises(ConfigError, match=r"must be a new .*but the suffix is"):
        towerpack("ckpt", "convert", files / "run", "-o", files / "w.zip")


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_a_file_of_keras_is_converted_to_names_that_models_have(tmp_path: Path) -> None:
    import keras

    layers = [keras.layers.Input([4]), keras.layers.Dense(2, name="fc1")]
    keras.Sequential([*layers, keras.layers.BatchNormalization(name="bn")]).save(
        tmp_path / "k.keras"
    )
    towerpack("ckpt", "convert", tmp_path / "k.keras", "-o", tmp_path / "k.npz")
    statistics = ("gamma", "beta", "moving_mean", "moving_variance")
    names = ["fc1/kernel", "fc1/bias", *(f"bn/{name}" for name in statistics)]
    assert np.load(tmp_path / "k.npz").files == names


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("change", ["units", "nothing"])
def test_a_file_of_keras_with_a_layer_of_any_size_is_not_built(
    tmp_path: Path, change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import keras

    layers = [keras.layers.Input([4]), keras.layers.Dense(2, name="fc1")]
    keras.Sequential(layers).save(tmp_path / "good.keras")
    config = {"units": b'"units": 3000000000', "nothing": b""}[change]
    with (
        zipfile.ZipFile(tmp_path / "good.keras") as good,
        zipfile.ZipFile(tmp_path / "k.keras", "w") as bad,
    ):
        for name in good.namelist():
            content = good.read(name)
            if name == "config.json":
                content = content.replace(b'"units": 2', config) if config else b"{}"
            bad.writestr(name, content)
    monkeypatch.setattr(keras.saving, "load_model", lambda *_, **__: pytest.fail("it was built"))
    towerpack("ckpt", "convert", tmp_path / "k.keras", "-o", tmp_path / "k.npz")
    assert np.load(tmp_path / "k.npz").files == ["fc1/0", "fc1/1"]


@pytest.mark.parametrize("ending", ["npz", "safetensors"])
def test_no_file_with_a_name_that_can_be_guessed_is_written_through(
    files: Path, ending: str
) -> None:
    (files / "other").write_text("kept")
    (files / f".{os.getpid()}.w.{ending}").symlink_to(files / "other")
    towerpack("ckpt", "convert", files / "one.npz", "-o", files / f"w.{ending}")
    assert (files / "other").read_text() == "kept"
    assert not (files / f"w.{ending}").is_symlink()


def test_average(files: Path) -> None:
    np.savez(files / "three.npz", **{**np.load(files / "one.npz"), "n": np.array([7, 7])})
    out = files / "mean.npz"
    arguments = (files / "one.npz", files / "run", files / "three.npz")
    assert towerpack("ckpt", "average", *arguments, "-o", out)[0] == 0
    mean = np.load(out)
    np.testing.assert_array_equal(mean["w"], np.load(files / "one.npz")["w"])
    assert (mean["half"].dtype, mean["n"].tolist()) == (np.float16, [7, 7])
    np.savez(files / "a.npz", w=np.float32([1, 2]))
    np.savez(files / "b.npz", w=np.float32([2, 5]))
    towerpack("ckpt", "average", files / "a.npz", files / "b.npz", "-o", files / "ab.npz")
    assert np.load(files / "ab.npz")["w"].tolist() == [1.5, 3.5]
    with pytest.raises(CheckpointMismatchError, match="must have the same tensors"):
        towerpack("ckpt", "average", files / "one.npz", files / "two.npz", "-o", files / "x.npz")
    with pytest.raises(ConfigError, match="needs at least two sources"):
        towerpack("ckpt", "average", files / "one.npz", "-o", files / "x.npz")
