import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from towerpack._core.errors import CheckpointError, ConfigError
from towerpack._core.files import fsync_dir
from towerpack._core.locks import FileLock, LockHeldError
from towerpack._core.logs import get_logger
from towerpack.checkpoint._codec import encode_state
from towerpack.checkpoint._find_and_read import MAX_STATE_BYTES, check
from towerpack.checkpoint._layout import ABANDONED, LOCK, Place, directory_name, places, tag_name
from towerpack.checkpoint._manifest import (
    InvalidCheckpointError,
    Manifest,
    fingerprint,
    is_group,
)
from towerpack.checkpoint._write import (
    link_checkpoint,
    remove_checkpoint,
    sweep,
    write_checkpoint,
)
from towerpack.checkpoint.tensors import specs_of

_logger = get_logger(__name__)


class CheckpointStore(AbstractContextManager["CheckpointStore"]):
    """Writer of checkpoints to one directory. No other process can write there while it is open.

    A background thread writes one checkpoint at a time. The arrays must not change until it is
    written, so pass copies. The thread is not a daemon: a program that ends waits for it. A failure
    is logged at once, and the next call of `save`, `keep_as`, `wait` or `close` raises it and does
    nothing else. Earlier checkpoints remain valid.

    Use the store as a context manager, or call `close`. It is not thread-safe.

    Args:
        directory: The run's `checkpoints` directory; created if it does not exist.
        keep: Number of valid `step-…` checkpoints to keep, the newest ones; None for all. The
            newest checkpoint of each tag is also kept.
        clock: Function that returns the time to record in a checkpoint.

    Raises:
        CheckpointError: The directory is not writable, or another writer uses it.
        ConfigError: `keep` is not positive.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if keep is not None and keep < 1:
            raise ConfigError(f"keep must be at least 1, or None for all, got {keep}.")
        self.directory = Path(directory)
        self.keep = keep
        self._clock = clock
        self._pool = ThreadPoolExecutor(1, "towerpack-checkpoint")
        self._jobs: list[Future[None]] = []  # Jobs whose failures have not been reported
        self._in_flight: int | None = None
        self._tags: dict[str, str] = {}
        self._closed = False
        self._lock = self._open_directory()

    def _open_directory(self) -> FileLock:
        lock = FileLock(self.directory / LOCK)
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            if lock.acquire():
                for name in sweep(self.directory):
                    _logger.info("Removed %s of a writer that was killed.", name)
        except LockHeldError as error:
            raise CheckpointError(
                f"The directory {self.directory} is used by another writer: {error.holder} holds "
                f"its lock (this is process {os.getpid()}).",
                fix="close the other CheckpointStore, end the other process, or use another "
                "run directory",
            ) from None
        except OSError as error:
            raise CheckpointError(
                f"The directory {self.directory} must be writable to save checkpoints, got "
                f"{type(error).__name__}: {error}.",
                fix="make the directory writable, or choose another run directory",
            ) from error
        return lock

    def save(
        self,
        step: int,
        tensors: Mapping[str, Mapping[str, np.ndarray]],
        state: Any = None,
        *,
        tag: str | None = None,
        info: Mapping[str, Any] | None = None,
        blocking: bool = False,
    ) -> Path:
        """Save a checkpoint. It replaces an older checkpoint with the same step and tag.

        This waits for the previous save. A background thread writes the files after the return.

        Args:
            step: Global step.
            tensors: Groups of named arrays, such as `{"model": {...}, "optimizer": {...}}`. They
                must not change until the save is done.
            state: State for `encode_state`. It may change after this call.
            tag: None for a `step-…` checkpoint. After the save, older checkpoints with the same tag
                ("best-val/error") are removed.
            info: A few JSON values for the manifest, such as the score; `ckpt ls` shows them.
            blocking: Whether to wait until the checkpoint is on disk.

        Returns:
            Path of the checkpoint.

        Raises:
            CheckpointError: The previous save failed, or (if blocking) this one.
            ConfigError: The step, a group, the tag or `info` is not valid.
            StateError: The state cannot be stored.
        """
        self.wait()
        if step < 0 or step >= 10**18:
            raise ConfigError(f"step must be at least 0 and below 10**18, got {step}.")
        for group in tensors:
            if not is_group(group):
                raise ConfigError(
                    "The name of a group of tensors must start with a-z and have at most 64 "
                    f"characters a-z, 0-9 and _, such as 'model', got {group!r}."
                )
        data = encode_state(state)
        if len(data) > MAX_STATE_BYTES:
            raise CheckpointError(
                f"The state of step {step} must have at most {MAX_STATE_BYTES} bytes as JSON, got "
                f"{len(data)}.",
                fix="pass large arrays as tensors instead, or use smaller shuffle buffers",
            )
        manifest = Manifest(
            step=step,
            tag=None if tag is None else self._check_tag(tag),
            saved_at=self._clock(),
            fingerprint=fingerprint({name: specs_of(a, name) for name, a in tensors.items()}),
            files={},
            info=_checked_info(info),
        )
        groups = {group: dict(arrays) for group, arrays in tensors.items()}
        self._in_flight = step if tag is None else None
        self._start(lambda: self._write(manifest, groups, data))
        if blocking:
            self.wait()
        return self.directory / directory_name(step, tag)

    def keep_as(
        self, step: int, tag: str, *, info: Mapping[str, Any] | None = None, blocking: bool = False
    ) -> Path:
        """Copy the checkpoint of a step to a tagged checkpoint, unless a valid copy exists.

        Files are hard-linked, not copied. If a save is in progress, the copy is made after it.

        Args:
            step: Step of an existing `step-…` checkpoint, or of the save in progress.
            tag, info, blocking: Same as for `save`.

        Returns:
            Path of the copy.

        Raises:
            CheckpointError: The previous save failed, or the step has no checkpoint.
        """
        self._report()
        if not self.has(step):
            steps = sorted(entry.step for entry in self._untagged())
            raise CheckpointError(
                f"The step {step} has no checkpoint that could be kept as {tag!r}. "
                f"{self.directory} has checkpoints of the steps {steps}.",
                fix=f"call save({step}, …, tag={tag!r}) instead",
            )
        checked = self._check_tag(tag), _checked_info(info)
        self._start(lambda: self._link(step, *checked))
        if blocking:
            self.wait()
        return self.directory / directory_name(step, tag)

    def has(self, step: int) -> bool:
        """Return whether a valid `step-…` checkpoint of a step exists or is being saved.

        Args:
            step: Global step.
        """
        if self.saving and self._in_flight == step:
            return True
        return _whole(self.directory / directory_name(step))

    @property
    def saving(self) -> bool:
        """Whether a save is in progress."""
        return not all(job.done() for job in self._jobs)

    def abandon_after(self, step: int) -> list[Path]:
        """Rename checkpoints of later steps to `abandoned-…`, because a run continues from a step.

        These checkpoints belong to another course of the run, so no resume may load them. They are
        never loaded and never removed. The newest one is renamed first, so that after an
        interruption the others still belong to one course.

        Args:
            step: Step from which the run continues.

        Returns:
            New paths of the checkpoints.

        Raises:
            CheckpointError: The previous save failed, or a directory cannot be renamed.
        """
        self.wait()
        moved: list[Path] = []
        for later in [entry for entry in places(self.directory) if entry.step > step][::-1]:
            target = later.path.with_name(ABANDONED + later.name)
            number = 2
            while target.exists():
                target = later.path.with_name(f"{ABANDONED}{later.name}.{number}")
                number += 1
            try:
                later.path.rename(target)
                fsync_dir(self.directory)
            except OSError as error:
                raise self._failure(f"{later.path} cannot be renamed", error) from error
            moved.append(target)
            _logger.warning(
                "The run continues at step %d: renamed the later %s to %s.",
                step,
                later.name,
                target.name,
            )
        return moved

    def wait(self) -> None:
        """Wait until all saves are on disk.

        Raises:
            CheckpointError: A save failed.
        """
        wait(self._jobs)
        self._report()

    def close(self) -> None:
        """Wait for the last save, and release the directory. A second call does nothing.

        Raises:
            CheckpointError: A save failed.
        """
        try:
            self.wait()
        finally:
            self._closed = True
            if not self.saving:  # A save is still in progress if the wait was interrupted.
                self._pool.shutdown()
                self._lock.release()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_tag(self, tag: str) -> str:
        other = self._tags.setdefault(tag_name(tag), tag)
        if other != tag:
            raise ConfigError(
                f"Tags {other!r} and {tag!r} must not share the directory name {tag_name(tag)!r}.",
                fix="rename one of the two tags",
            )
        return tag

    def _write(
        self, manifest: Manifest, groups: Mapping[str, Mapping[str, np.ndarray]], state: bytes
    ) -> None:
        if not self.directory.is_dir():
            _logger.warning(
                "%s and all checkpoints in it were deleted during the run. Created it again.",
                self.directory,
            )
            self._lock.release()
            self._lock = self._open_directory()
        try:
            write_checkpoint(self.directory, manifest, groups, state)
        except (OSError, MemoryError) as error:
            sizes = (array.nbytes for arrays in groups.values() for array in arrays.values())
            what = f"The checkpoint of step {manifest.step} was not saved"
            raise self._failure(what, error, needed=sum(sizes) + len(state)) from error
        self._prune(manifest.step, manifest.tag)

    def _link(self, step: int, tag: str, info: Mapping[str, Any]) -> None:
        source = self.directory / directory_name(step)
        try:
            manifest = check(source, checksums=False)
            if not _whole(self.directory / directory_name(step, tag)):
                link_checkpoint(source, manifest, tag, info)
        except (InvalidCheckpointError, OSError) as error:
            what = f"The checkpoint of step {step} was not kept as {tag!r}"
            raise self._failure(what, error) from error
        self._prune(step, tag)

    def _prune(self, step: int, tag: str | None) -> None:
        if tag is not None:
            same_tag = [p for p in places(self.directory) if p.tag == tag_name(tag)]
            surplus = [p for p in same_tag if p.step != step]
        elif self.keep is None:
            return
        else:
            # Invalid checkpoints do not count, because a run cannot resume from them.
            untagged = self._untagged()
            if len(untagged) <= self.keep:
                return
            valid = [p.step for p in untagged if p.step == step or _whole(p.path)]
            oldest = valid[-self.keep] if len(valid) >= self.keep else 0
            surplus = [p for p in untagged if p.step < oldest and p.step != step]
        for entry in surplus:
            try:
                remove_checkpoint(entry.path)
            except OSError as error:
                raise self._failure(f"{entry.path} cannot be removed", error) from error

    def _untagged(self) -> list[Place]:
        return [entry for entry in places(self.directory) if entry.untagged]

    def _start(self, job: Callable[[], None]) -> None:
        if self._closed:
            raise CheckpointError(
                f"The CheckpointStore of {self.directory} must be open to save, but was closed.",
                fix=f"create a new store: CheckpointStore({str(self.directory)!r})",
            )
        self._jobs.append(self._pool.submit(self._run, job, list(self._jobs)))

    def _run(self, job: Callable[[], None], before: Sequence[Future[None]]) -> None:
        if any(future.exception() for future in before):
            return
        try:
            job()
        except CheckpointError as error:
            _logger.error("%s", error)
            raise
        except BaseException as cause:
            error = self._failure("A checkpoint was not saved", cause)
            _logger.error("%s", error, exc_info=cause)
            raise error from cause

    def _report(self) -> None:
        done = [job for job in self._jobs if job.done()]
        self._jobs = [job for job in self._jobs if job not in done]
        for job in done:
            job.result()

    def _failure(self, what: str, error: BaseException, *, needed: int = 0) -> CheckpointError:
        gone = isinstance(error, FileNotFoundError)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return CheckpointError(
            f"{what}: {reason}.",
            got=f"{type(error).__name__}: {error}",
            fix=("check which program removes files there" if gone else "free or repair the disk")
            + ", and run the same command again: it continues from the newest checkpoint",
            details=self._remaining(needed),
        )

    def _remaining(self, needed: int) -> str:
        try:
            free = shutil.disk_usage(self.directory).free
            names = [entry.name for entry in places(self.directory)]
        except OSError as error:
            return f"The directory cannot be read: {error}."
        size = f"{needed / 1e6:.1f} MB to write, {free / 1e6:.1f} MB free. " if needed else ""
        return f"{size}Intact: {', '.join(names[-8:]) or 'there was no earlier checkpoint'}."


def _whole(path: Path) -> bool:
    try:
        check(path, checksums=False)
    except (InvalidCheckpointError, OSError):
        return False
    return True


def _checked_info(info: Mapping[str, Any] | None) -> dict[str, Any]:
    plain = dict(info or {})
    try:
        text = json.dumps(plain, allow_nan=False)
    except (TypeError, ValueError):
        text = "null"
    if len(text) > 1 << 16 or json.loads(text) != plain:
        raise ConfigError(
            "info must be a dict of JSON values (finite numbers, at most 64 KiB of text), got "
            f"{plain!r:.200}.",
            fix="pass large values and other types as state= instead",
        )
    return plain
