"""Python that has imported TensorFlow already, for tests that start many programs.

An import takes four seconds of CPU time. Here one process of a test run has done it, and programs
are forks of it, which TensorFlow allows to a process that has used nothing of it. What a test
starts is a small stand-in: it lends the fork its directory, environment, streams and the signals
that it gets, ends with its exit code, and takes it along when it is killed.

A program here has another process number than what the test has started, and leads a group of its
own. Where one of these matters, or importing itself, a test takes `sys.executable`.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from typing import Any

_FORWARDED = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGCONT,
)  # fmt: skip
_lease: Any = None
"""Keeps the server alive: it ends when no pytest process has one any more."""


def warm_python(*, children: bool = False) -> list[str]:
    """The beginning of a command, in place of `[sys.executable]`: a file, -, -c or -m follows.

    Args:
        children: What the program starts as `sys.executable` is warm, too. Not for one that has
            workers in processes: these need the open files that Python hands over.
    """
    global _lease
    import tempfile
    from pathlib import Path

    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", f"{os.getpid()}")
    folder = Path(tempfile.gettempdir(), f"warm-python-{run}")
    if _lease is None:
        _lease = _lease_of(folder)
    return [f"{folder}/python"] if children else _command(folder)


def _command(folder: Any) -> list[str]:
    return [sys.executable, "-S", "-E", __file__, "start", f"{folder}/socket"]


def _lease_of(folder: Any) -> Any:
    """A connection to the server, which the first pytest process starts and the others share."""
    import atexit
    import fcntl
    import shlex
    import subprocess

    folder.mkdir(mode=0o700, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "python").exists():
            command = [sys.executable, __file__, "serve", str(folder)]
            server = subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True)
            if server.stdout is None or server.stdout.readline() != b"ready\n":
                raise RuntimeError(f"{command} did not start")
            server.stdout.close()
            server.returncode = 0  # it may outlive this process, which Python would complain about
            script = folder / "python"
            start = shlex.join(_command(folder))
            script.write_text(f'#!/bin/sh\nWARM_EXECUTABLE="$0" exec {start} "$@"\n')
            script.chmod(0o755)
        lease = socket.socket(socket.AF_UNIX)
        lease.connect(f"{folder}/lease")
        atexit.register(lease.close)
        return lease


def _start(address: str, arguments: list[str]) -> None:
    """The stand-in: has the program run, and ends as it does."""
    import pickle

    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(address)
        program = pickle.dumps((arguments, os.getcwd(), dict(os.environ)))
        socket.send_fds(server, [len(program).to_bytes(8)], [0, 1, 2])
        server.sendall(program)
        process = int.from_bytes(server.recv(8)) or sys.exit("the server of warm_python has ended")
        for number in _FORWARDED:
            signal.signal(number, lambda number, _: os.kill(process, number))
        # The kernel lets no terminal stop a group that leads a session.
        signal.signal(signal.SIGTSTP, lambda *_: os.kill(process, signal.SIGSTOP))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)
        # Whoever reads a stream to its end waits for the program alone.
        os.closerange(0, 3)
        code = int.from_bytes(server.recv(8) or b"\x7f", signed=True)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code)


def _serve(folder: str) -> list[str]:
    """Returns in a fork of this process, once for each program: the arguments of Python."""
    import contextlib
    import gc
    import pickle
    import select
    import shutil

    import keras
    import tensorflow

    from towerpack import nn, training

    # Imported when they are first asked for.
    _ = keras.Model, tensorflow.function, nn.FullyConnected, training.SimpleTrainer
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as lessor:
        listener.bind(f"{folder}/socket")
        lessor.bind(f"{folder}/lease")
        listener.listen(64)
        lessor.listen(64)
        lessor.settimeout(60)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        print("ready", flush=True)
        leases = [lessor.accept()[0]]
        programs: dict[int, socket.socket] = {}
        """The connection to the stand-in by the handle of the process that keeps the program."""
        while leases:
            ready = select.select([listener, lessor, *leases, *programs], [], [])[0]
            leases = [one for one in leases if one not in ready]  # readable: the other end is gone
            for keeper in [keeper for keeper in programs if keeper in ready]:
                _forget(programs, keeper)
            if lessor in ready:
                leases.append(lessor.accept()[0])
            if listener not in ready:
                continue
            client, _ = listener.accept()
            _await_killed(programs)
            if keeper := os.fork():
                with contextlib.suppress(ProcessLookupError):  # it has ended
                    programs[os.pidfd_open(keeper)] = client
                continue
            for keeper in list(programs):
                _forget(programs, keeper)
            listener.close()
            lessor.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            with client:
                size, streams, *_ = socket.recv_fds(client, 8, 3)
                with client.makefile("rb") as file:
                    arguments, directory, environment = pickle.loads(
                        file.read(int.from_bytes(size))
                    )
                if process := os.fork():
                    _keep(client, process)
            os.setsid()
            for stream in range(3):
                os.dup2(streams[stream], stream)
                os.close(streams[stream])
            os.chdir(directory)
            os.environ.clear()
            os.environ.update(environment)
            return arguments
    shutil.rmtree(folder, ignore_errors=True)
    sys.exit()


def _await_killed(programs: dict[int, socket.socket]) -> None:
    """Wait for the programs whose stand-ins were killed, since a test that has waited for a
    stand-in takes its program for dead, and starts another one on the same files."""
    import select

    for keeper, client in list(programs.items()):
        ends = select.poll()
        ends.register(client, 0)
        if ends.poll(0):
            select.select([keeper], [], [], 60)
            _forget(programs, keeper)


def _forget(programs: dict[int, socket.socket], keeper: int) -> None:
    programs.pop(keeper).close()
    os.close(keeper)


def _keep(client: socket.socket, process: int) -> None:
    """Kills the program when its stand-in has died; tells that one how the program ended."""
    import contextlib
    import select

    os.closerange(0, 3)
    with contextlib.suppress(OSError):
        client.sendall(process.to_bytes(8))
        if client in select.select([client, os.pidfd_open(process)], [], [])[0]:
            os.kill(process, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        client.sendall(code.to_bytes(8, signed=True))
    os._exit(0)


def _run(arguments: list[str]) -> None:
    """What `python ARGUMENTS` does, in a process that has just been forked."""
    import runpy
    import types

    encoding, _, errors = os.environ.get("PYTHONIOENCODING", "utf-8").partition(":")
    how: dict[str, Any] = {"encoding": encoding, "closefd": False}
    sys.stdin = os.fdopen(0, errors=errors or None, **how)
    sys.stdout = os.fdopen(1, "w", errors=errors or None, **how)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", **how)
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)
    sys.executable = os.environ.pop("WARM_EXECUTABLE", sys.executable)
    sys.orig_argv = [sys.executable, *arguments]
    option, *rest = arguments
    if option == "-P":  # The folder of the program is no place for modules.
        option, *rest = rest
    if option == "-m":
        sys.argv = rest
        sys.path[0] = os.getcwd()
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        return
    main = types.ModuleType("__main__")
    if option == "-c":
        sys.argv = ["-c", *rest[1:]]
        sys.path[0] = ""
        code = compile(rest[0], "<string>", "exec")
    elif option == "-":
        sys.argv = arguments
        sys.path[0] = ""
        code = compile(sys.stdin.read(), "<stdin>", "exec")
    else:
        sys.argv = arguments
        sys.path[0] = os.path.dirname(os.path.abspath(option))
        main.__file__ = option
        with open(option, "rb") as file:
            code = compile(file.read(), option, "exec")
    sys.modules["__main__"] = main
    exec(code, main.__dict__)


if __name__ == "__main__":
    if sys.argv[1] == "start":
        _start(sys.argv[2], sys.argv[3:])
    _run(_serve(sys.argv[2]))
