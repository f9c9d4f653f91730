"""One attempt to fetch one address into one file, going on where an earlier one broke off."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import time
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol
from urllib.parse import urlsplit

from towerpack._core.errors import ConfigError, DataFlowError
from towerpack.dataflow.datasets._progress import Report

_READ = 1 << 18
_SLOWEST_BYTES_PER_S = 1000
_TRY_AGAIN = {408, 425, 429}
_CONTENT_RANGE = re.compile(r"bytes (\d+)-\d+/(\d+|\*)")
_WHOLE = re.compile(r"bytes \*/(\d+)")


class Refused(Exception):  # noqa: N818 - it never leaves this package
    """An address that will not give the file, however often it is asked."""


class Broken(Exception):  # noqa: N818 - it never leaves this package
    """A connection that failed and may do better the next time."""


class _OtherBeginning(Broken):
    """What is here is not the beginning of what is there."""


@dataclass(frozen=True)
class Wanted:
    """What a file must be.

    Args:
        size: Its bytes, if known.
        checksum: `sha256:...` or `md5:...`, if known.
        max_bytes: More are refused.
        timeout_s: How long a server may be silent.
    """

    size: int | None
    checksum: str | None
    max_bytes: int
    timeout_s: float


class _Response(Protocol):
    """What is used of `http.client.HTTPResponse`."""

    status: int
    headers: Any

    def read1(self, n: int, /) -> bytes: ...
    def close(self) -> None: ...


def check_url(url: str) -> None:
    """Refuse what is no web address: `file:` and the like would read what lies here.

    Raises:
        ConfigError: It is none.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url!r} is no address to download from.", expected="http(s)://...")


def transfer(url: str, part: Path, wanted: Wanted, report: Report) -> None:
    """Fetch the rest of a file.

    Beside `part` lies a note of which version of which address it is the beginning of. Another
    version is only gone on with if there is a checksum, which then decides.

    Args:
        url: From where.
        part: What has arrived so far, if anything; it grows.
        wanted: What the whole must be.
        report: Told how far it is.

    Raises:
        Refused: This address will not give the file.
        Broken: The connection failed; `part` holds what arrived.
        DataFlowError: There is no room on the disk.
        OSError: Writing failed.
    """
    offset = part.stat().st_size if part.exists() else 0
    version = _version_of_part(part, url)
    if offset and version is None and wanted.checksum is None:
        offset = 0
    try:
        _transfer(url, part, offset, version, wanted, report)
    except _OtherBeginning:
        part.unlink()
        raise


def _transfer(
    url: str, part: Path, offset: int, version: str | None, wanted: Wanted, report: Report
) -> None:
    with _asked(url, offset, version, wanted) as response:
        if response is None:
            return
        start, total = _extent(response, offset, wanted)
        if start and not wanted.checksum and _version(response.headers) != version:
            raise _OtherBeginning("the file changed on the server meanwhile")
        total = _checked_total(total, wanted)
        _check_room(part, total, start)
        with open(part, "r+b" if start else "wb") as file:
            file.seek(start)
            file.truncate()
            _note(part).write_text(f"{url}\n{_version(response.headers) or ''}\n", encoding="utf-8")
            _copy(response, file, start, total, wanted, report)
            file.flush()
            os.fsync(file.fileno())


@contextlib.contextmanager
def _asked(
    url: str, offset: int, version: str | None, wanted: Wanted
) -> Generator[_Response | None]:
    """The open answer; `None` if the file was complete already."""
    from urllib.error import HTTPError
    from urllib.request import Request

    request = Request(url, headers={"User-Agent": "towerpack", "Accept-Encoding": "identity"})  # noqa: S310 - check_url
    if offset:
        request.add_header("Range", f"bytes={offset}-")
        if version is not None and wanted.checksum is None:
            request.add_header("If-Range", version)
    with _network():
        try:
            response = _opener().open(request, timeout=wanted.timeout_s)
        except HTTPError as error:
            error.close()
            whole = _WHOLE.fullmatch(error.headers.get("Content-Range", ""))
            if error.code == 416 and offset and whole and int(whole[1]) == offset:
                response = None
            elif error.code == 416 and offset:
                raise _OtherBeginning("the server has less of the file than is here") from error
            elif error.code in _TRY_AGAIN or error.code >= 500:
                raise Broken(f"HTTP {error.code} {error.reason}") from error
            else:
                raise Refused(f"HTTP {error.code} {error.reason}") from error
    try:
        yield response
    finally:
        if response is not None:
            response.close()


def _opener() -> Any:
    """Opens http and https, and follows redirections to nothing else."""
    from urllib import request

    class Redirects(request.HTTPRedirectHandler):
        def redirect_request(
            self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
        ):
            schemes = ("https",) if req.full_url.startswith("https:") else ("http", "https")
            if urlsplit(newurl).scheme not in schemes:
                raise Refused(f"it redirects to {newurl}, which is less safe")
            return super().redirect_request(req, fp, code, msg, headers, newurl)

    opener = request.OpenerDirector()
    for handler in (
        request.ProxyHandler(),
        request.HTTPHandler(),
        request.HTTPSHandler(),
        request.HTTPDefaultErrorHandler(),
        request.HTTPErrorProcessor(),
        Redirects(),
    ):
        opener.add_handler(handler)
    return opener


@contextlib.contextmanager
def _network() -> Generator[None]:
    """Sort what goes wrong on the way to a server."""
    from http.client import HTTPException
    from ssl import SSLCertVerificationError
    from urllib.error import URLError

    try:
        yield
    except (Refused, Broken):
        raise
    except URLError as error:
        kind = Refused if isinstance(error.reason, SSLCertVerificationError) else Broken
        raise kind(str(error.reason)) from error
    except (OSError, HTTPException) as error:
        raise Broken(f"{type(error).__name__}: {error}") from error


def _extent(response: _Response, offset: int, wanted: Wanted) -> tuple[int, int | None]:
    """Where the answer begins in the file, and how long the whole file is."""
    length = response.headers.get("Content-Length")
    if response.status == 206:
        span = _CONTENT_RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if span is None or int(span[1]) != offset:
            raise Refused("it answers with another range than it was asked for")
        return offset, None if span[2] == "*" else int(span[2])
    if response.status != 200:
        raise Refused(f"HTTP {response.status}")
    return 0, int(length) if length and length.isdigit() else None


def _checked_total(total: int | None, wanted: Wanted) -> int | None:
    if total is not None and wanted.size is not None and total != wanted.size:
        raise Refused(f"the file there has {total:,} bytes, not {wanted.size:,}")
    if total is not None and total > wanted.max_bytes:
        raise Refused(f"it has {total:,} bytes; at most {wanted.max_bytes:,} are allowed")
    return wanted.size if total is None else total


def _check_room(part: Path, total: int | None, start: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if total is not None and total - start > free:
        raise DataFlowError(
            f"There is no room for {part.parent / part.stem.lstrip('.')}.",
            got=f"{free:,} bytes free",
            expected=f"{total - start:,} bytes",
            fix="free some, or set TOWERPACK_DATA to a directory on another disk",
        )


def _copy(
    response: _Response,
    file: IO[bytes],
    done: int,
    total: int | None,
    wanted: Wanted,
    report: Report,
) -> None:
    most = wanted.max_bytes if total is None else total
    since, mark = time.monotonic(), done
    while True:
        with _network():
            data = response.read1(_READ)
        if not data:
            break
        done += len(data)
        if done > most:
            raise Refused(f"it sends more than {most:,} bytes")
        file.write(data)
        report(done, total)
        now = time.monotonic()
        if now - since > wanted.timeout_s:
            if done - mark < _SLOWEST_BYTES_PER_S * wanted.timeout_s:
                raise Broken(f"only {done - mark:,} bytes in {now - since:.0f} s")
            since, mark = now, done
    if total is not None and done < total:
        raise Broken(f"the connection ended after {done:,} of {total:,} bytes")


def _version(headers: Any) -> str | None:
    """What tells two versions of a file at one address apart, fit for `If-Range`."""
    tag = headers.get("ETag")
    return headers.get("Last-Modified") if tag is None or tag.startswith("W/") else tag


def discard(part: Path) -> None:
    """Throw away what has arrived."""
    part.unlink(missing_ok=True)
    _note(part).unlink(missing_ok=True)


def _note(part: Path) -> Path:
    return part.with_suffix(".from")


def _version_of_part(part: Path, url: str) -> str | None:
    try:
        lines = _note(part).read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, UnicodeDecodeError):
        return None
    return lines[1] or None if len(lines) == 2 and lines[0] == url else None
