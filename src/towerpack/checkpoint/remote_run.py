"""Run in an object store: a local mirror in which the run is trained, and a thread that uploads it.

The mirror is brought up to date before training. The thread then compares it with what is in the
bucket, so nothing is queued, and after an outage it continues where it failed. Of a checkpoint, its
files are uploaded first, then the other files of the run, and then the manifest.

Object stores have no locks. Instead, each process that begins to write a run puts its name into the
file `.owner`, and a process that finds another name there writes nothing more.
"""

from __future__ import annotations

import os
import platform
import secrets
import shutil
import stat
import threading
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final

from towerpack._core.errors import ConfigError, RemoteFileError, TowerpackError
from towerpack._core.files import replace_file, write_bytes_synced
from towerpack._core.locks import FileLock, LockHeldError
from towerpack._core.logs import get_logger
from towerpack._core.remote_path import RemotePath
from towerpack.checkpoint._find_and_read import check
from towerpack.checkpoint._layout import ABANDONED, CHECKPOINTS, MANIFEST, Place, place, places
from towerpack.checkpoint._manifest import InvalidCheckpointError
from towerpack.checkpoint._store import CheckpointStore
from towerpack.checkpoint.remote_copies import (
    cache_folder,
    check_sizes,
    disk_errors,
    fetch_newest,
    hidden,
    pull,
    rank,
    read_if_exists,
    visible,
)

UPLOAD_LIMIT: Final = "TOWERPACK_UPLOAD_SECONDS"
PAUSE_S = 10.0
DEADLINE_S = 20.0
_RECORD: Final = "run.json"
_OWNER: Final = ".owner"
_UPLOADED: Final = ".uploaded"  # in a local checkpoint: its manifest when it was uploaded
_logger = get_logger(__name__)


class RunMirror(AbstractContextManager["RunMirror"]):
    """Local mirror of a run in a bucket, used by one process at a time.

    Training never waits for the network. If uploads fail, this is logged once, and they continue
    when they succeed again. The end of the `with` block waits for them, at most as many seconds as
    the environment variable TOWERPACK_UPLOAD_SECONDS says (300 by default).

    Args:
        url: URL of the run directory.
        new: Use the first free URL of `url`, `url-2`, `url-3`, ….

    Raises:
        ConfigError: The bucket does not exist, access is denied, or another process uses the run.
        CheckpointError: All checkpoints in the bucket are damaged.
        RemoteFileError: The service does not answer, or not everything was uploaded at the end.
    """

    def __init__(self, url: str, *, new: bool = False) -> None:
        first, number = url.rstrip("/"), 1
        self.url = first
        while new and RemotePath(self.url).files():
            number += 1
            self.url = f"{first}-{number}"
        self.path = cache_folder(self.url, "run")
        self._remote = RemotePath(self.url, deadline=DEADLINE_S)
        self._checkpoints = self.path / CHECKPOINTS
        self._lock = FileLock(self.path.parent / ".lock")
        self._thread: threading.Thread | None = None
        self._closing, self._ended = threading.Event(), threading.Event()
        self._name = ""  # of this process, in `.owner`
        self._before: str | None = None  # the name to replace there
        self._taken: ConfigError | None = None
        self._copies: dict[str, str] = {}  # name of an uploaded file by its checksum
        self._sent: dict[str, tuple[int, int]] = {}  # times and sizes of uploaded files

    def __enter__(self) -> RunMirror:
        with disk_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._lock.acquire()
            except LockHeldError as error:
                raise ConfigError(
                    f"The run {self.url} is in use by another process of this machine.",
                    got=f"a lock held by {error.holder} (this is process {os.getpid()})",
                    fix="wait for that run or end it, or choose another run_dir=",
                ) from None
            try:
                self._update()
            except BaseException:
                self._lock.release()
                raise
        return self

    def _update(self) -> None:
        """Download what the mirror lacks: files, and the newest checkpoint."""
        file = self.path.parent / "mirror"
        if not file.exists():
            replace_file(file, secrets.token_hex(8).encode())
        mirror = file.read_text()
        self._name = f"{mirror} process {os.getpid()} on {platform.node()}"
        # A missing bucket or permission is an error before training.
        (self._remote / ".writable").write(b"")
        self._before, files = self._owner(), self._remote.files()
        if self.path.exists() and not self._before.startswith(mirror):
            self._set_aside()
        self.path.mkdir(exist_ok=True)
        tops = [n for n in files if "/" not in n and not hidden(n) and _RECORD in files]
        pull(self._remote, [n for n in tops if not (self.path / n).exists()], self.path)
        newest = max((rank(entry) for entry in self._local() if _valid(entry)), default=None)
        uploaded = visible(files)
        if uploaded and (newest is None or newest < max(map(rank, uploaded))):
            path = fetch_newest(self._remote, self.path)
            write_bytes_synced(path / _UPLOADED, (path / MANIFEST).read_bytes())

    def _set_aside(self) -> None:
        """Remove the mirror of an earlier state of the run, or rename it if it is not uploaded."""
        if self._next() is None:
            shutil.rmtree(self.path)
            return
        aside = self.path.with_name(f"{self.path.name}-stale-{time.time():.0f}")
        self.path.rename(aside)
        _logger.warning(
            "%s was continued or removed elsewhere. Checkpoints on this machine that were not "
            "uploaded are now in %s, and are not used.", self.url, aside,
        )  # fmt: skip

    def start(self, store: CheckpointStore, step: int, *, delete: bool = False) -> None:
        """Begin to upload.

        Args:
            store: Writer of the mirror's checkpoints; its `keep` applies to the bucket too.
            step: Step from which the run continues, -1 for a new run. Later checkpoints in the
                bucket are renamed to `abandoned-…`.
            delete: Whether to delete the earlier run in the bucket first.
        """
        arguments = (store, step, delete)
        self._thread = threading.Thread(
            target=self._work, args=arguments, name="towerpack-upload", daemon=True
        )
        self._thread.start()

    def check(self) -> None:
        """Raise `ConfigError` if another process has taken over the run."""
        if self._taken is not None:
            raise self._taken

    def _owner(self) -> str:
        return read_if_exists(self._remote / _OWNER).decode(errors="replace")

    def _check_owner(self) -> None:
        """Take over the run, if that was not done. Raise `ConfigError` if another process did."""
        owner = self._owner()
        if owner == self._before:
            (self._remote / _OWNER).write(self._name.encode())
            self._before = None
        elif owner and owner != self._name:
            self._taken = ConfigError(
                f"The run {self.url} was continued by another process.",
                got=f"{owner.partition(' ')[2]} (this was process {os.getpid()})",
                fix="start a run once, or choose another run_dir=",
            )
            self._ended.set()
        self.check()

    def _work(self, store: CheckpointStore, step: int, delete: bool) -> None:
        prepared = failing = False
        pause = 0.0
        while not self._ended.is_set():
            closing = self._closing.wait(pause)
            began = time.monotonic()
            try:
                self._check_owner()
                if not prepared:
                    self._prepare(step, delete)
                prepared = True
                self._push(store)
            except Exception as error:  # noqa: BLE001 - logged; training continues
                if not failing and self._taken is None:
                    _logger.warning("Uploads fail. They are tried again. %s", error)
                failing = True
                self._ended.wait(PAUSE_S / 10)
                continue
            if failing:
                _logger.info("Uploads to %s succeed again.", self.url)
            failing = False
            if closing:
                return
            # Leave most of the network and the disk to training.
            pause = max(PAUSE_S, 2 * (time.monotonic() - began))

    def _prepare(self, step: int, delete: bool) -> None:
        files = self._remote.files()
        if delete and _RECORD in files:
            tops = {name.partition("/")[0] for name in files if not hidden(name)}
            for name in sorted(tops, key=lambda name: name == _RECORD):
                (self._remote / name).remove()
            return
        for entry in visible(files)[::-1]:
            if entry.step > step:
                folder = f"{CHECKPOINTS}/{entry.name}/"
                for name in (name for name in files if name.startswith(folder)):
                    target = name.replace(entry.name, f"{ABANDONED}{entry.name}", 1)
                    (self._remote / name).copy_to(self._remote / target)
                self._remove(entry.name)

    def _push(self, store: CheckpointStore) -> None:
        """Upload what has changed in the mirror since the last call."""
        self._tidy(store.keep)
        while (entry := self._next()) is not None:
            try:
                self._upload(entry)
            except (ConfigError, OSError, InvalidCheckpointError):
                # The store may have removed the checkpoint meanwhile.
                if self._taken is not None or _valid(entry):
                    raise
            self._tidy(store.keep)
        self._upload_files()

    def _tidy(self, keep: int | None) -> None:
        """Remove incomplete checkpoints, and those that the store of the mirror would not keep."""
        files = self._remote.files()
        entries = visible(files)
        newest = {entry.tag: entry for entry in entries}  # of each tag
        untagged = [entry for entry in entries if entry.untagged]
        retained = {entry.name for entry in [*newest.values(), *untagged[-(keep or 0) :]]}
        names = {name.split("/")[1] for name in files if name.startswith(f"{CHECKPOINTS}/")}
        for name in sorted(names - retained):
            if place(Path(name)) is not None:
                self._remove(name)

    def _local(self) -> list[Place]:
        return places(self._checkpoints) if self._checkpoints.is_dir() else []

    def _next(self) -> Place | None:
        """Return the newest valid local checkpoint that is not in the bucket."""
        for entry in reversed(self._local()):
            with suppress(FileNotFoundError):
                data, uploaded = (entry.path / MANIFEST).read_bytes(), entry.path / _UPLOADED
                if not (uploaded.exists() and uploaded.read_bytes() == data) and _valid(entry):
                    return entry
        return None

    def _upload(self, entry: Place) -> None:
        folder = f"{CHECKPOINTS}/{entry.name}"
        data, manifest = (entry.path / MANIFEST).read_bytes(), check(entry.path, checksums=False)
        self._remove(entry.name)  # an earlier one of the same name
        for name, record in manifest.files.items():
            self._check_ended()
            target = self._remote / f"{folder}/{name}"
            if record.sha256 in self._copies:
                (self._remote / self._copies[record.sha256]).copy_to(target)
            else:
                target.upload(entry.path / name)
        self._upload_files()
        check_sizes(self._remote.files(), entry, manifest)
        self._check_owner()
        if (entry.path / MANIFEST).read_bytes() == data:
            (self._remote / f"{folder}/{MANIFEST}").write(data)
            self._copies |= {r.sha256: f"{folder}/{name}" for name, r in manifest.files.items()}
            write_bytes_synced(entry.path / _UPLOADED, data)

    def _upload_files(self) -> None:
        for name, version in self._changed().items():
            self._check_ended()
            try:
                (self._remote / name).upload(self.path / name)
            except (ConfigError, OSError):
                if (self.path / name).exists():
                    raise
            self._sent[name] = version

    def _changed(self) -> dict[str, tuple[int, int]]:
        """Return the changed files of the run by name, without checkpoints and hidden files."""
        changed: dict[str, tuple[int, int]] = {}
        # Unlike `Path.rglob`, `os.walk` passes over folders that are removed meanwhile.
        for file in (
            Path(folder, name) for folder, _, names in os.walk(self.path) for name in names
        ):
            name = file.relative_to(self.path).as_posix()
            if not (hidden(name) or name.startswith(f"{CHECKPOINTS}/")):
                with suppress(FileNotFoundError):
                    status = file.lstat()
                    version = status.st_mtime_ns, status.st_size
                    if stat.S_ISREG(status.st_mode) and self._sent.get(name) != version:
                        changed[name] = version
        return changed

    def _remove(self, name: str) -> None:
        # Remove the manifest first, so that no reader finds a checkpoint without its files.
        folder = self._remote / CHECKPOINTS / name
        (folder / MANIFEST).remove()
        below = f"{CHECKPOINTS}/{name}/"
        self._copies = {k: v for k, v in self._copies.items() if not v.startswith(below)}
        folder.remove()

    def _check_ended(self) -> None:
        if self._ended.is_set():
            raise RemoteFileError(f"The upload to {self.url} was ended.")

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        try:
            self._finish()
            if failure is None:
                self.check()
        except TowerpackError as error:
            if failure is None:
                raise
            _logger.error("%s", error)
        finally:
            self._ended.set()
            self._lock.release()

    def _finish(self) -> None:
        """Wait for the uploads. Raise `RemoteFileError` if they take too long."""
        if self._thread is None:
            return
        limit = float(os.environ.get(UPLOAD_LIMIT) or 300)
        self._closing.set()
        self._thread.join(min(limit, 2.0))
        if self._thread.is_alive():
            _logger.info("Waiting for uploads to %s, at most %.0f s.", self.url, limit)
            self._thread.join(max(0.0, limit - 2.0))
        if self._thread.is_alive():
            self._ended.set()
            entry = self._next()
            left = [*([] if entry is None else [entry.name]), *self._changed()]
            raise RemoteFileError(
                f"The end of the run was not uploaded to {self.url} within {limit:g} s.",
                got=f"not uploaded: {', '.join(left[:8])}. All files are in {self.path}",
                fix="run the same command again on this machine, which uploads them. Set "
                f"{UPLOAD_LIMIT} to wait longer",
            )


def _valid(entry: Place) -> bool:
    try:
        check(entry.path, checksums=False, expected=entry)
    except (InvalidCheckpointError, OSError):
        return False
    return True
