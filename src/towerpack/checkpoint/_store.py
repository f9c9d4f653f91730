"""The writer of a run's checkpoints: in the background, a few kept, failures told."""

from __future__ import annotations

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
from towerpack.checkpoint._manifest import InvalidCheckpointError, is_group
from towerpack.checkpoint._write import (
    Content,
    link_checkpoint,
    remove_checkpoint,
    sweep,
    write_checkpoint,
)
from towerpack.checkpoint.tensors import specs_of

_logger = get_logger(__name__)


class CheckpointStore(AbstractContextManager["CheckpointStore"]):
    """Write checkpoints into one directory, which it alone may write to while it is open.

    At most one save is in flight. It is written by a thread of its own, from arrays that nobody may
    change meanwhile: hand in copies. The thread is no daemon, so a program that ends finishes its
    save. A save that fails is logged at once and raised by the next `save`, `keep_as`, `wait` or
    `close`, once; that call does nothing else. Earlier checkpoints are not touched by it.

    Not thread-safe: one thread calls it. Use it as a context manager, or `close` it.

    Args:
        directory: The run's `checkpoints` directory; made if absent.
        keep: How many `step-…` checkpoints stay: the newest ones that are whole. None for all.
            Tagged ones are counted apart: one of each tag stays.
        clock: Gives the time that is noted.

    Raises:
        CheckpointError: The directory cannot be written to, or another writer has it.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        keep: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if keep is not None and keep < 1:
            raise ConfigError(f"keep={keep} checkpoints.", expected="at least 1, or None for all")
        self.directory = Path(directory)
        self.keep = keep
        self._clock = clock
        # Its thread is no daemon: a program that ends waits for its saves.
        self._pool = ThreadPoolExecutor(1, "towerpack-checkpoint")
        self._jobs: list[Future[None]] = []  # whose failures have not been reported
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
                    _logger.info("Removed %s, left by a writer that was killed.", name)
        except LockHeldError as error:
            raise CheckpointError(
                f"Another writer has {self.directory}.",
                got=f"a lock held by {error.holder} (this process is {os.getpid()})",
                fix="close the other CheckpointStore, end the other process, or use another "
                "run directory",
            ) from None
        except OSError as error:
            raise CheckpointError(
                f"Cannot write checkpoints into {self.directory}.",
                got=f"{type(error).__name__}: {error}",
                fix="make it writable, or choose another run directory",
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
        """Save a checkpoint, in place of an older one of this step and tag.

        Waits for the save before it, encodes the state, and returns while the rest is written.

        Args:
            step: The global step.
            tensors: Groups of named arrays, such as `{"model": {...}, "optimizer": {...}}`; not to
                be changed until the save is done.
            state: What `encode_state` takes; free to change once this returns.
            tag: None for a `step-…`. With a tag ("best-val/error"), older checkpoints of the tag
                are removed once this one is in place.
            info: A few JSON values for the manifest, such as the score; `ckpt ls` shows them.
            blocking: Return when it is on disk.

        Returns:
            Where the checkpoint is or will be.

        Raises:
            CheckpointError: The save before this one failed, or (if blocking) this one.
            StateError: The state cannot be stored.
        """
        self.wait()
        content = self._content(step, tensors, state, tag, info)
        self._in_flight = step if tag is None else None
        self._start(lambda: self._write(content))
        if blocking:
            self.wait()
        return self.directory / directory_name(step, tag)

    def keep_as(
        self, step: int, tag: str, *, info: Mapping[str, Any] | None = None, blocking: bool = False
    ) -> Path:
        """Keep the checkpoint of a step under a tag too, at the price of a few hard links.

        Does not wait for a save in flight, but comes after it. Where it is kept so already, it
        stays as it is.

        Raises:
            CheckpointError: As `save`; or there is no checkpoint of this step.
        """
        self._report()
        if not self.has(step):
            raise CheckpointError(
                f"There is no checkpoint of step {step} to keep as {tag!r}.",
                got=f"steps {sorted(one.step for one in self._untagged())} in {self.directory}",
                fix="save() it under the tag instead",
            )
        checked = self._check_tag(tag), _checked_info(info)
        self._start(lambda: self._link(step, *checked))
        if blocking:
            self.wait()
        return self.directory / directory_name(step, tag)

    def has(self, step: int) -> bool:
        """Whether there is a whole `step-…` of this step, or one is in flight."""
        if self.saving and self._in_flight == step:
            return True
        return _whole(self.directory / directory_name(step))

    @property
    def saving(self) -> bool:
        """Whether a save is in flight."""
        return not all(job.done() for job in self._jobs)

    def abandon_after(self, step: int) -> list[Path]:
        """Put aside the checkpoints of later steps than one that the run was resumed from.

        They belong to a course of events that is not this one, and a later resume must not take
        them for the newest. They are renamed to `abandoned-…`, never loaded and never removed.

        Returns:
            Where they are now.

        Raises:
            CheckpointError: The save before this one failed, or a directory cannot be renamed.
        """
        self.wait()
        moved: list[Path] = []
        for later in (one for one in places(self.directory) if one.step > step):
            target = later.path.with_name(ABANDONED + later.name)
            number = 2
            while target.exists():
                target = later.path.with_name(f"{ABANDONED}{later.name}.{number}")
                number += 1
            try:
                later.path.rename(target)
                fsync_dir(self.directory)
            except OSError as error:
                raise self._failure(f"Cannot put {later.path} aside", error) from error
            moved.append(target)
            _logger.warning(
                "Resumed at step %d: %s lies after it and is now %s.", step, later.name, target.name
            )
        return moved

    def wait(self) -> None:
        """Wait until everything asked for is on disk.

        Raises:
            CheckpointError: A save failed.
        """
        wait(self._jobs)
        self._report()

    def close(self) -> None:
        """Wait for the last save and give up the directory. Twice is harmless.

        Raises:
            CheckpointError: A save failed.
        """
        try:
            self.wait()
        finally:
            self._closed = True
            if not self.saving:  # Unless the waiting was interrupted.
                self._pool.shutdown()
                self._lock.release()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _content(
        self,
        step: int,
        tensors: Mapping[str, Mapping[str, np.ndarray]],
        state: Any,
        tag: str | None,
        info: Mapping[str, Any] | None,
    ) -> Content:
        if step < 0 or step >= 10**18:
            raise ConfigError(f"A checkpoint of step {step}.", expected="0 <= step < 10**18")
        for group in tensors:
            if not is_group(group):
                raise ConfigError(
                    f"{group!r} does not name a group of tensors.",
                    expected="a short name such as 'model': a-z, 0-9 and _",
                )
        data = encode_state(state)
        if len(data) > MAX_STATE_BYTES:
            raise CheckpointError(
                f"The state of step {step} is too large.",
                got=f"{len(data)} bytes as JSON",
                expected=f"at most {MAX_STATE_BYTES}",
                fix="put arrays among the tensors, or keep smaller shuffle buffers",
            )
        return Content(
            step=step,
            tag=None if tag is None else self._check_tag(tag),
            saved_at=self._clock(),
            tensors={group: dict(arrays) for group, arrays in tensors.items()},
            specs={group: specs_of(arrays, group) for group, arrays in tensors.items()},
            state=data,
            info=_checked_info(info),
        )

    def _check_tag(self, tag: str) -> str:
        other = self._tags.setdefault(tag_name(tag), tag)
        if other != tag:
            raise ConfigError(
                f"The tags {other!r} and {tag!r} would share the directory name {tag_name(tag)!r}.",
                fix="rename one of them",
            )
        return tag

    def _write(self, content: Content) -> None:
        what = f"The checkpoint of step {content.step} was not saved"
        if not self.directory.is_dir():
            _logger.warning(
                "%s was deleted during the run, with all checkpoints in it; it is made anew.",
                self.directory,
            )
            self._lock.release()
            self._lock = self._open_directory()
        try:
            write_checkpoint(self.directory, content)
        except (OSError, MemoryError) as error:
            raise self._failure(what, error, needed=content.nbytes) from error
        self._prune(content.step, content.tag)

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
            own = tag_name(tag)
            surplus = [p for p in places(self.directory) if p.tag == own and p.step != step]
        else:
            surplus = self._surplus(step)
        for one in surplus:
            try:
                remove_checkpoint(one.path)
            except OSError as error:
                raise self._failure(f"The old checkpoint {one.path} stays", error) from error

    def _surplus(self, step: int) -> list[Place]:
        if self.keep is None:
            return []
        # Broken ones do not count: keeping N means N to fall back on.
        whole = [one.step for one in self._untagged() if one.step == step or _whole(one.path)]
        if len(whole) < self.keep:
            return []
        oldest = whole[-self.keep]
        return [one for one in self._untagged() if one.step < oldest and one.step != step]

    def _untagged(self) -> list[Place]:
        return [one for one in places(self.directory) if one.untagged]

    def _start(self, job: Callable[[], None]) -> None:
        if self._closed:
            raise CheckpointError(
                f"The checkpoint store of {self.directory} is closed.", fix="make a new one"
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
        """Raise the first failure since the last report."""
        done = [job for job in self._jobs if job.done()]
        self._jobs = [job for job in self._jobs if job not in done]
        for job in done:
            job.result()

    def _failure(
        self, what: str, error: BaseException, *, needed: int | None = None
    ) -> CheckpointError:
        gone = isinstance(error, FileNotFoundError)
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return CheckpointError(
            f"{what}: {reason}.",
            got=f"{type(error).__name__}: {error}",
            expected=None if needed is None else self._room(needed),
            fix=("see what removes files there" if gone else "make room or mend the disk")
            + ", and run the same command again: it continues from the newest checkpoint",
            details=self._intact(),
        )

    def _room(self, needed: int) -> str | None:
        try:
            free = shutil.disk_usage(self.directory).free
        except OSError:
            return None
        return f"{needed / 1e6:.1f} MB to write, {free / 1e6:.1f} MB free"

    def _intact(self) -> str:
        try:
            names = [one.name for one in places(self.directory)]
        except OSError as error:
            return f"The directory cannot be read: {error}."
        return "Not touched: " + (", ".join(names[-8:]) or "there was no earlier checkpoint") + "."


def _whole(path: Path) -> bool:
    try:
        check(path, checksums=False)
    except (InvalidCheckpointError, OSError):
        return False
    return True


def _checked_info(info: Mapping[str, Any] | None) -> dict[str, Any]:
    plain = dict(info or {})
    try:
        same = json.loads(json.dumps(plain, allow_nan=False)) == plain
    except (TypeError, ValueError):
        same = False
    if not same or len(json.dumps(plain)) > 1 << 16:
        raise ConfigError(
            f"info={plain!r:.200} does not fit into a manifest.",
            expected="a small dict of JSON values (text, finite numbers, lists, dicts)",
            fix="put the rest into the state",
        )
    return plain
