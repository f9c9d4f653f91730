"""CURVE keys: made, kept in files, and asked for when somebody connects.

The side that binds is the server. It shows its key to those who connect, and lets in those whose
public keys lie in `allowed/`:

    keys/server.key_secret     for the side that binds, and nobody else
    keys/allowed/client.key    for the side that binds: who may connect
    keys/server.key            for the sides that connect
    keys/client.key_secret     for the side that connects, and nobody else

The files are in the format of ZeroMQ's own tools.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from towerpack._core.errors import ConfigError
from towerpack._core.extras import require
from towerpack._core.files import write_bytes_synced
from towerpack.dataflow._arguments import names_of
from towerpack.dataflow._opening import path_of

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_KEY: Final = re.compile(r'^\s*(public|secret)-key\s*=\s*"([^"\s]{40})"\s*$', re.MULTILINE)
_MOST_BYTES: Final = 1 << 16


@dataclass(frozen=True)
class ServerKeys:
    """What the side that binds needs; `allowed` holds raw public keys of 32 bytes."""

    public: bytes
    secret: bytes
    allowed: frozenset[bytes]


@dataclass(frozen=True)
class ClientKeys:
    """What a side that connects needs."""

    public: bytes
    secret: bytes
    server: bytes


def generate_keys(path: str | os.PathLike[str], clients: Sequence[str] = ("client",)) -> Path:
    """Make the keys with which remote data are encrypted, and both sides authenticated.

    Secret files can be read by their owner only. In a folder that holds a server's keys already,
    keys of further clients are added; nothing is overwritten.

    Args:
        path: A folder, made if it is not there.
        clients: Names for those who connect. One key may be used by several producers; with keys of
            their own, one can be shut out by deleting `allowed/<name>.key`.

    Returns:
        The folder: pass it as `keys=` on both sides.

    Raises:
        ConfigError: A name is not one for a file, or its keys exist; or the folder is none.
    """
    folder = path_of(path)
    clients = names_of(clients)
    for name in clients:
        if _NAME.fullmatch(name) is None or name == "server":
            raise ConfigError(
                f"{name!r} is not a name for a client's keys.",
                expected='letters, digits, dots and dashes, and not "server"',
            )
        if _secret_file(folder, name).exists():
            raise ConfigError(
                f"{_secret_file(folder, name)} exists.",
                fix="choose another name, or delete it and its file in allowed/",
            )
    try:
        (folder / "allowed").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"The folder {folder / 'allowed'} cannot be made: {error.strerror}.",
            expected="a folder for keys, or a path where nothing is",
        ) from error
    if not _secret_file(folder, "server").exists():
        _write_pair(_secret_file(folder, "server"), folder / "server.key")
    for name in clients:
        _write_pair(_secret_file(folder, name), folder / "allowed" / f"{name}.key")
    return folder


def server_keys(keys: str | os.PathLike[str]) -> ServerKeys:
    """Read what the side that binds needs.

    Raises:
        ConfigError: A file is missing, damaged, or readable by others.
    """
    folder = Path(keys)
    folder = folder if folder.is_dir() else folder.parent
    public, secret = _read_secret(_secret_file(folder, "server"))
    files = sorted((folder / "allowed").glob("*.key"))
    if not files:
        raise ConfigError(
            f"{folder / 'allowed'} holds no keys, so nobody could connect.",
            fix="`towerpack data keys` makes them; copy the clients' public keys to there",
        )
    allowed = frozenset(_raw(_read(file)["public"]) for file in files)
    return ServerKeys(public, secret, allowed)


def client_keys(keys: str | os.PathLike[str]) -> ClientKeys:
    """Read what a side that connects needs.

    Raises:
        ConfigError: A file is missing, damaged, or readable by others; or it is not clear which.
    """
    path = Path(keys)
    folder = path if path.is_dir() else path.parent
    public, secret = _read_secret(_own_secret(folder) if path.is_dir() else path)
    return ClientKeys(public, secret, _read(folder / "server.key")["public"])


class Doorkeeper:
    """Answers ZeroMQ's question whether a public key may connect (ZAP, RFC 27).

    Args:
        context: Of the sockets that ask.
        allowed: Raw public keys.
    """

    def __init__(self, context: Any, allowed: frozenset[bytes]) -> None:
        zmq: Any = require("zmq", extra="remote", needed_for="Keys")
        self._zmq = zmq
        self._allowed = allowed
        self.refused = 0
        self.socket: Any = context.socket(zmq.REP)
        self.socket.linger = 0
        self.socket.bind("inproc://zeromq.zap.01")

    def answer(self) -> None:
        """Answer all who wait."""
        while True:
            try:
                version, request, *rest = self.socket.recv_multipart(self._zmq.NOBLOCK)
            except self._zmq.Again:
                return
            good = len(rest) == 5 and rest[3] == b"CURVE" and rest[4] in self._allowed
            self.refused += not good
            code, text = (b"200", b"OK") if good else (b"400", b"not an allowed key")
            self.socket.send_multipart([version, request, code, text, b"", b""])


def _secret_file(folder: Path, name: str) -> Path:
    return folder / f"{name}.key_secret"


def _own_secret(folder: Path) -> Path:
    found = [file for file in folder.glob("*.key_secret") if file.name != "server.key_secret"]
    if len(found) == 1:
        return found[0]
    if _secret_file(folder, "client") in found:
        return _secret_file(folder, "client")
    raise ConfigError(
        f"{folder} does not say which key is this side's own.",
        got=", ".join(sorted(file.name for file in found)) or "no client's secret key",
        fix="pass the secret file itself as keys=, with server.key beside it"
        if found
        else "`towerpack data keys` makes keys; copy the folder to here",
    )


def _write_pair(secret_file: Path, public_file: Path) -> None:
    zmq: Any = require("zmq", extra="remote", needed_for="Keys")
    public, secret = (key.decode() for key in zmq.curve_keypair())
    content = f'metadata\ncurve\n    public-key = "{public}"\n'
    fd = os.open(secret_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(fd, "w") as file:
        file.write(f'{content}    secret-key = "{secret}"\n')
    write_bytes_synced(public_file, content.encode())


def _read_secret(file: Path) -> tuple[bytes, bytes]:
    found = _read(file)
    if os.name == "posix" and stat.S_IMODE(file.stat().st_mode) & 0o077:
        raise ConfigError(f"The secret key {file} can be read by others.", fix=f"chmod 600 {file}")
    zmq: Any = require("zmq", extra="remote", needed_for="Keys")
    try:
        matches = zmq.curve_public(found["secret"]) == found["public"]
    except (KeyError, ValueError, zmq.ZMQError):
        matches = False
    if not matches:
        raise _damaged(file, "a public key and the secret key that belongs to it")
    return found["public"], found["secret"]


def _read(file: Path) -> dict[str, bytes]:
    try:
        with file.open("rb") as opened:
            text = opened.read(_MOST_BYTES).decode(errors="replace")
    except OSError as error:
        raise ConfigError(
            f"The key {file} cannot be read: {error.strerror}.",
            fix="`towerpack data keys` makes keys; see what belongs on which side in its help",
        ) from error
    found = {kind: key.encode() for kind, key in _KEY.findall(text)}
    try:
        _raw(found["public"])
    except (KeyError, ValueError, struct.error) as error:
        raise _damaged(file, "a public key") from error
    return found


def _raw(key: bytes) -> bytes:
    """The 32 bytes that 40 printable ones stand for."""
    z85: Any = require("zmq.utils.z85", extra="remote", needed_for="Keys")
    return z85.decode(key)


def _damaged(file: Path, expected: str) -> ConfigError:
    return ConfigError(
        f"{file} is damaged, or no file of keys.",
        expected=expected,
        fix="copy it again, or make new keys",
    )
