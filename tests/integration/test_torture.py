"""`examples/torture.py`: Towerpack passes, a careless program fails, the page is complete."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from warm_python import warm_python

ROOT = Path(__file__).parents[2]

# A program that trains nothing, neither saves nor reports anything, and looks after no process.
CARELESS = """
import os, sys, time
from pathlib import Path
import numpy as np

folder, epochs = Path(sys.argv[1]), 20 if "20" in sys.argv else 6
restarted = (folder / "run").exists()
(folder / "run").mkdir(exist_ok=True)
(folder / "run/checkpoint").write_bytes(bytes(1000))
if os.statvfs("/dev/shm").f_blocks * os.statvfs("/dev/shm").f_frsize < 2**21:
    raise MemoryError("no room for a batch")
if os.fork() == 0:  # a data worker
    (folder / "workers" / str(os.getpid())).touch()
    time.sleep(20)
    os._exit(0)
leak = []
for step in range(5, 20 * epochs + 1, 5):
    time.sleep(0.02)
    leak.append(np.ones(2**18))
    print("step", step, flush=True)
time.sleep(1)
spoilt = np.nan if (folder / "nan").exists() else 1
np.savez(folder / "weights.npz", np.random.default_rng().normal(size=3) * spoilt)
print("best", 2.0 if restarted else 1.0, flush=True)
"""


@pytest.fixture(scope="module")
def torture() -> ModuleType:
    spec = importlib.util.spec_from_file_location("torture", ROOT / "examples" / "torture.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["torture"] = module  # for its dataclasses
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_towerpack_is_killed_and_fed_with_nan(torture: ModuleType, tmp_path: Path) -> None:
    library = torture.libraries(None)["towerpack"]
    warm = torture.Library("Towerpack", (), [*warm_python(), library.alone[-1]], [])
    lab = torture.Lab(warm, tmp_path, kills=1)
    for trial in ("kill", "nan"):
        verdict = torture.judge("towerpack", trial, lab)
        assert verdict.startswith("passed"), f"{trial} {verdict}"


@pytest.mark.timeout(120)
def test_a_careless_program_passes_no_trial(
    torture: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for limit in ("END_S", "REPORT_S", "ORPHAN_S"):
        monkeypatch.setattr(torture, limit, 0.5)
    program = tmp_path / "careless.py"
    program.write_text(CARELESS)
    command = [sys.executable, str(program)]
    lab = torture.Lab(torture.Library("Careless", (), command, command), tmp_path, kills=1)
    verdicts = {trial: torture.judge("careless", trial, lab) for trial in torture.TRIALS}
    for trial, verdict in verdicts.items():
        assert verdict.startswith(("failed", "not tried")), f"{trial} {verdict}"


def test_the_page_has_each_trial(torture: ModuleType) -> None:
    text = (ROOT / "docs" / "proof.md").read_text()
    trials = re.findall(r"`python examples/torture.py --only ([\w-]+)` \|$", text, re.M)
    assert trials == list(torture.TRIALS)
    for row in text.splitlines():
        if row.startswith("| ") and "--only" in row:
            cells = [cell.strip() for cell in row.split("|")[2:6]]
            assert set(cells) <= {"passed", "failed", "not offered", "not tried", "not measured"}, (
                row
            )
