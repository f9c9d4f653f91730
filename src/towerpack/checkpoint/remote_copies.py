"""Local copies of runs in object stores, for commands and loaders that read them.

The manifest of a checkpoint is uploaded last, so a directory without one is ignored. Checksums are
verified after each download.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Generator, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from towerpack._core.errors import CheckpointError, ConfigError
from towerpack._core.files import replacing, user_cache
from towerpack._core.locks import locked
from towerpack._core.logs import get_logger
from towerpack._core.remote_path import RemotePath
from towerpack.checkpoint._layout import CHECKPOINTS, MANIFEST, Place, place, tag_name
from towerpack.checkpoint._manifest import (
    MAX_MANIFEST_BYTES,
    CheckpointRow,
    FileRecord,
    InvalidCheckpointError,
    Manifest,
    parse_manifest,
    row_of,
)
from towerpack.checkpoint._write import publish, sweep
from towerpack.checkpoint.tensors import check_file, read_plain, sync_and_record

CACHE: Final = "TOWERPACK_RUN_CACHE"
_ATTEMPTS: Final = 3
_logger = get_logger(__name__)


def local_files(url: str, *folders: str, names: Iterable[str] | None = None) -> Path:
    """Download the files of a run, except its checkpoints. See `run_files`."""
    run = RemotePath(url.rstrip("/"))
    folder = cache_folder(run.url, "copy")
    files = [name for name in run.files() if not hidden(name)]
    if names is not None:
        wanted = [name for name in files if name.rpartition("/")[2] in names]
    else:
        wanted = [name for name in files if name.partition("/")[0] in (name, *folders)]
    if wanted or folder.exists():
        with _updating(folder):
            for old in folder.iterdir():
                if old.is_file() and old.name not in files and not hidden(old.name):
                    old.unlink()
            pull(run, wanted, folder)
    return folder


def local_checkpoint(url: str, tag: str | None = None) -> Path:
    """Download the newest valid checkpoint of a run behind a URL, or one given checkpoint."""
    run, name = _run_and_name(url)
    with _updating(cache_folder(run.url, "copy")) as folder:
        return fetch_newest(run, folder, tag, name)


def list_remote(url: str, *, checksums: bool) -> list[CheckpointRow]:
    """Return the complete checkpoints of a run behind a URL, from their manifests."""
    run, _ = _run_and_name(url)
    with _updating(cache_folder(run.url, "copy")) as folder:
        files = run.files()

        def examine(entry: Place) -> Manifest:
            if checksums:
                _fetch(run, entry)
            manifest = parse_manifest(read_if_exists(_remote(run, entry) / MANIFEST))
            check_sizes(files, entry, manifest)
            return manifest

        return [row_of(entry, examine) for entry in visible(files, folder)]


def cache_folder(url: str, kind: str) -> Path:
    """Return the cache directory for a URL. `kind` is "copy" for readers and "run" for a writer."""
    base = os.environ.get(CACHE)
    digest = hashlib.sha256(url.encode()).hexdigest()[:12]
    runs = (Path(base).absolute() if base else user_cache()) / "runs"
    return runs / digest / kind / (RemotePath(url).name or urlsplit(url).netloc)


def hidden(name: str) -> bool:
    """Return whether a file is not one of a run's, or its name could lead to another folder."""
    return any(part.startswith(".") or not part for part in name.split("/"))


def read_if_exists(file: RemotePath) -> bytes:
    """Return the content of a file, which is empty if there is no such file."""
    try:
        return file.read()
    except ConfigError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return b""
        raise


def visible(files: Iterable[str], folder: Path = Path()) -> list[Place]:
    """Return the checkpoints that have a manifest, with their paths in a local run directory."""
    paths = (Path(name) for name in files if name.endswith(f"/{MANIFEST}"))
    named = (path.parent for path in paths if path.match(f"{CHECKPOINTS}/*/*"))
    return sorted(entry for path in named if (entry := place(folder / path)) is not None)


def rank(entry: Place) -> tuple[bool, int]:
    """Return a key whose maximum is the checkpoint that a resumed run loads."""
    return entry.untagged, entry.step


def fetch_newest(
    run: RemotePath, folder: Path, tag: str | None = None, name: str | None = None
) -> Path:
    """Download the newest valid checkpoint of a run to its local directory.

    Raises:
        CheckpointError: No valid checkpoint exists.
    """
    problems: dict[str, str] = {}
    seen: list[Place] | None = None
    # If a writer has removed checkpoints meanwhile, the listing has changed, so look again.
    while (entries := visible(run.files(), folder)) != seen:
        seen = entries
        for entry in sorted(entries, key=rank, reverse=True):
            if (tag and entry.tag != tag_name(tag)) or name not in (None, entry.name):
                continue
            try:
                return _fetch(run, entry)
            except InvalidCheckpointError as problem:
                problems[entry.name] = str(problem)
                _logger.warning("Skipped checkpoint %s of %s: %s.", entry.name, run, problem)
    what = name or f"valid checkpoint{f' tagged {tag!r}' if tag else ''}"
    got = [f"{entry}: {problem}" for entry, problem in problems.items()]
    raise CheckpointError(
        f"{run} contains no {what}.",
        got="\n".join(got) or ", ".join(entry.name for entry in entries) or "no checkpoint",
        fix="check the URL, or let the run upload a checkpoint first",
    )


def _fetch(run: RemotePath, entry: Place) -> Path:
    """Download one checkpoint, unless it is there already."""
    remote = _remote(run, entry)
    data = read_if_exists(remote / MANIFEST)
    files = parse_manifest(data).files

    def fill(folder: Path) -> bytes:
        for name, record in files.items():
            _download(remote / name, folder / name, record)
        return data

    with suppress(InvalidCheckpointError):
        for name, record in files.items():
            check_file(entry.path / name, record, checksum=True)
        if read_plain(entry.path / MANIFEST, limit=MAX_MANIFEST_BYTES) == data:
            return entry.path
    entry.path.parent.mkdir(parents=True, exist_ok=True)
    return publish(entry.path.parent, entry.name, fill)


def _remote(run: RemotePath, entry: Place) -> RemotePath:
    return run / CHECKPOINTS / entry.name


def _download(remote: RemotePath, path: Path, record: FileRecord) -> None:
    for _ in range(_ATTEMPTS):
        try:
            remote.download(path)
        except ConfigError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                raise InvalidCheckpointError(f"{path.name} is missing") from error
            raise
        if sync_and_record(path) == record:
            return
    raise InvalidCheckpointError(f"{path.name} is damaged (its checksum does not match)")


def check_sizes(files: Mapping[str, int], entry: Place, manifest: Manifest) -> None:
    """Raise `InvalidCheckpointError` if a file of the bucket has another size than expected."""
    for name, record in manifest.files.items():
        size = files.get(f"{CHECKPOINTS}/{entry.name}/{name}", 0)
        if size != record.nbytes:
            raise InvalidCheckpointError(f"{name} has {size} bytes instead of {record.nbytes}")


def pull(run: RemotePath, names: Iterable[str], folder: Path) -> None:
    """Download files of a run. Each replaces the local file when it is complete."""

    def download(name: str) -> None:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as part:
            (run / name).download(part)
            sync_and_record(part)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(download, names))


@contextmanager
def disk_errors(folder: Path) -> Generator[None]:
    """Raise `ConfigError` for errors of the local disk."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"The local copy {folder} of a remote run cannot be written.",
            got=f"{type(error).__name__}: {error}",
            fix=f"free space on that disk, or set {CACHE} to a directory on another disk",
        ) from error


@contextmanager
def _updating(folder: Path) -> Generator[Path]:
    """Create a copy and lock it. Other readers wait."""
    with disk_errors(folder):
        (folder / CHECKPOINTS).mkdir(parents=True, exist_ok=True)
        with locked(folder / ".lock", look_again_s=0.2):
            sweep(folder / CHECKPOINTS)
            yield folder


def _run_and_name(url: str) -> tuple[RemotePath, str | None]:
    """Split the URL of a run, of its checkpoints or of one checkpoint."""
    run, _, last = url.rstrip("/").rpartition("/")
    if last == CHECKPOINTS:
        return RemotePath(run), None
    above, _, folder = run.rpartition("/")
    is_checkpoint = folder == CHECKPOINTS and place(Path(last)) is not None
    return (RemotePath(above), last) if is_checkpoint else (RemotePath(url.rstrip("/")), None)
