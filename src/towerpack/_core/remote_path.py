"""Files behind URLs (`s3://`, `gs://`, `https://`, `memory://` …), through fsspec."""

from __future__ import annotations

import errno
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from random import SystemRandom
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

from towerpack._core.errors import ConfigError, FormatError, RemoteFileError, TowerpackError
from towerpack._core.extras import require
from towerpack._core.logs import get_logger

T = TypeVar("T")

_log = get_logger(__name__)
_random: Final = SystemRandom()  # leaves the program's own generators alone
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_FIRST_PAUSE: Final = 0.25  # seconds
_LONGEST_PAUSE: Final = 8.0
_PARTIAL_CONTENT: Final = 206
_OUTSIDE: Final = 416
_FINAL: Final = (FileExistsError, IsADirectoryError, NotADirectoryError)
_LOCAL_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_CHECKSUMS: Final = ("ETag", "etag", "md5Hash", "generation", "Content-MD5", "content_md5")
_TIMES: Final = ("LastModified", "Last-Modified", "last_modified", "mtime", "updated", "created")


def is_url(path: object) -> bool:
    """Return whether an argument is a URL such as `s3://bucket/name`, not a local path."""
    return isinstance(path, (str, RemotePath)) and _URL.match(str(path)) is not None


@dataclass(frozen=True, slots=True)
class RemoteFileInfo:
    """Size in bytes of a remote file, and a text that changes with its content (its ETag)."""

    size: int
    version: str


class RemotePath:
    """File or folder behind a URL. Can be pickled and used after a fork.

    Operations that fail because of the network, or with a status that asks to try again, are
    repeated with exponential back-off and jitter until `deadline` seconds have passed.

    Credentials and endpoints come from where the service's own tools look for them (environment,
    `~/.aws`, …) and from fsspec's configuration files.

    Raises:
        ConfigError: fsspec knows no such protocol; the file, the bucket or the credentials are
            missing or wrong.
        MissingExtraError: The package for the protocol is not installed.
        RemoteFileError: An operation kept failing until the deadline.
    """

    def __init__(self, url: str, *, deadline: float = 60.0) -> None:
        self.url = url
        self.deadline = deadline

    def __str__(self) -> str:
        return self.url

    def __repr__(self) -> str:
        return f"RemotePath({self.url!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and other.url == self.url

    def __hash__(self) -> int:
        return hash(self.url)

    def __truediv__(self, name: str) -> RemotePath:
        return self._with_url(f"{self.url.rstrip('/')}/{name}")

    @property
    def name(self) -> str:
        """Last part of the URL's path."""
        return urlsplit(self.url.rstrip("/")).path.rpartition("/")[2]

    def info(self) -> RemoteFileInfo:
        """Return the size and version of the file."""

        def find(fs: Any, path: str) -> dict[str, Any]:
            fs.invalidate_cache()
            return fs.info(path)

        info = self._repeat("find", find)
        if info.get("type") == "directory" or info.get("size") is None:
            what = "is a folder" if info.get("type") == "directory" else "has no known size"
            raise ConfigError(f"{self} {what}.", expected="a file with a size")
        return _info_of(info, info["size"])

    def exists(self) -> bool:
        """Return whether there is such a file or folder."""
        return self._repeat("find", lambda fs, path: fs.exists(path))

    def read(
        self, start: int = 0, nbytes: int | None = None, *, version: str | None = None
    ) -> bytes:
        """Read a range of bytes, or the rest of the file. Fewer bytes than asked are an error.

        With a range and a `version` from `info`, a file that has changed since is an error.
        """

        def read(fs: Any, path: str) -> bytes:
            # Without a range, the whole file comes with one request.
            end = None if nbytes is None else start + nbytes
            if end is None or version is None:
                data = fs.cat_file(path, start=start or None if end is None else start, end=end)
            else:
                data, info = _read_range(fs, path, start, end)
                if info.version != version:
                    raise FormatError(
                        f"{self} was changed after it was opened.",
                        got=info.version,
                        expected=version,
                        fix="write to a different file, and create the flow when the file is "
                        "complete",
                    )
            if nbytes is not None and len(data) != nbytes:
                raise EOFError(f"got {len(data):,} of {nbytes:,} bytes from byte {start:,}")
            return data

        return b"" if nbytes == 0 else self._repeat("read", read)

    def write(self, data: bytes) -> None:
        """Replace the content of the file."""
        self._repeat("write", lambda fs, path: fs.pipe_file(path, data))

    def upload(self, local: str | os.PathLike[str]) -> None:
        """Replace the file by a local one, in parts if it is large."""
        self._repeat("write", lambda fs, path: fs.put_file(os.fspath(local), path))

    def download(self, local: str | os.PathLike[str]) -> None:
        """Copy the file to a local path. The caller checks its size or checksum."""
        self._repeat("read", lambda fs, path: fs.get_file(path, os.fspath(local)))

    def copy_to(self, target: RemotePath) -> None:
        """Copy the file to another URL of the same service, without downloading it."""

        def copy(fs: Any, path: str) -> None:
            fs.cp_file(path, fs._strip_protocol(target.url))

        self._repeat("copy", copy)

    def remove(self) -> None:
        """Remove the file, or the folder with all that is in it. Nothing may be there."""

        def remove(fs: Any, path: str) -> None:
            fs.invalidate_cache()
            if fs.exists(path):
                fs.rm(path, recursive=True)

        self._repeat("remove", remove)

    def files(self) -> dict[str, int]:
        """Return the sizes in bytes of all files below this folder, by their relative names."""

        def find(fs: Any, path: str) -> dict[str, int]:
            return {name: int(info["size"] or 0) for name, info in _files_in(fs, path)}

        return self._repeat("list", find)

    def infos(self) -> dict[str, RemoteFileInfo | None]:
        """Return the size and version of all files below this folder, by their relative names.

        They are None if the service does not list a checksum (an ETag) of each file.
        """

        def find(fs: Any, path: str) -> dict[str, RemoteFileInfo | None]:
            return {
                name: _info_of(info, info["size"]) if any(map(info.get, _CHECKSUMS)) else None
                for name, info in _files_in(fs, path)
            }

        return self._repeat("list", find)

    def glob(self) -> list[RemotePath]:
        """Return the files that match the URL as a pattern, sorted by name."""

        def glob(fs: Any, path: str) -> list[str]:
            fs.invalidate_cache()
            entries: dict[str, Any] = fs.glob(path, detail=True)
            files = [name for name, info in entries.items() if info["type"] == "file"]
            return [fs.unstrip_protocol(name) for name in sorted(files)]

        return [self._with_url(url) for url in self._repeat("list", glob)]

    def _with_url(self, url: str) -> RemotePath:
        return RemotePath(url, deadline=self.deadline)

    def _repeat(self, verb: str, operation: Callable[[Any, str], T]) -> T:
        end = time.monotonic() + self.deadline
        pause = _FIRST_PAUSE
        while True:
            try:
                protocol = self.url.partition("://")[0].lower()
                fs = _filesystem(protocol, os.getpid())
                return operation(fs, fs._strip_protocol(self.url))
            except Exception as error:
                _raise_if_final(self, verb, error)
                wait = pause * _random.uniform(0.5, 1)
                if time.monotonic() + wait > end:
                    raise RemoteFileError(
                        f"Cannot {verb} {self}, after trying for {self.deadline:g} seconds.",
                        got=f"{type(error).__name__}: {error}",
                        fix="check the network and the service, and run the same command again",
                    ) from error
                _log.debug("Cannot %s %s: %r. Trying again in %.1f s.", verb, self, error, wait)
            time.sleep(wait)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _files_in(fs: Any, path: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the relative name and the details of each file below a folder."""
    fs.invalidate_cache()
    entries: dict[str, Any] = fs.find(path, detail=True)
    start = len(path.rstrip("/")) + 1
    return [(name[start:], info) for name, info in entries.items()]


def _info_of(info: Mapping[str, Any], size: int | str) -> RemoteFileInfo:
    version = next((info[k] for k in (*_CHECKSUMS, *_TIMES) if info.get(k)), "")
    return RemoteFileInfo(int(size), f"{size} {version}")


def _read_range(fs: Any, path: str, start: int, end: int) -> tuple[bytes, RemoteFileInfo]:
    """Return the bytes of a range, and the information about the file they belong to."""
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    if "http" in protocols or "s3" in protocols:
        asyn: Any = require("fsspec.asyn", extra="remote-files", needed_for="URLs")
        read = _http_range if "http" in protocols else _s3_range
        return asyn.sync(fs.loop, read, fs, path, start, end)
    data = fs.cat_file(path, start=start, end=end)
    fs.invalidate_cache()
    info: dict[str, Any] = fs.info(path)
    return data, _info_of(info, info["size"])


async def _http_range(fs: Any, url: str, start: int, end: int) -> tuple[bytes, RemoteFileInfo]:
    headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
    session = await fs.set_session()
    request = session.get(fs.encode_url(url), headers=headers, read_bufsize=end - start)
    async with request as response:
        size = response.headers.get("Content-Range", "").rpartition("/")[2]
        if response.status == _OUTSIDE:  # the file is smaller now
            return b"", _info_of(response.headers, size or 0)
        response.raise_for_status()
        if response.status != _PARTIAL_CONTENT or not size.isdigit():
            raise ConfigError(
                f"The server of {url} cannot send parts of a file (range requests).",
                got=f"status {response.status} instead of {_PARTIAL_CONTENT}",
                fix="use a server with range requests, or download the file",
            )
        return await response.read(), _info_of(response.headers, size)


async def _s3_range(fs: Any, path: str, start: int, end: int) -> tuple[bytes, RemoteFileInfo]:
    bucket, key, _ = fs.split_path(path)
    span = f"bytes={start}-{end - 1}"
    response = await fs._call_s3("get_object", Bucket=bucket, Key=key, Range=span)
    with closing(response["Body"]) as body:
        size = response["ContentRange"].rpartition("/")[2]
        return await body.read(), _info_of(response, size)


@cache
def _filesystem(protocol: str, _pid: int) -> Any:
    """Return fsspec's file system. Connections and threads do not survive a fork."""
    fsspec: Any = require("fsspec", extra="remote-files", needed_for=f"reading {protocol}:// URLs")
    options: dict[str, Any] = {}
    if protocol in ("http", "https"):
        aiohttp: Any = require("aiohttp", extra="remote-files", needed_for=f"{protocol}:// URLs")
        options["client_kwargs"] = {
            "timeout": aiohttp.ClientTimeout(total=None, sock_connect=10, sock_read=30)
        }
    try:
        return fsspec.filesystem(protocol, **options)
    except ValueError as error:
        raise ConfigError(
            f"There is no file system for {protocol}:// URLs.", got=str(error)
        ) from error
    except ImportError as error:
        raise ConfigError(
            f"{protocol}:// URLs need another package: {error}.",
            fix="install it with pip (s3fs for s3://, gcsfs for gs://, adlfs for abfs://)",
        ) from error


def _raise_if_final(path: RemotePath, verb: str, error: Exception) -> None:
    """Raise the error to show, if trying again cannot help."""
    if isinstance(error, TowerpackError):
        raise error
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and isinstance(cause, Exception):
        # fsspec raises this error for any HTTP error of a file's size.
        error = cause if type(cause).__module__.startswith("aiohttp") else error
    status = getattr(error, "status", None)  # of aiohttp
    denied = isinstance(error, PermissionError) or status in (401, 403)
    if denied or "Credential" in type(error).__name__:
        raise ConfigError(
            f"Cannot {verb} {path}: access was denied.",
            got=f"{type(error).__name__}: {error}",
            fix="check the credentials and the permissions with the service's own command-line "
            "tool, and that the clock of this machine is right",
        ) from error
    if isinstance(error, FileNotFoundError) or status == 404:
        raise ConfigError(
            f"There is no {path}.",
            fix="check the spelling, the bucket and the endpoint",
        ) from error
    if isinstance(error, _FINAL):
        raise ConfigError(f"Cannot {verb} {path}: {error}.") from error
    if isinstance(error, OSError) and error.errno in _LOCAL_DISK:
        raise error
    network = isinstance(error, (OSError, EOFError, TimeoutError)) or type(
        error
    ).__module__.startswith(("aiohttp", "botocore", "aiobotocore", "gcsfs", "azure"))
    if not network or (
        isinstance(status, int) and 400 <= status < 500 and status not in (408, 429)
    ):
        raise error
