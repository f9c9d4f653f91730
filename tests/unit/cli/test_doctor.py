from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scaling import only_in_full
from towerpack._core.extras import requirements
from towerpack.cli import _doctor, _machine, app
from warm_python import warm_python

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_it_knows_every_requirement() -> None:
    extras = PROJECT["optional-dependencies"]
    wanted = {"": PROJECT["dependencies"], **{e: extras[e] for e in extras if e != "dev"}}
    known = requirements()
    for extra, listed in wanted.items():
        names = {re.split(r"[<>=!~;\[ ]", requirement)[0] for requirement in listed}
        assert names - {"towerpack"} <= set(known), extra
    assert {known[name] for name in ("numpy", "typer")} == {""}
    assert (known["keras"], known["pillow"], known["optuna"]) == ("tf", "image", "apps")


def test_the_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        _doctor, "version_of", lambda name: None if name == "matplotlib" else "1.2.3"
    )
    result = CliRunner().invoke(app, ["doctor", "--no-tensorflow"])
    assert result.exit_code == 0
    rows = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert "✓ numpy 1.2.3" in rows
    assert "· matplotlib [demo] not installed" in rows
    assert '→ pip install "towerpack[demo]"' in " ".join(rows)  # In two rows of a narrow table.


def test_a_missing_requirement_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_doctor, "version_of", lambda name: None if name == "msgpack" else "1")
    result = CliRunner().invoke(app, ["doctor", "--no-tensorflow"])
    assert result.exit_code == 1
    assert "1 error" in result.stdout


def test_sources_that_are_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_doctor, "requirements", dict)
    assert [finding.level for finding in _doctor.packages()] == ["warning"]


def test_for_programs() -> None:
    result = CliRunner().invoke(app, ["doctor", "--no-tensorflow", "--json"])
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert {"section", "subject", "text", "level", "fix"} == set(rows[0])
    assert "Processors" in [row["subject"] for row in rows]


@pytest.mark.parametrize(
    ("environment", "subject"),
    [
        ({"KERAS_BACKEND": "jax"}, "KERAS_BACKEND"),
        ({"TF_CONFIG": "{}"}, "TF_CONFIG"),
        ({"TF_USE_LEGACY_KERAS": "1"}, "TF_USE_LEGACY_KERAS"),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, "CUDA_VISIBLE_DEVICES"),
    ],
)
def test_settings_that_surprise(environment: dict[str, str], subject: str) -> None:
    quiet = {finding.subject for finding in _doctor.surroundings({})}
    (found,) = [f for f in _doctor.surroundings(environment) if f.subject not in quiet]
    assert (found.subject, found.level) == (subject, "warning")
    assert found.fix


def told(**changes: object) -> str:
    answer = {
        "tensorflow": "2.21.0",
        "keras": "3.15.1",
        "backend": "tensorflow",
        "seconds": 1.0,
        "devices": [["/physical_device:CPU:0", ""], ["/physical_device:GPU:0", "H100"]],
        "missing": [],
        "computes": True,
        "channels_first": True,
        "intra": 0,
        "inter": 2,
        **changes,
    }
    return f"print('noise'); print({'PROBE' + json.dumps(answer)!r})"


def test_tensorflow_is_asked() -> None:
    found = {f.subject: f for f in _doctor.probe_tensorflow(60, told())}
    assert found["Loading"].text == "TensorFlow 2.21.0, Keras 3.15.1 in 1.0 s"
    assert found["GPU:0"].text == "H100"
    assert found["Threads"].text == "as many as processors within an op, 2 between ops"
    assert {f.level for f in found.values()} == {"ok"}


@pytest.mark.parametrize(
    ("probe", "text"),
    [
        ("raise ImportError('libcudart.so.12')", "failed: ImportError: libcudart.so.12"),
        ("import os; os.kill(os.getpid(), 11)", "failed by signal 11: no message"),
        ("import time; time.sleep(60)", "did not load within 0.5 s"),
        ("pass", "failed: no message"),
        (told(backend="jax"), "is 'jax'"),
        (told(computes=False), "a product of two matrices is wrong"),
    ],
)
def test_a_broken_tensorflow_is_reported(probe: str, text: str) -> None:
    timeout_s = 0.5 if "sleep" in probe else 60
    errors = [f for f in _doctor.probe_tensorflow(timeout_s, probe) if f.level == "error"]
    assert [finding.text for finding in errors] == [text]
    assert errors[0].fix


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").touch(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.slow
def test_libraries_of_cuda_that_do_not_load_are_named(driver: None) -> None:
    found = {f.subject: f for f in _doctor.probe_tensorflow(120)}
    if any(subject.startswith("GPU:") for subject in found):
        pytest.skip("TensorFlow uses a GPU here")
    assert found["GPU"].level == "warning" and "libcudnn.so.9" in found["GPU"].text


@pytest.mark.parametrize(
    ("missing", "devices", "fix"),
    [
        (["libcudnn.so.9"], None, "towerpack[cuda]"),
        (["libcuda.so.1", "libcudnn.so.9"], None, "driver"),
        ([], "-1", "unset CUDA_VISIBLE_DEVICES"),
        ([], "-1,0", "unset CUDA_VISIBLE_DEVICES"),
        ([], "7", "nvidia-smi -L"),
        (["libcuda.so.1"], "", "unset CUDA_VISIBLE_DEVICES, which hides every GPU; then install"),
    ],
)
def test_a_gpu_that_is_not_used(
    driver: None, missing: list[str], devices: str | None, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if devices is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    probe = told(devices=[["/physical_device:CPU:0", ""]], missing=missing)
    (gpu,) = [f for f in _doctor.probe_tensorflow(60, probe) if f.subject == "GPU"]
    assert fix in gpu.fix and all(name in gpu.text for name in missing)


def test_channels_first_is_noted_where_it_fails() -> None:
    cpu = [["/physical_device:CPU:0", ""]]
    probe = told(channels_first=False, devices=cpu)
    (note,) = [f for f in _doctor.probe_tensorflow(60, probe) if f.subject == "channels_first"]
    assert note.level == "note"
    assert "channels_last" in note.fix
    for works in (told(channels_first=False), told(devices=cpu)):
        subjects = [finding.subject for finding in _doctor.probe_tensorflow(60, works)]
        assert "channels_first" not in subjects


@pytest.mark.slow
@pytest.mark.parametrize("value", [pytest.param("0", marks=only_in_full), "1"])
def test_the_real_tensorflow(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorflow")
    monkeypatch.setenv("TF_ENABLE_ONEDNN_OPTS", value)
    if value == "1":  # as it is set for all tests
        start, run = warm_python(), subprocess.run
        monkeypatch.setattr(subprocess, "run", lambda c, **kw: run([*start, *c[1:]], **kw))
    found = {finding.subject: finding for finding in _doctor.probe_tensorflow(120)}
    assert [finding for finding in found.values() if finding.level == "error"] == []
    assert "CPU:0" in found
    if value == "0" and not any(subject.startswith("GPU:") for subject in found):
        assert "channels_first" in found
    if value == "1" and (platform.system(), platform.machine()) == ("Linux", "x86_64"):
        assert "channels_first" not in found


def write(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_control_groups_version_2(tmp_path: Path) -> None:
    base = {"proc__self__cgroup": "0::/a/b\n"}
    assert _machine.cpu_quota(write(tmp_path, **base)) is None
    outer = tmp_path / "sys" / "fs" / "cgroup" / "a"
    (outer / "b").mkdir(parents=True)
    (outer / "b" / "cpu.max").write_text("max 100000\n")
    (outer / "cpu.max").write_text("150000 100000\n")
    (outer / "b" / "memory.max").write_text("max\n")
    assert _machine.cpu_quota(tmp_path) == 1.5
    assert _machine.memory_limit(tmp_path) is None
    (outer / "memory.max").write_text("1000000\n")
    assert _machine.memory_limit(tmp_path) == 1_000_000


def test_control_groups_version_1(tmp_path: Path) -> None:
    write(tmp_path, proc__self__cgroup="4:cpu,cpuacct:/x\n5:memory:/x\n")
    cpu, mem = (tmp_path / "sys" / "fs" / "cgroup" / name for name in ("cpu", "memory"))
    (cpu / "x").mkdir(parents=True)
    (mem / "x").mkdir(parents=True)
    (cpu / "x" / "cpu.cfs_quota_us").write_text("200000\n")
    (cpu / "x" / "cpu.cfs_period_us").write_text("100000\n")
    (cpu / "cpu.cfs_quota_us").write_text("-1\n")
    (mem / "x" / "memory.limit_in_bytes").write_text("9223372036854771712\n")
    assert _machine.cpu_quota(tmp_path) == 2.0
    assert _machine.memory_limit(tmp_path) is None
    (mem / "memory.limit_in_bytes").write_text("5000\n")
    assert _machine.memory_limit(tmp_path) == 5000


def test_a_quota_below_the_processors_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_doctor, "cpu_quota", lambda root: 1.5)
    monkeypatch.setattr(_doctor, "cpus_by_affinity", lambda: 8)
    (found,) = [f for f in _doctor.machine() if f.subject == "Processors"]
    assert found.level == "warning"
    assert "quota of 1.5" in found.text


def test_memory() -> None:
    total, available = _machine.memory()
    assert total > 1e8
    assert available is None or 0 < available <= total


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (12_345_678, "12.3 MB"), (999_999, "1 MB"),
     (25.3e9, "25.3 GB")],
)  # fmt: skip
def test_sizes_in_words(nbytes: float, text: str) -> None:
    assert _machine.size_text(nbytes) == text
