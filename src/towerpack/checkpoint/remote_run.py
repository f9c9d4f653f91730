"""Run in an object store: a local mirror in which the run is trained, and a thread that uploads it.

The mirror is brought up to date before training. The thread then compares it with what is in the
bucket, so nothing is queued, and after an outage it continues where it failed. Of a checkpoint, its
files are uploaded first, then the other files of the run, and then the manifest.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Final

from towerpack._core.errors import ConfigError, RemoteFileError, TowerpackError
from towerpack._core.files import write_bytes_synced
from towerpack._core.locks import FileLock, LockHeldError
from towerpack._core.logs import get_logger
from towerpack._core.remote_path import RemotePath
from towerpack.checkpoint._find_and_read import check
from towerpack.checkpoint._layout import ABANDONED, CHECKPOINTS, MANIFEST, Place, place, places
from towerpack.checkpoint._lease import Lease
from towerpack.checkpoint._manifest import InvalidCheckpointError, Manifest
from towerpack.checkpoint._store import CheckpointStore
from towerpack.checkpoint.remote_copies import (
    cache_folder,
    check_sizes,
    disk_errors,
    fetch_newest,
    hidden,
    pull,
    rank,
    visible,
)

UPLOAD_LIMIT: Final = "TOWERPACK_UPLOAD_SECONDS"
PAUSE_S = 10.0
DEADLINE_S = 20.0
_RECORD: Final = "run.json"
# The replay memory of an agent is large and changes at every step, so it is not uploaded.
_NOT_UPLOADED: Final = (CHECKPOINTS, "replay")
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
        self.lease = Lease(self.url)
        self._remote = RemotePath(self.url, deadline=DEADLINE_S)
        self._checkpoints = self.path / CHECKPOINTS
        self._lock = FileLock(self.path.parent / ".lock")
        self._thread: threading.Thread | None = None
        self._closing, self._ended = threading.Event(), threading.Event()
        # Manifests of the complete checkpoints in the bucket; empty if not read.
        self._manifests: dict[str, bytes] = {}
        self._partial: set[str] = set()  # incomplete checkpoints in the bucket
        self._copies: dict[str, RemotePath] = {}  # uploaded files by checksum
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
                with suppress(TowerpackError):
                    self.lease.release()
                self._lock.release()
                raise
        return self

    def _update(self) -> None:
        """Claim the run. Download what the mirror lacks: files, and the newest checkpoint."""
        file = self.path.parent / "owner"
        owner, same = self.lease.claim(file.read_text() if file.exists() else None)
        files = self._remote.files()
        uploaded = visible(files)
        local = places(self._checkpoints) if self._checkpoints.is_dir() else []
        names = {entry.name for entry in local}
        for entry in uploaded:
            manifest = self._remote / CHECKPOINTS / entry.name / MANIFEST
            self._manifests[entry.name] = manifest.read() if entry.name in names else b""
        if not same and self.path.exists():
            self._set_aside()
            local = []
        self.path.mkdir(exist_ok=True)
        write_bytes_synced(file, owner.encode())
        tops = [n for n in files if "/" not in n and not hidden(n) and _RECORD in files]
        pull(self._remote, [n for n in tops if not (self.path / n).exists()], self.path)
        newest = max((rank(entry) for entry in local if _valid(entry)), default=(False, -1))
        if uploaded and newest < max(map(rank, uploaded)):
            checkpoint = fetch_newest(self._remote, self._checkpoints)
            self._manifests[checkpoint.name] = (checkpoint / MANIFEST).read_bytes()

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
        if self.lease.lost:
            self.lease.check()

    def _work(self, store: CheckpointStore, step: int, delete: bool) -> None:
        prepared = failing = False
        pause = PAUSE_S
        while not self._ended.is_set() and not self.lease.lost:
            closing = self._closing.wait(pause)
            began = time.monotonic()
            try:
                self.lease.check()
                if not prepared:
                    self._prepare(step, delete)
                prepared = True
                self._push(store)
            except Exception as error:  # noqa: BLE001 - logged; training continues
                if self.lease.lost:
                    _logger.error("%s", error)
                elif not failing:
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
            self._manifests.clear()
            files = {}
        folder = self._remote / CHECKPOINTS
        names = {name.split("/")[1] for name in files if name.startswith(f"{CHECKPOINTS}/")}
        self._partial |= {n for n in names - self._manifests.keys() if place(Path(n))}
        for entry in visible(files)[::-1]:
            if entry.step > step:
                for file in (folder / entry.name).files():
                    (folder / entry.name / file).copy_to(folder / f"{ABANDONED}{entry.name}" / file)
                self._remove(entry.name)

    def _push(self, store: CheckpointStore) -> None:
        """Upload what has changed in the mirror since the last call."""
        self._remove_surplus(store.keep)
        while (entry := self._next()) is not None:
            try:
                self._upload(entry)
            except (ConfigError, OSError, InvalidCheckpointError):
                # The store may have removed the checkpoint meanwhile.
                if self.lease.lost or _valid(entry):
                    raise
            self._remove_surplus(store.keep)
        self._upload_files()

    def _next(self) -> Place | None:
        """Return the newest valid local checkpoint that is not in the bucket."""
        entries = places(self._checkpoints) if self._checkpoints.is_dir() else []
        for entry in entries[::-1]:
            with suppress(FileNotFoundError):
                data = (entry.path / MANIFEST).read_bytes()
                if data != self._manifests.get(entry.name) and _valid(entry):
                    return entry
        return None

    def _upload(self, entry: Place) -> None:
        remote = self._remote / CHECKPOINTS / entry.name
        data, manifest = (entry.path / MANIFEST).read_bytes(), check(entry.path, checksums=False)
        if entry.name in self._manifests:
            self._remove(entry.name)
        self._partial.add(entry.name)
        for name, record in manifest.files.items():
            self._check_ended()
            copy = self._copies.get(record.sha256)
            if copy is None:
                (remote / name).upload(entry.path / name)
            else:
                copy.copy_to(remote / name)
        self._upload_files()
        check_sizes(remote, manifest)
        self.lease.check()
        if (entry.path / MANIFEST).read_bytes() == data:
            (remote / MANIFEST).write(data)
            self._manifests[entry.name] = data
            self._partial.discard(entry.name)
            self._copies |= {r.sha256: remote / name for name, r in manifest.files.items()}

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
        for folder, folders, files in os.walk(self.path):
            top = Path(folder) == self.path
            folders[:] = [n for n in folders if not (hidden(n) or (top and n in _NOT_UPLOADED))]
            for file in (Path(folder, name) for name in files if not hidden(name)):
                name = file.relative_to(self.path).as_posix()
                with suppress(FileNotFoundError):
                    version = (file.lstat().st_mtime_ns, file.stat().st_size)
                    if not file.is_symlink() and self._sent.get(name) != version:
                        changed[name] = version
        return changed

    def _remove_surplus(self, keep: int | None) -> None:
        """Remove the checkpoints that the store of the mirror would not keep."""
        entries = sorted(entry for n in self._manifests if (entry := place(Path(n))))
        untagged = [entry.name for entry in entries if entry.untagged]
        newest = {entry.tag: entry.name for entry in entries}
        surplus = untagged[:-keep] if keep else []
        surplus += [e.name for e in entries if not e.untagged and newest[e.tag] != e.name]
        surplus += [n for n in self._partial if not (self._checkpoints / n).exists()]
        for name in surplus:
            self._remove(name)

    def _remove(self, name: str) -> None:
        # Remove the manifest first, so that no reader finds a checkpoint without its files.
        folder = self._remote / CHECKPOINTS / name
        self._partial.add(name)
        (folder / MANIFEST).remove()
        self._manifests.pop(name, None)
        self._copies = {
            sha: f for sha, f in self._copies.items() if not f.url.startswith(f"{folder}/")
        }
        folder.remove()
        self._partial.discard(name)

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
            with suppress(TowerpackError):
                self.lease.release()
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
    manifest: Manifest | None = None
    with suppress(InvalidCheckpointError, OSError):
        manifest = check(entry.path, checksums=False, expected=entry)
    return manifest is not None
