from __future__ import annotations

import dataclasses
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer
from rich.console import Console
from rich.table import Table

from towerpack import __version__
from towerpack._core.extras import requirements
from towerpack._core.versions import version_of
from towerpack.cli._console import escape
from towerpack.cli._machine import cpu_quota, cpus_by_affinity, memory, memory_limit, size_text
from towerpack.cli._options import JSON_LINES

Level = Literal["ok", "note", "warning", "error"]

_SMALL_DISK: Final = 1_000_000_000
_FEW_FILES: Final = 1024
_INSTALL_CUDA: Final = 'pip install "towerpack[cuda]"'
_MARKS: Final = {"ok": "[green]✓", "note": "[dim]·", "warning": "[yellow]!", "error": "[red]✗"}

# Program that runs in a subprocess, so that a crash or hang of TensorFlow can be reported.
_PROBE: Final = """
import ctypes, glob, json, os, sys, time

def missing(build):
    # TensorFlow logs only that "some" libraries did not load. Their versions are those of CUDA 12.
    cuda, cudnn = (str(build.get(f"{n}_version", "")).split(".")[0] for n in ("cuda", "cudnn"))
    if cuda != "12":
        return []
    names = ["cuda.so.1", f"cudnn.so.{cudnn}", "cufft.so.11", "cusolver.so.11", *(
        f"{name}.so.12" for name in ("cudart", "cublasLt", "cublas", "nvJitLink", "cusparse"))]
    absent = []
    for name in ("lib" + name for name in names):
        patterns = (os.path.join(path, "nvidia", "*", "lib", name) for path in sys.path)
        wheels = (file for pattern in patterns for file in glob.glob(pattern))
        try:
            ctypes.CDLL(next(wheels, name), ctypes.RTLD_GLOBAL)
        except OSError:
            absent.append(name)
    return absent

start = time.perf_counter()
import tensorflow as tf
import keras
seconds = time.perf_counter() - start
build = tf.sysconfig.get_build_info()
devices = []
for device in tf.config.list_physical_devices():
    gpu = device.device_type == "GPU"
    details = tf.config.experimental.get_device_details(device) if gpu else {}
    devices.append([device.name, details.get("device_name", "")])
total = float(tf.reduce_sum(tf.ones([8, 8]) @ tf.ones([8, 8])))
try:
    with tf.device("CPU"):
        tf.nn.conv2d(tf.ones([1, 1, 2, 2]), tf.ones([1, 1, 1, 1]), 1, "SAME", data_format="NCHW")
    channels_first = True
except tf.errors.OpError:
    channels_first = False
print("PROBE" + json.dumps({
    "tensorflow": tf.__version__,
    "keras": keras.__version__,
    "backend": keras.backend.backend(),
    "seconds": seconds,
    "devices": devices,
    "missing": [] if any("GPU" in name for name, _ in devices) else missing(build),
    "computes": total == 512.0,
    "channels_first": channels_first,
    "intra": tf.config.threading.get_intra_op_parallelism_threads(),
    "inter": tf.config.threading.get_inter_op_parallelism_threads(),
}))
"""


@dataclasses.dataclass(frozen=True)
class Finding:
    section: str
    subject: str
    text: str
    level: Level = "ok"
    fix: str = ""


def doctor(
    timeout_s: Annotated[
        float, typer.Option("--timeout", help="Largest number of seconds for loading TensorFlow.")
    ] = 120.0,
    tensorflow: Annotated[
        bool, typer.Option("--tensorflow/--no-tensorflow", help="Load TensorFlow and test it.")
    ] = True,
    as_json: JSON_LINES = False,
) -> None:
    """Report the hardware, missing packages and likely problems of this machine."""
    console = Console(highlight=False, soft_wrap=not sys.stdout.isatty())
    findings = [*machine(), *packages(), *surroundings(os.environ)]
    if tensorflow and version_of("tensorflow") is not None:
        with Console(stderr=True).status("Loading TensorFlow …", spinner="line"):
            findings += probe_tensorflow(timeout_s)
    if as_json:
        for finding in findings:
            typer.echo(json.dumps(dataclasses.asdict(finding)))
    else:
        show(console, findings)
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)


def machine(root: Path = Path("/")) -> list[Finding]:
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    findings = [
        Finding("Machine", "Towerpack", __version__),
        Finding("Machine", "Python", f"{platform.python_version()} ({sys.executable})"),
        Finding("Machine", "System", system),
    ]
    cpus, quota = cpus_by_affinity(), cpu_quota(root)
    text = f"{cpus} usable"
    if (os.cpu_count() or cpus) != cpus:
        text += f" of {os.cpu_count()} (affinity)"
    if quota is not None and quota < cpus:
        fix = f"set workers and threads to {max(1, round(quota))}: more are throttled"
        text += f", but a quota of {quota:g}"
        findings.append(Finding("Machine", "Processors", text, "warning", fix))
    else:
        findings.append(Finding("Machine", "Processors", text))
    total, available = memory(root)
    limit = memory_limit(root)
    text = size_text(total) + ("" if available is None else f", {size_text(available)} available")
    if limit is not None and limit < total:
        text += f", limited to {size_text(limit)} by the control group"
    findings.append(Finding("Machine", "Memory", text))
    return findings


def packages() -> list[Finding]:
    findings: list[Finding] = []
    if not (needed := requirements()):
        fix = "run `pip install --editable .` in the directory of pyproject.toml"
        findings.append(Finding("Packages", "towerpack", "not installed", "warning", fix))
    for name, extra in needed.items():
        subject = f"{name} [{extra}]" if extra else name
        if (version := version_of(name)) is not None:
            findings.append(Finding("Packages", subject, version))
        elif extra:
            fix = f'pip install "towerpack[{extra}]"'
            findings.append(Finding("Packages", subject, "not installed", "note", fix))
        else:
            fix = "pip install --force-reinstall towerpack"
            findings.append(Finding("Packages", subject, "missing", "error", fix))
    return findings


def surroundings(environment: Mapping[str, str]) -> list[Finding]:
    """Report environment variables and limits that may cause problems."""
    findings: list[Finding] = []

    def warn(subject: str, text: str, fix: str) -> None:
        findings.append(Finding("Surroundings", subject, text, "warning", fix))

    if (backend := environment.get("KERAS_BACKEND", "tensorflow")) != "tensorflow":
        warn("KERAS_BACKEND", f"is {backend!r}", "unset it: Towerpack needs 'tensorflow'")
    if "TF_CONFIG" in environment:
        warn("TF_CONFIG", "is set, so this process joins a cluster", "unset it to run alone")
    if environment.get("TF_USE_LEGACY_KERAS", "0").lower() in ("1", "true"):
        warn("TF_USE_LEGACY_KERAS", "is set: tf.keras is Keras 2", "unset it")
    if _hides_gpus(environment.get("CUDA_VISIBLE_DEVICES")):
        warn("CUDA_VISIBLE_DEVICES", "hides every GPU", "unset it to use GPUs")
    free = shutil.disk_usage(Path.cwd()).free
    if free < _SMALL_DISK:
        warn("Disk", f"{size_text(free)} free here", "delete files, or use another disk")
    else:
        findings.append(Finding("Surroundings", "Disk", f"{size_text(free)} free here"))
    if not os.access(Path.cwd(), os.W_OK):
        warn("Directory", "cannot be written to", "change to another directory, or set run_dir=")
    if sys.platform != "win32":
        import resource

        files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if 0 <= files < _FEW_FILES:
            raised = _FEW_FILES if most < 0 else min(most, 65536)
            warn("Open files", f"at most {files}", f"run `ulimit -n {raised}`")
    return findings


def _hides_gpus(visible: str | None) -> bool:
    """Return whether CUDA_VISIBLE_DEVICES hides every GPU: CUDA ignores what follows a -1."""
    return visible is not None and visible.split(",")[0].strip() in ("", "-1")


def probe_tensorflow(timeout_s: float, probe: str = _PROBE) -> list[Finding]:
    """Load TensorFlow in a subprocess, multiply two matrices, and report the results."""
    section = "TensorFlow"
    reinstall = 'pip install --force-reinstall "towerpack[tf]"'
    command = [sys.executable, "-P", "-c", probe]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        text = f"did not load within {timeout_s:g} s"
        return [Finding(section, "Loading", text, "error", "raise --timeout, or " + reinstall)]
    lines = [line for line in done.stdout.splitlines() if line.startswith("PROBE")]
    if done.returncode != 0 or not lines:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        signal = f" by signal {-done.returncode}" if done.returncode < 0 else ""
        return [Finding(section, "Loading", f"failed{signal}: {last}", "error", reinstall)]
    facts: dict[str, Any] = json.loads(lines[-1].removeprefix("PROBE"))
    findings: list[Finding] = []

    def report(subject: str, text: str, level: Level = "ok", fix: str = "") -> None:
        findings.append(Finding(section, subject, text, level, fix))

    versions = f"TensorFlow {facts['tensorflow']}, Keras {facts['keras']}"
    report("Loading", f"{versions} in {facts['seconds']:.1f} s")
    if facts["backend"] != "tensorflow":
        fix = "unset KERAS_BACKEND, or set it in ~/.keras/keras.json to 'tensorflow'"
        report("Backend", f"is {facts['backend']!r}", "error", fix)
    if not facts["computes"]:
        report("Computing", "a product of two matrices is wrong", "error", reinstall)
    for name, kind in facts["devices"]:
        report(name.removeprefix("/physical_device:"), kind or "usable")
    within, between = (facts[kind] or "as many as processors" for kind in ("intra", "inter"))
    report("Threads", f"{within} within an op, {between} between ops")
    has_gpu = any("GPU" in name for name, _ in facts["devices"])
    if not has_gpu and shutil.which("nvidia-smi") is None:
        report("GPU", "none", "note")
    elif not has_gpu:
        text, visible = "TensorFlow cannot use the GPU", os.environ.get("CUDA_VISIBLE_DEVICES")
        if facts["missing"]:
            text += f": {', '.join(facts['missing'])} cannot be loaded"
        fixes: list[str] = []
        if _hides_gpus(visible):
            fixes.append("unset CUDA_VISIBLE_DEVICES, which hides every GPU")
        elif visible is not None and not facts["missing"]:
            numbers = "numbers of GPUs that `nvidia-smi -L` lists"
            fixes.append(f"unset CUDA_VISIBLE_DEVICES={visible}, or set it to {numbers}")
        if "libcuda.so.1" in facts["missing"]:
            fixes.append("install NVIDIA's driver")
        elif facts["missing"] or not fixes:
            fixes.append(_INSTALL_CUDA)
        report("GPU", text, "warning", "; then ".join(fixes))
    # On CPUs channels_first needs oneDNN, which TensorFlow enables only for some of them
    # (`DefaultOneDnnPolicy` in its `core/util/port.cc`).
    if not has_gpu and not facts["channels_first"]:
        text = "convolutions and pooling in channels_first (NCHW) fail on this CPU"
        fix = (
            'use data_format="channels_last"; or, on x86, set TF_ENABLE_ONEDNN_OPTS=1 before '
            "importing TensorFlow, but then relu in a tf.function may turn NaN into 0"
        )
        report("channels_first", text, "note", fix)
    return findings


def show(console: Console, findings: Sequence[Finding]) -> None:
    for section in dict.fromkeys(finding.section for finding in findings):
        console.print(f"[bold]{section}")
        table = Table.grid(padding=(0, 2, 0, 0))
        table.add_column()
        table.add_column(style="cyan", no_wrap=True)
        table.add_column(overflow="fold")
        for finding in findings:
            if finding.section == section:
                fix = f"\n[bold]→[/] {escape(finding.fix)}" if finding.fix else ""
                mark, subject = _MARKS[finding.level], escape(finding.subject)
                table.add_row(f"  {mark}", subject, escape(finding.text) + fix)
        console.print(table)
    counts = {level: sum(f.level == level for f in findings) for level in ("error", "warning")}
    texts = [f"{n} {level}{'s' if n > 1 else ''}" for level, n in counts.items() if n]
    color = "red" if counts["error"] else "yellow" if counts["warning"] else "green"
    console.print(f"[bold {color}]{' and '.join(texts) or 'No problems found'}.")
