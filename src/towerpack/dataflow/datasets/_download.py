"""Directories of data sets, and files on web servers: fetched once, whole, checked."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from towerpack._core.errors import ConfigError, DataFlowError, FormatError
from towerpack._core.extras import require
from towerpack._core.files import fsync_dir
from towerpack._core.locks import locked
from towerpack._core.logs import get_logger
from towerpack.dataflow._progress import progress
from towerpack.dataflow._user_files import PathLike

log = get_logger(__name__)

_VARIABLES = ("TOWERPACK_DATA", "TENSORPACK_DATASET")
_DEFAULT = "~/towerpack-data"
_LOOK_AGAIN_S = 0.2
_REMIND_S = 30.0

_MOST_BYTES = 64 << 30
_READ = 1 << 18
_HEADERS = {"User-Agent": "towerpack", "Accept-Encoding": "identity"}
_LONGEST_PAUSE_S = 30.0
_TRY_AGAIN = {408, 425, 429}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

Address = str | Sequence[str] | None
"""One folder on a web server, several, or `None` for those that are known."""


def data_dir(name: str | None = None) -> Path:
    """The directory of all data sets, or of the one of a name; not created.

    `$TOWERPACK_DATA`, else `$TENSORPACK_DATASET`, else `~/towerpack-data`.
    """
    given = next((os.environ[name] for name in _VARIABLES if os.environ.get(name)), _DEFAULT)
    root = Path(given).expanduser()
    return root if name is None else root / name


def own_dir(dir: PathLike | None, name: str) -> Path:
    """The directory that was given, or a data set's own one."""
    return data_dir(name) if dir is None else Path(dir).expanduser()


@contextlib.contextmanager
def only_one(path: Path) -> Generator[None]:
    """Let one process at a time make `path`; the others wait here, and then look for it."""

    def tell(holder: str, waited: float) -> None:
        if waited % _REMIND_S < _LOOK_AGAIN_S:
            log.info("%s is being made by %s; waiting", path, holder)

    with locked(path.with_name(f".{path.name}.lock"), look_again_s=_LOOK_AGAIN_S, waiting=tell):
        yield


@dataclass(frozen=True)
class RemoteFile:
    """A file of a data set, in folders on web servers; size and checksum if known for sure."""

    name: str
    mirrors: tuple[str, ...]
    size: int | None = None
    checksum: str | None = None

    def at(self, base_url: Address, *, verify: bool = True) -> RemoteFile:
        """The same file elsewhere; with `verify=False`, any file of that name."""
        mirrors = (base_url,) if isinstance(base_url, str) else base_url
        moved = self if mirrors is None else replace(self, mirrors=tuple(mirrors))
        return moved if verify else replace(moved, size=None, checksum=None)

    def fetch(self, folder: Path) -> Path:
        """The file in `folder`, downloaded if it is not there."""
        urls = [f"{mirror.rstrip('/')}/{self.name}" for mirror in self.mirrors]
        return download(urls, folder / self.name, size=self.size, checksum=self.checksum)


def _target_of(given: PathLike, name: str) -> Path:
    """Path of the file to write. `given` may be its directory."""
    path = Path(given).expanduser()
    if str(given).endswith(os.sep) or path.is_dir():
        return path / name
    # Tensorpack takes a directory, as a string. A file usually has the suffix of the address.
    stem, suffix = os.path.splitext(name)
    unlike_file = suffix and not path.suffix and path.name != stem
    if isinstance(given, str) and unlike_file and not path.exists():
        raise ConfigError(
            f"download() does not know whether {given!r} is a directory or a file.",
            fix=f"write {given + '/'!r} for a directory; for a file without a suffix, pass a Path",
        )
    return path


def download(
    urls: str | Sequence[str],
    path: PathLike,
    *,
    checksum: str | None = None,
    size: int | None = None,
    max_bytes: int = _MOST_BYTES,
    retries: int = 3,
    timeout_s: float = 30.0,
    backoff_s: float = 1.0,
) -> Path:
    """Fetch a file, unless it is there.

    What is at `path` is whole: the bytes arrive beside it, are checked, and are renamed. Two
    processes that want one file fetch it once. What breaks off begins anew.

    Args:
        urls: Where it can be had, http or https, tried in turn.
        path: Where it shall be. A file that is there is returned as it is. In a directory, or with
            `/` at the end, the file has the name that the address has.
        checksum: `sha256:...` or `md5:...` in hexadecimal digits.
        size: Its bytes.
        max_bytes: More are refused.
        retries: How often all addresses are tried again, but those that refused.
        timeout_s: How long a server may be silent.
        backoff_s: Pause before the first retry; it doubles each time, up to 30 s.

    Returns:
        The path.

    Raises:
        ConfigError: `path` is a string that may be meant as a directory, which does not exist.
        DataFlowError: It cannot be had, or not be written.
        FormatError: What can be had is another file.
    """
    addresses = [urls] if isinstance(urls, str) else list(urls)
    path = _target_of(path, PurePosixPath(urlsplit(addresses[0]).path).name if addresses else "")
    if path.is_file():
        return path
    failures: dict[str, Exception] = {}
    most = min(max_bytes, size or max_bytes)
    fetch = partial(_fetch, path=path, checksum=checksum, size=size, most=most, timeout_s=timeout_s)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with only_one(path):
            if not path.is_file():
                failures = _try_all(addresses, fetch, retries, backoff_s)
    except OSError as error:
        got, fix = error.strerror or str(error), "or set TOWERPACK_DATA to another directory"
        first = "free some room" if error.errno in _FULL else "look at the directory's permissions"
        raise DataFlowError(f"{path} cannot be written.", got=got, fix=f"{first}, {fix}") from error
    if not path.is_file():
        other = any(not isinstance(error, OSError) for error in failures.values())
        kind = FormatError if other else DataFlowError
        got = "\n".join(f"{url}: {reason}" for url, reason in failures.items())
        fix = f"put it at {path} in another way, or set TOWERPACK_DATA to where the data sets are"
        raise kind(f"{path.name} could not be downloaded.", got=got, fix=fix)
    return path


def _try_all(
    urls: list[str], fetch: Callable[[str], None], retries: int, backoff_s: float
) -> dict[str, Exception]:
    """Try all addresses in turn, again and again; what went wrong with each, or nothing."""
    failures: dict[str, Exception] = {}
    for attempt in range(retries + 1):
        waiting = [url for url in urls if not _is_final(failures.get(url))]
        if attempt and waiting:
            time.sleep(min(backoff_s * 2 ** (attempt - 1), _LONGEST_PAUSE_S))
        for url in waiting:
            try:
                fetch(url)
                return {}
            except (ValueError, OSError) as error:
                if isinstance(error, OSError) and error.errno:
                    raise  # of the disk
                failures[url] = error
                log.warning("%s: %s", url, error)
    return failures


def _is_final(error: Exception | None) -> bool:
    """True for an error that another attempt would meet again."""
    status = getattr(getattr(error, "response", None), "status_code", 500)
    return isinstance(error, ValueError) or (status < 500 and status not in _TRY_AGAIN)


def _fetch(
    url: str, path: Path, checksum: str | None, size: int | None, most: int, timeout_s: float
) -> None:
    """One attempt; an `OSError` is from the disk if it has a number, and else from the network."""
    pooch: Any = require("pooch", extra="datasets", needed_for="Downloading")
    requests: Any = require("requests", extra="datasets", needed_for="Downloading")
    pooch.get_logger().setLevel("WARNING")  # ours tells
    log.info("downloading %s", path)
    arriving = path.with_name(f".{path.name}.arriving")

    def transfer(url: str, target: str, _: object) -> None:
        with (
            requests.get(url, stream=True, timeout=timeout_s, headers=_HEADERS) as response,
            open(target, "wb") as file,
            progress(path.name, size) as report,
        ):
            response.raise_for_status()
            for part in response.iter_content(_READ):
                file.write(part)
                report(file.tell())
                if file.tell() > most:
                    raise ValueError(f"it sends more than {most:,} bytes")
            if size is not None and file.tell() != size:
                raise ValueError(f"{file.tell():,} bytes instead of {size:,}")
            file.flush()
            os.fsync(file.fileno())

    shutil.rmtree(arriving, ignore_errors=True)  # of a process that was killed
    try:
        pooch.retrieve(url, checksum, path.name, arriving, downloader=transfer)
        os.replace(arriving / path.name, path)
    finally:
        shutil.rmtree(arriving, ignore_errors=True)
    fsync_dir(path.parent)
