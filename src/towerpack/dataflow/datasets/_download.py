"""Directories of data sets, and checked downloads of files from web servers."""

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
"""Addresses of folders on web servers: one, several, or `None` for the default ones."""


def data_dir(name: str | None = None) -> Path:
    """Return the directory of all data sets, or of one of them, without creating the directory.

    It is `$TOWERPACK_DATA`, or else `$TENSORPACK_DATASET`, or else `~/towerpack-data`.

    Args:
        name: Name of the directory of a data set, such as `mnist_data`.
    """
    path = next((os.environ[name] for name in _VARIABLES if os.environ.get(name)), _DEFAULT)
    root = Path(path).expanduser()
    return root if name is None else root / name


def dataset_dir(dir: PathLike | None, name: str) -> Path:
    return data_dir(name) if dir is None else Path(dir).expanduser()


@contextlib.contextmanager
def exclusive(path: Path) -> Generator[None]:
    """Lock `path`, so that one process creates the file while other processes wait."""

    def report(holder: str, waited: float) -> None:
        if waited % _REMIND_S < _LOOK_AGAIN_S:
            log.info("waiting for %s, which creates %s", holder, path)

    with locked(path.with_name(f".{path.name}.lock"), look_again_s=_LOOK_AGAIN_S, waiting=report):
        yield


@dataclass(frozen=True)
class RemoteFile:
    """File of a data set on web servers, with its size and checksum if known."""

    name: str
    mirrors: tuple[str, ...]
    size: int | None = None
    checksum: str | None = None

    def from_source(self, base_url: Address, *, verify: bool = True) -> RemoteFile:
        """Return the file at other addresses. `verify=False` accepts any size and checksum."""
        mirrors = (base_url,) if isinstance(base_url, str) else base_url
        moved = self if mirrors is None else replace(self, mirrors=tuple(mirrors))
        return moved if verify else replace(moved, size=None, checksum=None)

    def fetch(self, folder: Path) -> Path:
        """Download the file to `folder` unless it exists there. Return its path."""
        urls = [f"{mirror.rstrip('/')}/{self.name}" for mirror in self.mirrors]
        return download(urls, folder / self.name, size=self.size, checksum=self.checksum)


def _target_of(target: PathLike, name: str) -> Path:
    """Return the path of the file to write. `target` may be a directory."""
    path = Path(target).expanduser()
    if str(target).endswith(os.sep) or path.is_dir():
        return path / name
    # Tensorpack accepts a directory as a string. A file usually has the suffix of the address.
    stem, suffix = os.path.splitext(name)
    unlike_file = suffix and not path.suffix and path.name != stem
    if isinstance(target, str) and unlike_file and not path.exists():
        raise ConfigError(
            f"download() cannot tell whether {target!r} is a directory or a file.",
            fix=f"write {target + '/'!r} for a directory, or pass a Path for a file",
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
    """Download a file unless it exists.

    The file is downloaded under a temporary name, checked and renamed, so a file at `path` is
    complete. Several processes download a file only once. A broken download starts again.

    Args:
        urls: One or several http or https addresses, which are tried in order.
        path: File to create. An existing file is returned unchanged. If `path` is a directory or
            ends with `/`, the file has the name in the address.
        checksum: `sha256:...` or `md5:...` in hexadecimal digits.
        size: Size of the file in bytes.
        max_bytes: Largest size to accept, in bytes.
        retries: Number of further attempts, at addresses whose last error may be temporary.
        timeout_s: Longest time without data from the server, in seconds.
        backoff_s: Pause before the first retry in seconds. It doubles each time, up to 30 s.

    Returns:
        Path of the file.

    Raises:
        ConfigError: `path` is a string that may mean a missing directory or a file.
        DataFlowError: The file cannot be downloaded or written.
        FormatError: The downloaded file has another size or checksum.
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
        with exclusive(path):
            if not path.is_file():
                failures = _try_all(addresses, fetch, retries, backoff_s)
    except OSError as error:
        got, fix = error.strerror or str(error), "or set TOWERPACK_DATA to another directory"
        first = "free disk space" if error.errno in _FULL else "check the permissions"
        raise DataFlowError(f"{path} cannot be written.", got=got, fix=f"{first}, {fix}") from error
    if not path.is_file():
        other = any(not isinstance(error, OSError) for error in failures.values())
        kind = FormatError if other else DataFlowError
        got = "\n".join(f"{url}: {reason}" for url, reason in failures.items())
        fix = f"copy the file to {path}, or set TOWERPACK_DATA to the directory of the data sets"
        raise kind(f"{path.name} could not be downloaded.", got=got, fix=fix)
    return path


def _try_all(
    urls: list[str], fetch: Callable[[str], None], retries: int, backoff_s: float
) -> dict[str, Exception]:
    """Try all addresses repeatedly. Return the last error of each address, or {} on success."""
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
                    raise  # disk errors have a number, network errors do not
                failures[url] = error
                log.warning("%s: %s", url, error)
    return failures


def _is_final(error: Exception | None) -> bool:
    """Return whether another attempt would fail with the same error."""
    status = getattr(getattr(error, "response", None), "status_code", 500)
    return isinstance(error, ValueError) or (status < 500 and status not in _TRY_AGAIN)


def _fetch(
    url: str, path: Path, checksum: str | None, size: int | None, most: int, timeout_s: float
) -> None:
    pooch: Any = require("pooch", extra="datasets", needed_for="Downloading")
    requests: Any = require("requests", extra="datasets", needed_for="Downloading")
    pooch.get_logger().setLevel("WARNING")  # we log the download
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
                    raise ValueError(f"the server sends more than {most:,} bytes")
            if size is not None and file.tell() != size:
                raise ValueError(f"{file.tell():,} bytes instead of {size:,}")
            file.flush()
            os.fsync(file.fileno())

    shutil.rmtree(arriving, ignore_errors=True)  # left by a killed process
    try:
        pooch.retrieve(url, checksum, path.name, arriving, downloader=transfer)
        os.replace(arriving / path.name, path)
    finally:
        shutil.rmtree(arriving, ignore_errors=True)
    fsync_dir(path.parent)
