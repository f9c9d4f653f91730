"""Files on web servers: fetched once, whole, checked, and then not asked for again."""

from __future__ import annotations

import errno
import hashlib
import hmac
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from towerpack._core.errors import ConfigError, DataFlowError, FormatError
from towerpack._core.files import fsync_dir
from towerpack._core.logs import get_logger
from towerpack.dataflow._opening import PathLike
from towerpack.dataflow.datasets._http import Broken, Refused, Wanted, check_url, discard, transfer
from towerpack.dataflow.datasets._location import only_one
from towerpack.dataflow.datasets._progress import byte_progress

log = get_logger(__name__)

MOST_BYTES = 64 << 30
_LONGEST_PAUSE_S = 30.0
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DIGITS = {"md5": 32, "sha256": 64}


@dataclass(frozen=True)
class RemoteFile:
    """A file of a data set.

    Args:
        name: Its name, here and there.
        mirrors: Addresses of the folders in which it lies, the preferred one first.
        size: Its bytes, if they are known for sure.
        checksum: `sha256:...` or `md5:...`, if it is known for sure.
    """

    name: str
    mirrors: tuple[str, ...]
    size: int | None = None
    checksum: str | None = None

    def at(self, base_url: str | Sequence[str] | None, *, verify: bool = True) -> RemoteFile:
        """The same file elsewhere; with `verify=False`, any file of that name."""
        mirrors = (base_url,) if isinstance(base_url, str) else base_url
        moved = self if mirrors is None else replace(self, mirrors=tuple(mirrors))
        return moved if verify else replace(moved, size=None, checksum=None)

    def fetch(self, folder: Path) -> Path:
        """The file in `folder`, downloaded if it is not there."""
        urls = [f"{mirror.rstrip('/')}/{self.name}" for mirror in self.mirrors]
        return download(urls, folder / self.name, size=self.size, checksum=self.checksum)


def download(
    urls: str | Sequence[str],
    path: PathLike,
    *,
    checksum: str | None = None,
    size: int | None = None,
    max_bytes: int = MOST_BYTES,
    retries: int = 3,
    timeout_s: float = 30.0,
    backoff_s: float = 1.0,
) -> Path:
    """Fetch a file, unless it is there.

    What is at `path` is whole: the bytes arrive beside it, are checked, and are renamed. A
    download that breaks off, even by a kill, goes on where it was if the server allows. Two
    processes that want one file fetch it once.

    Args:
        urls: Where it can be had, http or https, tried in turn.
        path: Where it shall be. A file that is there is returned as it is.
        checksum: `sha256:...` or `md5:...` in hexadecimal digits.
        size: Its bytes.
        max_bytes: More are refused.
        retries: How often all addresses are tried again without a byte of progress.
        timeout_s: How long a server may be silent, or slower than 1 kB/s.
        backoff_s: Pause before the first retry; it doubles each time, up to 30 s.

    Returns:
        The path.

    Raises:
        ConfigError: An address or checksum that is none.
        DataFlowError: It cannot be had, or not be written.
        FormatError: What can be had is another file.
    """
    path = Path(path).expanduser()
    if path.is_file():
        return path
    addresses = [urls] if isinstance(urls, str) else list(urls)
    for url in addresses:
        check_url(url)
    if checksum is not None:
        _check_form(checksum)
    wanted = Wanted(size, checksum, min(max_bytes, size or max_bytes), timeout_s)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with only_one(path):
            if not path.is_file():
                _Download(addresses, path, wanted).run(retries, backoff_s)
    except OSError as error:
        raise _unwritable(path, error) from error
    return path


class _Download:
    """The attempts to fetch one file."""

    def __init__(self, urls: list[str], path: Path, wanted: Wanted) -> None:
        self._urls = urls
        self._path = path
        self._wanted = wanted
        self._part = path.with_name(f".{path.name}.part")
        self._failures: dict[str, str] = {}
        self._other_file = False

    def run(self, retries: int, backoff_s: float) -> None:
        """Try all addresses, again and again while there is progress."""
        log.info("downloading %s", self._path)
        most = idle = 0
        while True:
            for url in list(self._urls):
                if self._attempt(url):
                    return
            size = self._part.stat().st_size if self._part.exists() else 0
            most, idle = max(most, size), 0 if size > most else idle + 1
            if idle > retries or not self._urls:
                raise self._failure()
            time.sleep(min(backoff_s * 2 ** max(0, idle - 1), _LONGEST_PAUSE_S))

    def _attempt(self, url: str) -> bool:
        resumed = self._part.exists()
        try:
            with byte_progress(self._path.name) as report:
                transfer(url, self._part, self._wanted, report)
            self._check(resumed)
        except Refused as error:
            self._failures[url] = str(error)
            self._urls.remove(url)
        except Broken as error:
            self._failures[url] = str(error)
        else:
            self._finish()
            return True
        log.warning("%s: %s", url, self._failures[url])
        return False

    def _check(self, resumed: bool) -> None:
        """Whether what arrived is the file that was wanted; if not, it is thrown away."""
        size, checksum = self._part.stat().st_size, self._wanted.checksum
        found = ""
        if self._wanted.size is not None and size != self._wanted.size:
            found = f"{size:,} bytes instead of {self._wanted.size:,}"
        elif checksum is not None and not same_checksum(self._part, checksum):
            found = f"the checksum is not {checksum}"
        if found:
            discard(self._part)
            self._other_file = True
            # The beginning may have been another file's: then it is worth starting afresh.
            raise Broken(found) if resumed else Refused(found)

    def _finish(self) -> None:
        os.replace(self._part, self._path)
        discard(self._part)
        fsync_dir(self._path.parent)

    def _failure(self) -> DataFlowError:
        kind = FormatError if self._other_file else DataFlowError
        return kind(
            f"{self._path.name} could not be downloaded.",
            got="\n".join(f"{url}: {reason}" for url, reason in self._failures.items()),
            fix=f"fetch it in another way and put it at {self._path}, or set TOWERPACK_DATA to "
            "where the data sets are",
        )


def same_checksum(path: Path, checksum: str) -> bool:
    """Whether a file has the checksum `sha256:...` or `md5:...`."""
    kind, _, digits = checksum.partition(":")
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False))
    return hmac.compare_digest(found.hexdigest(), digits.lower())


def _check_form(checksum: str) -> None:
    kind, _, digits = checksum.partition(":")
    if _DIGITS.get(kind) != len(digits) or any(d not in "0123456789abcdefABCDEF" for d in digits):
        raise ConfigError(
            f"{checksum!r} is no checksum.",
            expected='"sha256:" and 64 hexadecimal digits, or "md5:" and 32',
        )


def _unwritable(path: Path, error: OSError) -> DataFlowError:
    fix = "free some room" if error.errno in _FULL else "look at the directory's permissions"
    return DataFlowError(
        f"{path} cannot be written.",
        got=error.strerror or str(error),
        fix=f"{fix}, or set TOWERPACK_DATA to another directory; what has arrived is kept",
    )
