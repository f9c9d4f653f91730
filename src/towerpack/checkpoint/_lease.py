"""Lease of a run in an object store, which names the process that writes the run.

Object stores have no locks. A process takes over the lease if its holder has ended, or has not
renewed it for `3 * BEAT_S` seconds. The process then reads it again, because another one may have
taken it at the same time. A holder that finds the lease taken writes nothing more. One case
remains: the last write of a holder that was cut off from the network for so long.
"""

from __future__ import annotations

import json
import os
import platform
import secrets
import threading
import time
from typing import Any

from towerpack._core.errors import ConfigError
from towerpack._core.logs import get_logger
from towerpack._core.remote_path import RemotePath
from towerpack.checkpoint._layout import LEASE

BEAT_S = 15.0
SETTLE_S = 0.5
_logger = get_logger(__name__)


class Lease:
    """Lease of a run. A thread renews it until `release`. `lost` says whether it was taken over.

    Args:
        run: URL of the run.
    """

    def __init__(self, run: str) -> None:
        self._run = run
        self._file = RemotePath(f"{run}/{LEASE}", deadline=BEAT_S)
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="towerpack-lease", daemon=True)
        self._mine: dict[str, Any] = {
            "session": secrets.token_hex(8),
            "host": platform.node(),
            "pid": os.getpid(),
            "beat": 0,
        }
        self.lost = False

    def claim(self, owner: str | None) -> tuple[str, bool]:
        """Take the lease. Return its new owner, and whether it had the given owner.

        The owner identifies a local mirror, whose file lock shows that earlier processes on this
        machine have ended.

        Raises:
            ConfigError: Another process holds the lease.
        """
        before = self._read()
        same = owner is not None and before.get("owner") == owner
        is_alone = same and before.get("host") == self._mine["host"]
        if before and not before.get("ended") and not is_alone:
            _logger.info("Waiting %.0f s to see whether %s runs.", 3 * BEAT_S, _name(before))
            for _ in range(15):
                time.sleep(BEAT_S / 5)
                now = self._read()
                if now != before and not now.get("ended"):
                    raise self._taken(now)
        self._mine["owner"] = owner if owner and same else secrets.token_hex(8)
        self._write()
        time.sleep(SETTLE_S)
        self.check()
        self._thread.start()
        return self._mine["owner"], same

    def check(self) -> None:
        """Raise `ConfigError` if another process has taken the lease."""
        holder = self._read()
        if holder and holder.get("session") != self._mine["session"]:
            self.lost = True
            raise self._taken(holder)

    def release(self) -> None:
        """Mark the lease as ended, so that the next process need not wait."""
        self._released.set()
        if self._thread.ident is None:  # not claimed
            return
        self._thread.join()
        if not self.lost:
            self._write(ended=True)

    def _renew(self) -> None:
        while not self.lost and not self._released.wait(BEAT_S):
            try:
                self.check()
                self._write()
            except Exception as error:  # noqa: BLE001 - uploads report failures of the network
                _logger.debug("The lease of %s was not renewed: %s", self._run, error)

    def _write(self, *, ended: bool = False) -> None:
        self._mine["beat"] += 1
        self._file.write(json.dumps({**self._mine, "time": time.time(), "ended": ended}).encode())

    def _read(self) -> dict[str, Any]:
        try:
            return dict(json.loads(self._file.read()))
        except ConfigError as error:
            if not isinstance(error.__cause__, FileNotFoundError):
                raise
        except ValueError:
            pass  # not a lease
        return {}

    def _taken(self, holder: dict[str, Any]) -> ConfigError:
        return ConfigError(
            f"The run {self._run} is in use by another process.",
            got=f"a lease held by {_name(holder)} (this is process {os.getpid()})",
            fix="wait for that run or end it, or choose another run_dir=",
        )


def _name(holder: dict[str, Any]) -> str:
    return f"process {holder.get('pid')} on {holder.get('host')}"
