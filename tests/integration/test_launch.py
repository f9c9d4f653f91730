"""`towerpack launch`, with scripts that do not train."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from processes import communicate, is_alive, wait_until
from scaling import sample

pytestmark = [
    pytest.mark.timeout(60),
    pytest.mark.skipif(sys.platform == "win32", reason="process groups"),
]

# What every script begins with.
PRELUDE = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
task = json.loads(os.environ["TF_CONFIG"])["task"]
me, life = f"{task['type']}{task['index']}", int(os.environ["TOWERPACK_RESTART"])

def is_there(name):  # written by all, before one acts on the others
    while not Path(name).exists():
        time.sleep(0.01)

def stay(number=signal.SIGTERM, status=None):
    "Stay until the signal comes, which is noted, and then end with a status, or not."
    def on_signal(number, frame):
        with open(me + ".signals", "a") as file:
            file.write(f"{number} ")
        if status is not None:
            time.sleep(0.1)
            sys.exit(status)
    signal.signal(number, on_signal)
    child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(100)"])
    Path(me + ".part").write_text(f"{os.getpid()} {child.pid}")
    os.rename(me + ".part", me)
    for _ in range(1000):
        time.sleep(0.1)
"""


def launch(folder: Path, script: str, *options: str) -> subprocess.Popen[str]:
    (folder / "script.py").write_text(PRELUDE + textwrap.dedent(script))
    command = [
        sys.executable,
        "-m",
        "towerpack",
        "launch",
        *options,
        "--",
        "script.py",
        "--lr",
        "1",
    ]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, stdout=pipe, stderr=pipe, text=True)


def finished(folder: Path, script: str, *options: str) -> tuple[int, str, str]:
    process = launch(folder, script, *options)
    out, err = communicate(process, 20)
    return process.returncode, out, err


def there(folder: Path, *names: str) -> list[int]:
    """Process numbers of tasks that have come to `stay`, and of their children."""
    assert wait_until(lambda: all((folder / name).exists() for name in names), 20)
    return [int(n) for name in names for n in (folder / name).read_text().split()]


def all_ended(pids: list[int]) -> bool:
    return wait_until(lambda: not any(map(is_alive, pids)), 10)


def test_each_finds_its_place_and_its_lines_have_its_name(tmp_path: Path) -> None:
    script = """
    print(os.environ["TF_CONFIG"], *sys.argv[1:])
    sys.stderr.write("\\r0 of 2\\r1 of 2")
    time.sleep(0.1)
    sys.stderr.write("\\r2 of 2\\nwindows\\r\\n\\r0 of 1\\r1 of 1\\n")
    sys.stdout.write("no end")
    sys.exit(0 if me == "worker0" else time.sleep(0.3))
    """
    code, out, err = finished(tmp_path, script, "--workers", "2")
    assert code == 0
    clusters = []
    for i in range(2):
        mine = [line for line in out.splitlines() if line.startswith(f"[worker {i}] ")]
        assert mine[1] == f"[worker {i}] no end"
        text, _, rest = mine[0].removeprefix(f"[worker {i}] ").partition("}} ")
        config = json.loads(text + "}}")
        assert (config["task"], rest) == ({"type": "worker", "index": i}, "--lr 1")
        clusters.append(config["cluster"])
        assert err.count(f"[worker {i}] 2 of 2\n[worker {i}] windows\n[worker {i}] 1 of 1\n") == 1
    assert clusters[0] == clusters[1]
    assert len(set(clusters[0]["worker"])) == 2
    assert (len(out.splitlines()), len(err.splitlines())) == (4, 6)


def test_a_module_is_run_without_a_prompt(tmp_path: Path) -> None:
    (tmp_path / "module.py").write_text("print(__name__, repr(input()))")
    command = [sys.executable, "-m", "towerpack", "launch", "--workers", "1", "--", "-m", "module"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, input="text\n")
    assert done.returncode == 1
    assert "[worker 0] EOFError" in done.stderr
    done = subprocess.run([*command[:-2], "none.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "must be an existing file, got 'none.py'" in done.stderr


@pytest.mark.parametrize(
    ("how", "status"),
    sample([("sys.exit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", 137)]),
)
def test_when_one_fails_all_end(tmp_path: Path, how: str, status: int) -> None:
    """One that ends by itself, one that does not, with a child each."""
    script = f"""
    if me == "worker1":
        is_there("worker0"), is_there("worker2")
        {how}
    stay(status=0 if me == "worker0" else None)
    """
    code, _, err = finished(tmp_path, script, "--workers", "3", "--grace", "0.3")
    assert code == status
    assert re.search(rf"worker 1 \(127.0.0.1:\d+\) ended first, with exit status {status}", err)
    assert "worker 2" in err and "Killed it" in err
    assert (tmp_path / "worker0.signals").read_text() == "15 "
    assert all_ended(there(tmp_path, "worker0", "worker2"))


def test_a_killed_launcher_leaves_nothing(tmp_path: Path) -> None:
    process = launch(tmp_path, "stay()", "--workers", "2")
    pids = there(tmp_path, "worker0", "worker1")
    assert all(map(is_alive, pids))
    process.kill()
    communicate(process, 20)
    assert all_ended(pids)


@pytest.mark.parametrize(
    ("number", "passed_on"),
    sample(
        [
            (signal.SIGHUP, signal.SIGTERM),
            (signal.SIGINT, signal.SIGINT),
            (signal.SIGTERM, signal.SIGTERM),
        ],
        at_least=2,
    ),
)
def test_signals_are_passed_on_once(
    tmp_path: Path, number: signal.Signals, passed_on: signal.Signals
) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip(f"{number.name} is ignored here, as below nohup")
    script = f"stay(signal.{passed_on.name}, status=143)"
    process = launch(tmp_path, script, "--workers", "2", "--max-restarts", "3")
    pids = there(tmp_path, "worker0", "worker1")
    process.send_signal(number)
    communicate(process, 20)
    assert process.returncode == 128 + number
    for name in ("worker0", "worker1"):
        assert (tmp_path / f"{name}.signals").read_text() == f"{passed_on.value} "
    assert all_ended(pids)


def test_a_second_ctrl_c_kills(tmp_path: Path) -> None:
    process = launch(tmp_path, "stay(signal.SIGINT)", "--workers", "1")
    pids = there(tmp_path, "worker0")
    process.send_signal(signal.SIGINT)
    there(tmp_path, "worker0.signals")
    process.send_signal(signal.SIGINT)
    communicate(process, 20)
    assert process.returncode == 130
    assert all_ended(pids)


def test_all_are_started_again(tmp_path: Path) -> None:
    """The first lives fail, the pauses double, and addresses are new in each."""
    script = """
    print("life", life, json.loads(os.environ["TF_CONFIG"])["cluster"])
    if life == 2:
        sys.exit(0)
    if me == "worker0":
        sys.exit(5)
    stay(status=143)
    """
    options = ["--workers", "2", "--max-restarts", "2", "--backoff", "0.05"]
    code, out, err = finished(tmp_path, script, *options)
    assert code == 0
    lives = dict(re.findall(r"life (\d) (.*)", out))
    assert len(set(lives.values())) == len(lives) == 3
    told = re.findall(r"restart in (\S+) s \(restart (\d) of (\d)\)", err)
    assert told == [("0.05", "1", "2"), ("0.1", "2", "2")]
    assert err.count("worker 0 (127.0.0.1:") == 2


@pytest.mark.parametrize(("options", "lives"), sample([([], 3), (["--min-life", "0"], 5)]))
def test_a_crash_loop_is_given_up(tmp_path: Path, options: list[str], lives: int) -> None:
    options = [*options, "--workers", "1", "--max-restarts", "4", "--backoff", "0.01"]
    code, out, err = finished(tmp_path, "print('life'); sys.exit(7)", *options)
    assert (code, out.count("life")) == (7, lives)
    assert ("3 times in a row within 60 s" in err) == (lives == 3)


@pytest.mark.parametrize("most", [0, 1])
def test_a_job_is_started_again_as_often_as_it_says(tmp_path: Path, most: int) -> None:
    options = ["--workers", "1", "--max-restarts", str(most), "--backoff", "0.01"]
    code, out, _ = finished(tmp_path, "print('life', life); sys.exit(7)", *options)
    assert (code, re.findall(r"life (\d)", out)) == (7, [str(life) for life in range(most + 1)])


def test_a_preempted_job_is_not_started_again(tmp_path: Path) -> None:
    script = "stay(status=143)"
    process = launch(tmp_path, script, "--workers", "2", "--max-restarts", "3")
    pids = there(tmp_path, "worker0", "worker1")
    os.kill(pids[2], signal.SIGTERM)
    _, err = communicate(process, 20)
    assert process.returncode == 143
    assert re.search(r"worker 1 \(\S+\) was asked to end", err) and "restart" not in err
    assert all_ended(pids)


def test_a_server_is_started_again_alone(tmp_path: Path) -> None:
    """At its address, while the chief goes on, and as often as all may be."""
    script = """
    print(me, "life", life, json.loads(os.environ["TF_CONFIG"])["cluster"])
    if me == "chief0":
        is_there("ps0-3")
        sys.exit(0)
    Path(f"{me}-{life}").touch()
    if me == "ps0" and life < 3:
        is_there("worker0-0")
        sys.exit(9)
    stay(status=0)
    """
    options = ["--workers", "1", "--ps", "1", "--backoff", "0.01", "--max-restarts"]
    code, out, err = finished(tmp_path, script, *options, "3")
    assert code == 0, err
    assert sorted(re.findall(r"(\w+) life (\d)", out)) == [
        ("chief0", "0"), *[("ps0", f"{life}") for life in range(4)], ("worker0", "0"),
    ]  # fmt: skip
    assert len(set(re.findall(r"life \d (.*)", out))) == 1
    assert err.count("ended with exit status 9 and restarts in") == 3
    less = tmp_path / "less"
    less.mkdir()
    code, _, err = finished(less, script, *options, "2")
    assert code == 9 and err.count("restarts in") == 2 and "ps 0 (127.0.0.1" in err


@pytest.mark.parametrize("interrupted", sample([True, False]))
def test_servers_end_after_the_chief(tmp_path: Path, interrupted: bool) -> None:
    script = f"""
    if me != "chief0":
        stay(status=0)
    for name in ("worker0", "ps0"):
        is_there(name)
    if not {interrupted}:
        sys.exit(0)
    def on_signal(number, frame):  # a chief that saves needs the servers
        time.sleep(0.3)
        print("signals", *Path().glob("*.signals"))
        sys.exit(143)
    signal.signal(signal.SIGTERM, on_signal)
    Path("chief0").write_text(f"{{os.getpid()}}")
    time.sleep(100)
    """
    process = launch(tmp_path, script, "--workers", "1", "--ps", "1")
    pids = there(tmp_path, "worker0", "ps0", *(["chief0"] if interrupted else []))
    if interrupted:
        process.terminate()
    out, _ = communicate(process, 20)
    assert process.returncode == (143 if interrupted else 0)
    assert out == ("[chief 0] signals\n" if interrupted else "")
    assert all_ended(pids)
    assert (tmp_path / "ps0.signals").read_text() == "15 "
