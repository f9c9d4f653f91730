"""CURVE keys of ZeroMQ, which encrypt remote data and authenticate both sides.

The side that binds is the server. It accepts clients whose public keys are in `allowed/`:

    keys/server.key_secret     server only
    keys/allowed/client.key    server: public key of a client
    keys/server.key            clients: public key of the server
    keys/client.key_secret     client only
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from towerpack._core.errors import ConfigError
from towerpack._core.extras import require
from towerpack.dataflow._user_files import path_of
from towerpack.dataflow.arguments import names_of

Keys = str | os.PathLike[str] | None
"""Folder that `generate_keys` created, or one secret file in it."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def generate_keys(path: str | os.PathLike[str], clients: Sequence[str] = ("client",)) -> Path:
    """Generate the keys that encrypt remote data and authenticate both sides.

    Only their owner can read secret files. If the folder has a server's keys, keys of further
    clients are added. Nothing is overwritten.

    Args:
        path: Folder, which is created if it is missing.
        clients: Names of the clients. Several producers may share a key. A client with a separate
            key is locked out by deleting `allowed/<name>.key`.

    Returns:
        The folder, to be passed as `keys=` on both sides.

    Raises:
        ConfigError: A name is invalid, its keys exist, or the folder cannot be created.
    """
    folder = path_of(path)
    clients = names_of(clients)
    for name in clients:
        if _NAME.fullmatch(name) is None or name == "server":
            raise ConfigError(
                f"{name!r} is not a valid name of a client.",
                expected='letters, digits, dots, dashes and underscores, and not "server"',
            )
        if (folder / f"{name}.key_secret").exists():
            raise ConfigError(
                f"The file {folder / name}.key_secret exists already.",
                fix="choose another name, or delete the file and its public key in allowed/",
            )
    try:
        (folder / "allowed").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"The folder {folder} cannot be created: {error.strerror}.") from error
    auth: Any = require("zmq.auth", extra="remote", needed_for="Keys")
    names = clients if (folder / "server.key_secret").exists() else ["server", *clients]
    before = os.umask(0o077)
    try:
        for name in names:
            public, _ = auth.create_certificates(folder, name)
            os.chmod(public, 0o644)
            if name != "server":
                os.replace(public, folder / "allowed" / f"{name}.key")
    finally:
        os.umask(before)
    return folder


def set_keys(socket: Any, keys: Keys, *, bind: bool) -> Any:
    """Set the keys of a new socket. For a server, return an authenticator to stop later."""
    path = Path(keys or "")
    folder = path if path.is_dir() else path.parent
    if not bind:
        file = _client_secret(folder) if path.is_dir() else path
        socket.curve_publickey, socket.curve_secretkey = _pair(file, secret=True)
        socket.curve_serverkey, _ = _pair(folder / "server.key")
        return None
    _, socket.curve_secretkey = _pair(folder / "server.key_secret", secret=True)
    socket.curve_server = True
    if not [_pair(file) for file in (folder / "allowed").glob("*.key")]:
        raise ConfigError(
            f"{folder / 'allowed'} has no keys, so no client could connect.",
            fix="copy the clients' public keys there, or create keys with `towerpack data keys`",
        )
    module: Any = require("zmq.auth.thread", extra="remote", needed_for="Keys")
    authenticator = module.ThreadAuthenticator(socket.context)
    authenticator.start()
    authenticator.configure_curve(domain="*", location=os.fspath(folder / "allowed"))
    return authenticator


def _client_secret(folder: Path) -> Path:
    files = sorted(set(folder.glob("*.key_secret")) - {folder / "server.key_secret"})
    usual = [file for file in files if file.stem == "client"] or files
    if len(usual) != 1:
        raise ConfigError(
            f"{folder} must have exactly one client's secret key.",
            got=", ".join(file.name for file in files) or "no client's secret key",
            fix="pass the secret file itself as keys=, with server.key in the same folder",
        )
    return usual[0]


def _pair(file: Path, *, secret: bool = False) -> tuple[bytes, bytes | None]:
    """Return the public and the secret key in a file. With `secret`, the file must have both."""
    auth: Any = require("zmq.auth", extra="remote", needed_for="Keys")
    zmq: Any = require("zmq", extra="remote", needed_for="Keys")
    try:
        public_key, secret_key = auth.load_certificate(file)
        valid = secret_key is None or zmq.curve_public(secret_key) == public_key
        if len(public_key) != 40 or not valid:
            raise ValueError("no pair of keys")
        if secret and secret_key is None:
            raise ValueError("it has no secret key")
    except (OSError, ValueError, zmq.ZMQError) as error:
        raise ConfigError(
            f"The key {file} cannot be read: {error}.",
            fix="create keys with `towerpack data keys`, and copy them as its help says",
        ) from error
    if secret and os.name == "posix" and stat.S_IMODE(file.stat().st_mode) & 0o077:
        raise ConfigError(
            f"The secret key {file} can be read by other users.", fix=f"run `chmod 600 {file}`"
        )
    return public_key, secret_key
