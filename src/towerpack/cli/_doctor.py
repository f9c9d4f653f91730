"""`towerpack doctor`: what is here, what is missing, and what will go wrong."""

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
_MARKS: Final = {"ok": "[green]✓", "note": "[dim]·", "warning": "[yellow]!", "error": "[red]✗"}

# Runs in another process, so that a TensorFlow that crashes or hangs is reported, not suffered.
_PROBE: Final = """
import json, time
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
    "cuda": build.get("cuda_version") or "",
    "computes": total == 512.0,
    "channels_first": channels_first,
    "intra": tf.config.threading.get_intra_op_parallelism_threads(),
    "inter": tf.config.threading.get_inter_op_parallelism_threads(),
}))
"""


@dataclasses.dataclass(frozen=True)
class Finding:
    """One line of the report; an error makes the command fail."""

    section: str
    subject: str
    text: str
    level: Level = "ok"
    fix: str = ""


def doctor(
    timeout_s: Annotated[
        float, typer.Option("--timeout", help="Seconds that TensorFlow may take to load.")
    ] = 120.0,
    tensorflow: Annotated[
        bool, typer.Option("--tensorflow/--no-tensorflow", help="Load TensorFlow and try it.")
    ] = True,
    as_json: JSON_LINES = False,
) -> None:
    """Say what this machine has, what is missing, and what will go wrong."""
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
    """System, processors, memory, disk."""
    system = f"{platform.system()} {platform.release()}, {platform.machine()}"
    found = [
        Finding("Machine", "Towerpack", __version__),
        Finding("Machine", "Python", f"{platform.python_version()} ({sys.executable})"),
        Finding("Machine", "System", system),
    ]
    cpus, quota = cpus_by_affinity(), cpu_quota(root)
    text = f"{cpus} usable"
    if (os.cpu_count() or cpus) != cpus:
        text += f" of {os.cpu_count()} (affinity)"
    if quota is not None and quota < cpus:
        fix = f"set workers and threads to {max(1, round(quota))}: more will be throttled"
        text += f", but a quota of {quota:g}"
        found.append(Finding("Machine", "Processors", text, "warning", fix))
    else:
        found.append(Finding("Machine", "Processors", text))
    total, available = memory(root)
    limit = memory_limit(root)
    text = size_text(total) + ("" if available is None else f", {size_text(available)} available")
    if limit is not None and limit < total:
        text += f", limited to {size_text(limit)} by the control group"
    found.append(Finding("Machine", "Memory", text))
    return found


def packages() -> list[Finding]:
    """What is installed, and how to get what is not."""
    found: list[Finding] = []
    if not (needed := requirements()):
        fix = "pip install --editable . where pyproject.toml is"
        found.append(Finding("Packages", "towerpack", "runs uninstalled", "warning", fix))
    for name, extra in needed.items():
        subject = f"{name} [{extra}]" if extra else name
        if (version := version_of(name)) is not None:
            found.append(Finding("Packages", subject, version))
        elif extra:
            fix = f'pip install "towerpack[{extra}]"'
            found.append(Finding("Packages", subject, "not installed", "note", fix))
        else:
            fix = "pip install --force-reinstall towerpack"
            found.append(Finding("Packages", subject, "missing", "error", fix))
    return found


def surroundings(environment: Mapping[str, str]) -> list[Finding]:
    """Settings and limits that surprise later."""
    found: list[Finding] = []

    def warn(subject: str, text: str, fix: str) -> None:
        found.append(Finding("Surroundings", subject, text, "warning", fix))

    if (backend := environment.get("KERAS_BACKEND", "tensorflow")) != "tensorflow":
        warn("KERAS_BACKEND", f"is {backend!r}", "unset it: Towerpack needs 'tensorflow'")
    if "TF_CONFIG" in environment:
        warn("TF_CONFIG", "is set: this process believes to be one of a cluster", "unset it if not")
    if environment.get("TF_USE_LEGACY_KERAS", "0").lower() in ("1", "true"):
        warn("TF_USE_LEGACY_KERAS", "is set: tf.keras is Keras 2", "unset it")
    if environment.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        warn("CUDA_VISIBLE_DEVICES", "hides every GPU", "unset it to use them")
    free = shutil.disk_usage(Path.cwd()).free
    if free < _SMALL_DISK:
        warn("Disk", f"{size_text(free)} free here", "make room, or run elsewhere")
    else:
        found.append(Finding("Surroundings", "Disk", f"{size_text(free)} free here"))
    if not os.access(Path.cwd(), os.W_OK):
        warn("Directory", "cannot be written to", "run elsewhere, or give run_dir=")
    if sys.platform != "win32":
        import resource

        files, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        if 0 <= files < _FEW_FILES:
            raised = _FEW_FILES if most < 0 else min(most, 65536)
            warn("Open files", f"at most {files}", f"ulimit -n {raised}")
    return found


def probe_tensorflow(timeout_s: float, probe: str = _PROBE) -> list[Finding]:
    """Load TensorFlow in another process and let it multiply."""
    section = "TensorFlow"
    reinstall = 'pip install --force-reinstall "towerpack[tf]"'
    command = [sys.executable, "-P", "-c", probe]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        text = f"did not load within {timeout_s:g} s"
        return [Finding(section, "Loading", text, "error", "a larger --timeout, or " + reinstall)]
    answers = [line for line in done.stdout.splitlines() if line.startswith("PROBE")]
    if done.returncode != 0 or not answers:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        signal = f" by signal {-done.returncode}" if done.returncode < 0 else ""
        return [Finding(section, "Loading", f"failed{signal}: {last}", "error", reinstall)]
    told: dict[str, Any] = json.loads(answers[-1].removeprefix("PROBE"))
    text = f"TensorFlow {told['tensorflow']}, Keras {told['keras']} in {told['seconds']:.1f} s"
    found = [Finding(section, "Loading", text)]
    if told["backend"] != "tensorflow":
        fix = "unset KERAS_BACKEND, or set it in ~/.keras/keras.json to 'tensorflow'"
        found.append(Finding(section, "Backend", f"is {told['backend']!r}", "error", fix))
    if not told["computes"]:
        found.append(Finding(section, "Computing", "ones times ones is wrong", "error", reinstall))
    for name, kind in told["devices"]:
        found.append(Finding(section, name.removeprefix("/physical_device:"), kind or "usable"))
    within, between = (told[kind] or "as many as processors" for kind in ("intra", "inter"))
    found.append(Finding(section, "Threads", f"{within} within an op, {between} between ops"))
    found += _gpu(told) + _channels_first(told)
    return found


def _gpu(told: Mapping[str, Any]) -> list[Finding]:
    if any("GPU" in name for name, _ in told["devices"]):
        return []
    if shutil.which("nvidia-smi") is None:
        return [Finding("TensorFlow", "GPU", "none", "note")]
    fix = 'pip install "tensorflow[and-cuda]"'
    return [Finding("TensorFlow", "GPU", "there is one that TensorFlow cannot use", "warning", fix)]


def _channels_first(told: Mapping[str, Any]) -> list[Finding]:
    """Report whether convolutions with data_format="channels_first" work on this machine.

    On a CPU they need oneDNN, which TensorFlow switches on for some CPUs only
    (`DefaultOneDnnPolicy` in its `core/util/port.cc`). So the convolution itself was tried.
    """
    if told["channels_first"] or any("GPU" in name for name, _ in told["devices"]):
        return []
    text = "convolutions and pooling in channels_first (NCHW) fail on this CPU"
    fix = (
        'use data_format="channels_last"; on x86 also possible: set TF_ENABLE_ONEDNN_OPTS=1 before '
        "TensorFlow is imported, but then tf.function may make 0 of NaN at a relu"
    )
    return [Finding("TensorFlow", "channels_first", text, "note", fix)]


def show(console: Console, findings: Sequence[Finding]) -> None:
    """Print the report."""
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
    told = [f"{n} {level}{'s' if n > 1 else ''}" for level, n in counts.items() if n]
    colour = "red" if counts["error"] else "yellow" if counts["warning"] else "green"
    console.print(f"[bold {colour}]{' and '.join(told) or 'All is well'}.")
