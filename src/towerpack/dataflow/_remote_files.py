"""Files behind URLs, read in blocks: cached on disk, and fetched ahead by several threads."""

from __future__ import annotations

import io
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from hashlib import blake2b
from queue import Empty, SimpleQueue
from typing import IO, Any, Final, TypeVar

from towerpack._core.block_cache import BlockCache, block_cache
from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack._core.open_files import OpenFile
from towerpack._core.remote_path import RemoteFileInfo, RemotePath

T = TypeVar("T")
R = TypeVar("R")

_log = get_logger(__name__)
HEAD_BYTES: Final = 4096
_BLOCK: Final = 1 << 20
_AHEAD: Final = 16  # blocks after the one that is read
_THREADS: Final = 16
_MOST_FOUND: Final = 1024
_MOST_OPEN: Final = 64  # blocks
_IDLE_S: Final = 5.0
_VARIABLE: Final = "TOWERPACK_CACHE"
_DEFAULT_SIZE: Final = "32GB"
_UNITS: Final = {"": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_SIZE: Final = re.compile(r":([0-9]+|[0-9]*\.[0-9]+)\s*([KMGT]B|)$", re.IGNORECASE)

CacheSetting = tuple[str, int] | None  # folder and limit in bytes; None for no cache


def set_remote_cache(folder: str | os.PathLike[str] | None, size: int | str = "32GB") -> None:
    """Choose the local cache of files behind URLs, for sources that are created afterwards.

    The cache stores blocks of the files. Processes share it, and it removes the blocks that were
    not used for the longest time. By default, it is `~/.cache/towerpack/blocks` with 32 GB. The
    environment variable `TOWERPACK_CACHE=FOLDER:SIZE` changes the default, and
    `TOWERPACK_CACHE=off` turns the cache off.

    Args:
        folder: Folder used only for this cache, on a local disk. None turns the cache off.
        size: Limit of its size in bytes, or a text such as "200GB".

    Raises:
        ConfigError: `size` is not a size.
    """
    text = "off" if folder is None else f"{os.path.abspath(folder)}:{bytes_of(size)}"
    os.environ[_VARIABLE] = text


def bytes_of(size: int | str) -> int:
    """Return a number of bytes, or the bytes of a text such as "256MB"."""
    match = _SIZE.fullmatch(f":{size}")
    if match is None:
        raise ConfigError(
            f"A size must be a number of bytes, or such as 256MB, got {size!r}.",
            fix="write a number with KB, MB, GB or TB",
        )
    return int(float(match[1]) * _UNITS[match[2].upper()])


def _cache_setting() -> CacheSetting:
    text = os.environ.get(_VARIABLE, "")
    if text == "off":
        return None
    folder, _, size = text.rpartition(":") if _SIZE.search(text) else (text, "", "")
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return folder or os.path.join(home, "towerpack", "blocks"), bytes_of(size or _DEFAULT_SIZE)


class RemoteFile(RemotePath):
    """File behind a URL that is read like a local `Path`. It must not change.

    Thread- and fork-safe.
    """

    def __init__(self, url: str, info: RemoteFileInfo, cache: CacheSetting) -> None:
        super().__init__(url)
        self.size = info.size
        self.version = info.version
        self.following: RemoteFile | None = None  # file that is read after this one
        self._cache = cache
        self._last = -1  # block that was read last
        self._near = True  # whether the last read was near the one before

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "following": None, "_last": -1, "_near": True}

    @property
    def content(self) -> str:
        """Text that changes with the content of the file."""
        return f"{self.url} {self.version}"

    @property
    def version_number(self) -> int:
        digest = blake2b(self.version.encode(), digest_size=7).digest()
        return int.from_bytes(digest, "little")

    def stat(self) -> os.stat_result:
        """Return the size as `st_size`, as a `Path` does."""
        return os.stat_result((0, 0, 0, 0, 0, 0, self.size, 0, 0, 0))

    def open(self, mode: str = "rb") -> IO[bytes]:
        return io.BufferedReader(_Stream(self))

    def block_cache(self) -> BlockCache | None:
        return None if self._cache is None else block_cache(*self._cache)

    def key(self, part: object) -> str:
        """Return the key of a part of the file in the cache."""
        return blake2b(f"{self.content}\n{part}".encode(), digest_size=16).hexdigest()

    def head(self) -> bytes:
        """Return the first bytes of the file, at most `HEAD_BYTES`."""
        cache, key = self.block_cache(), self.key("head")
        data = None if cache is None else cache.read(key)
        if data is None:
            data = self.read(0, min(HEAD_BYTES, self.size), version=self.version)
            if cache is not None:
                cache.put(key, data)
        return data

    def read_at(self, offset: int, nbytes: int) -> bytes:
        end = min(offset + nbytes, self.size)
        if offset >= end:
            return b""
        first, last = offset // _BLOCK, (end - 1) // _BLOCK
        self._read_ahead(first, last)
        store, parts = _store(), list[bytes]()
        for index in range(first, last + 1):
            start = index * _BLOCK
            parts.append(store.block(self, index).read(max(offset - start, 0), end - start))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def will_read(self, offset: int, nbytes: int) -> None:
        """Begin to fetch a range."""
        end = min(offset + nbytes, self.size)
        _store().fetch((self, i) for i in range(offset // _BLOCK, (end - 1) // _BLOCK + 1))

    def _read_ahead(self, first: int, last: int) -> None:
        previous, self._last = self._last, last
        if first == last == previous:
            return
        near, self._near = self._near, 0 <= first - previous <= _AHEAD
        ahead = _AHEAD if near and self._near else 0
        if count := last - first + ahead:
            _store().fetch(_blocks_after(self, first + 1, count))


def _blocks_after(file: RemoteFile, index: int, count: int) -> Iterator[tuple[RemoteFile, int]]:
    current: RemoteFile | None = file
    while count and current is not None:
        if index * _BLOCK >= current.size:
            current, index = current.following, 0
            continue
        yield current, index
        index, count = index + 1, count - 1


class _Stream(io.RawIOBase):
    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.size}
        self._position = base[whence] + offset
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        data = self._file.read_at(self._position, len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


class _Block:
    """Block of a file, which the first thread that needs it fetches."""

    def __init__(self, file: RemoteFile, index: int) -> None:
        self._file = file
        self._start = index * _BLOCK
        self._nbytes = min(_BLOCK, file.size - self._start)
        self._key = file.key(f"{self._start} {self._nbytes}")
        self._lock = threading.Lock()
        self._source: OpenFile | bytes | None = None
        self.is_queued = False

    def read(self, start: int, stop: int) -> bytes:
        source = self._source or self.load(wait=True)
        stop = min(stop, self._nbytes)
        if isinstance(source, OpenFile):
            return source.read_at(start, stop - start)
        return source[start:stop] if source else b""

    def load(self, *, wait: bool) -> OpenFile | bytes | None:
        """Open or fetch the block. Without `wait`, leave it to a process that fetches it."""
        with self._lock:
            if self._source is None:
                self._source = self._loaded(wait)
            return self._source

    def _loaded(self, wait: bool) -> OpenFile | bytes | None:
        cache = self._file.block_cache()
        if cache is None:
            return self._fetched()
        if not wait and self._key in cache:  # often for another process, so leave it closed
            return None
        if (block := cache.open(self._key)) is not None:
            return block
        with cache.claim(self._key, wait=wait) as claimed:
            if not claimed or (block := cache.open(self._key)) is not None:
                return block
            data = self._fetched()
            cache.put(self._key, data)
        return cache.open(self._key) or data

    def _fetched(self) -> bytes:
        return self._file.read(self._start, self._nbytes, version=self._file.version)


class _Store:
    """Blocks that a process uses, and its threads that fetch blocks ahead."""

    def __init__(self) -> None:
        self._blocks: OrderedDict[tuple[str, str, int], _Block] = OrderedDict()
        self._lock = threading.Lock()
        self._queue: SimpleQueue[_Block] = SimpleQueue()
        self._threads = 0

    def block(self, file: RemoteFile, index: int) -> _Block:
        key = file.url, file.version, index
        with self._lock:
            block = self._blocks.get(key)
            if block is None:
                block = self._blocks[key] = _Block(file, index)
                if len(self._blocks) > _MOST_OPEN:
                    self._blocks.popitem(last=False)
            else:
                self._blocks.move_to_end(key)
        return block

    def fetch(self, blocks: Iterable[tuple[RemoteFile, int]]) -> None:
        """Begin to fetch blocks in other threads."""
        for file, index in blocks:
            block = self.block(file, index)
            if block.is_queued:
                continue
            block.is_queued = True
            self._queue.put(block)
            with self._lock:
                more = self._threads < min(_THREADS, self._queue.qsize())
                self._threads += more
            if more:
                threading.Thread(target=self._work, name="towerpack-fetch", daemon=True).start()

    def _work(self) -> None:
        while True:
            try:
                block = self._queue.get(timeout=_IDLE_S)
            except Empty:
                with self._lock:
                    self._threads -= 1
                return
            try:
                block.load(wait=False)
            except Exception as error:  # noqa: BLE001 - the reader of the block tries again
                _log.debug("Could not fetch a block ahead: %r", error)
            del block


_stores: dict[int, _Store] = {}


def _store() -> _Store:
    pid = os.getpid()
    return _stores.get(pid) or _stores.setdefault(pid, _Store())


def expanded(pattern: str) -> list[str]:
    """Expand brace lists: `{a,b}` and `{000..012}`."""
    match = re.search(r"\{([^{}]*)\}", pattern)
    if match is None:
        return [pattern]
    span = re.fullmatch(r"(\d+)\.\.(\d+)", match[1])
    if span is None and "," not in match[1]:
        return [pattern]
    choices = match[1].split(",")
    if span is not None:
        width = len(span[1]) if span[1][0] == "0" else 0
        choices = [f"{i:0{width}d}" for i in range(int(span[1]), int(span[2]) + 1)]
    before, after = pattern[: match.start()], pattern[match.end() :]
    return [name for choice in choices for name in expanded(f"{before}{choice}{after}")]


def urls_of(pattern: str) -> list[str]:
    """Return the URLs of a URL with brace lists, and of the files that match it as a pattern."""
    urls: list[str] = []
    for url in expanded(pattern):
        # A signed URL of a web server contains a question mark.
        magic = "*" if url.startswith("http") else "*?["
        is_pattern = any(character in url for character in magic)
        urls += [str(path) for path in RemotePath(url).glob()] if is_pattern else [url]
    return urls


def remote_files(urls: Iterable[str]) -> list[RemoteFile]:
    """Return the files behind URLs, with their present sizes and versions."""
    cache = _cache_setting()
    return in_threads(lambda url: RemoteFile(url, RemotePath(url).info(), cache), urls)


@lru_cache(_MOST_FOUND)
def remote_file(url: str, version: str = "") -> RemoteFile:
    """Return the file behind a URL. Ask for its version once in a process, if it is not known."""
    if not version:
        return remote_files([url])[0]
    size = int(version.partition(" ")[0])
    return RemoteFile(url, RemoteFileInfo(size, version), _cache_setting())


def in_threads(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    with ThreadPoolExecutor(_THREADS, "towerpack-remote") as pool:
        return list(pool.map(function, items))
