from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from towerpack.cli import app, main
from towerpack.dataflow.images import decode_image

pytest.importorskip("cv2")

PROGRAM = """
import numpy as np
from towerpack.dataflow import DataFromList

def tuples():
    return DataFromList([(np.full((20, 30, 3), (200, 0, 0), np.uint8), i) for i in range(3)])

def dicts():
    box = np.array([[2, 2, 28, 18]])
    return DataFromList([{"pic": np.zeros((20, 30), np.float32), "box": box}])
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    (tmp_path / "program_for_grid.py").write_text(PROGRAM)
    return f"{tmp_path}/program_for_grid.py"


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["data", "grid", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_grid(program: str, tmp_path: Path) -> None:
    out = tmp_path / "grid.png"
    said = run(f"{program}:tuples", str(out), "--cols", "2", "--cell", "40", "--label", "1")
    assert said.strip() == f"{out}: 84 x 120 pixels"
    img = decode_image(out.read_bytes())
    assert img.shape == (120, 84, 3) and img[20, 20].tolist() == [200, 0, 0]
    run(f"{program}:tuples", str(out), "--bgr", "--rows", "1", "--cols", "1")
    assert decode_image(out.read_bytes())[96, 96].tolist() == [0, 0, 200]


def test_keys(program: str, tmp_path: Path) -> None:
    out = tmp_path / "grid.png"
    run(f"{program}:dicts", str(out), "--image", "pic", "--boxes", "box")
    assert decode_image(out.read_bytes()).max() > 100


def test_errors(program: str, tmp_path: Path) -> None:
    for arguments in (["x.jpg"], [str(tmp_path / "x.png"), "--image", "7"]):
        result = CliRunner().invoke(app, ["data", "grid", f"{program}:tuples", *arguments])
        assert result.exit_code != 0
    assert not (tmp_path / "x.png").exists()


def test_a_component_that_is_not_there_is_told(
    program: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["data", "grid", f"{program}:dicts", str(tmp_path / "x.png"), "--image", "nope"]
    monkeypatch.setattr(sys, "argv", ["towerpack", *command])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert capsys.readouterr().err.splitlines() == [
        "ConfigError: There is no component 'nope' to show as image.",
        "  expected  'pic' or 'box'",
        "  to fix    pass the index of the component: image=... (or --image ...)",
        "  pipeline  DataFromList(1)",
    ]
    assert not (tmp_path / "x.png").exists()


def test_a_label_is_no_mask(
    program: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ["data", "grid", f"{program}:tuples", str(tmp_path / "x.png"), "--mask", "1"]
    monkeypatch.setattr(sys, "argv", ["towerpack", *command])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert capsys.readouterr().err.splitlines() == [
        "ConfigError: The component to show as mask must be a label map.",
        "  got       int",
        "  expected  one integer for each pixel: [height, width]",
        "  to fix    pass the index of the component: mask=... (or --mask ...)",
    ]
