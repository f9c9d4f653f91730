"""CURVE keys: made, kept in files of ZeroMQ's own format, and given to sockets.

The side that binds is the server. It shows its key to those who connect, and lets in those whose
public keys lie in `allowed/`:

    keys/server.key_secret     for the side that binds, and nobody else
    keys/allowed/client.key    for the side that binds: who may connect
    keys/server.key            for the sides that connect
    keys/client.key_secret     for the side that connects, and nobody else
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
"""Where keys lie: the folder that `generate_keys` made, or one secret file in it."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


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
        if (folder / f"{name}.key_secret").exists():
            raise ConfigError(
                f"{folder / name}.key_secret exists.",
                fix="choose another name, or delete it and its file in allowed/",
            )
    try:
        (folder / "allowed").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"The folder {folder} cannot be made: {error.strerror}.") from error
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


def give_keys(socket: Any, keys: Keys, *, bind: bool) -> Any:
    """Make a socket, not yet bound or connected, use keys; what lets clients in is to `stop()`."""
    path = Path(keys or "")
    folder = path if path.is_dir() else path.parent
    if not bind:
        own = _own_secret(folder) if path.is_dir() else path
        socket.curve_publickey, socket.curve_secretkey = _pair(own, secret=True)
        socket.curve_serverkey, _ = _pair(folder / "server.key")
        return None
    _, socket.curve_secretkey = _pair(folder / "server.key_secret", secret=True)
    socket.curve_server = True
    if not [_pair(file) for file in (folder / "allowed").glob("*.key")]:
        raise ConfigError(
            f"{folder / 'allowed'} holds no keys, so nobody could connect.",
            fix="`towerpack data keys` makes them; copy the clients' public keys to there",
        )
    module: Any = require("zmq.auth.thread", extra="remote", needed_for="Keys")
    door = module.ThreadAuthenticator(socket.context)
    door.start()
    door.configure_curve(domain="*", location=os.fspath(folder / "allowed"))
    return door


def _own_secret(folder: Path) -> Path:
    found = sorted(set(folder.glob("*.key_secret")) - {folder / "server.key_secret"})
    usual = [file for file in found if file.stem == "client"] or found
    if len(usual) != 1:
        raise ConfigError(
            f"{folder} does not say which key is this side's own.",
            got=", ".join(file.name for file in found) or "no client's secret key",
            fix="pass the secret file itself as keys=, with server.key beside it",
        )
    return usual[0]


def _pair(file: Path, *, secret: bool = False) -> tuple[bytes, bytes | None]:
    """The public key in a file, and the secret one, which a `secret` file must have."""
    auth: Any = require("zmq.auth", extra="remote", needed_for="Keys")
    zmq: Any = require("zmq", extra="remote", needed_for="Keys")
    try:
        public, own = auth.load_certificate(file)
        if len(public) != 40 or (own is not None and zmq.curve_public(own) != public):
            raise ValueError("no pair of keys")
        if secret and own is None:
            raise ValueError("it holds no secret key")
    except (OSError, ValueError, zmq.ZMQError) as error:
        raise ConfigError(
            f"The key {file} cannot be read: {error}.",
            fix="`towerpack data keys` makes keys; see what belongs on which side in its help",
        ) from error
    if secret and os.name == "posix" and stat.S_IMODE(file.stat().st_mode) & 0o077:
        raise ConfigError(f"The secret key {file} can be read by others.", fix=f"chmod 600 {file}")
    return public, own
