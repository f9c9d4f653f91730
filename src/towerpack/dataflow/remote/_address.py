"""Which addresses there are, and which of them need keys."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
import stat
from typing import Final, cast

from towerpack._core.errors import ConfigError
from towerpack.dataflow._arguments import given

Keys = str | os.PathLike[str] | None
"""Where keys lie: the folder that `generate_keys` made, or one secret file in it."""

_TCP: Final = re.compile(r"(?P<host>\[[^\[\]]+\]|[^\[\]:;]+):(?P<port>\d+)")


def check_address(address: str, keys: Keys) -> None:
    """Refuse addresses that do not exist, and open ones without keys.

    Raises:
        ConfigError: The address is malformed, or other machines can reach it and there are no keys.
    """
    if not isinstance(cast("object", address), str):
        raise ConfigError("This is no address.", got=given(address), expected="tcp://host:port")
    scheme, _, rest = address.partition("://")
    if scheme not in ("tcp", "ipc", "inproc") or not rest:
        raise ConfigError(
            f"{address!r} is not an address of remote data.",
            expected="tcp://host:port, ipc://path or inproc://name",
        )
    if scheme != "tcp":
        return
    match = _TCP.fullmatch(rest)
    if match is None or not 0 < int(match["port"]) < 1 << 16:
        raise ConfigError(
            f"{address!r} does not name a host and a port.",
            expected="tcp://host:port with a port in 1..65535, e.g. tcp://127.0.0.1:5555",
        )
    if keys is None and not _is_loopback(match["host"]):
        raise ConfigError(
            f"{address} can be reached from other machines, and there are no keys.",
            expected="keys for everything but ipc://, inproc:// and tcp://127.0.0.1",
            fix="make keys (towerpack data keys FOLDER), copy them to both sides, and pass "
            "keys=FOLDER; or use tcp://127.0.0.1",
        )


def check_free(address: str) -> None:
    """Refuse to listen at a path where something is: ZeroMQ would delete it.

    (But for a socket at which nobody listens any more, which ends of processes leave behind.)

    Raises:
        ConfigError: There is a file or folder.
        OSError: Somebody listens there (`EADDRINUSE`, as of other addresses).
    """
    scheme, _, path = address.partition("://")
    if scheme != "ipc" or path.startswith("@"):  # of Linux: no path
        return
    try:
        mode = os.lstat(path).st_mode
    except (OSError, ValueError):
        return
    if not stat.S_ISSOCK(mode):
        raise ConfigError(
            f"{address} is a file or folder, and no socket.",
            fix="give a path where nothing is; it is made, and deleted, with the socket",
        )
    if _is_heard(path):
        raise OSError(errno.EADDRINUSE, "somebody listens there")


def _is_heard(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as visitor:
        visitor.settimeout(0)
        try:
            visitor.connect(path)
        except BlockingIOError:
            return True  # and many wait there to be let in
        except OSError:
            return False
        return True


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
