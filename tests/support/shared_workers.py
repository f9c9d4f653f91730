"""Workers that all flows of a test module share: they take longer to start than a test does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest

from towerpack.dataflow.parallel._idle_pools import IdlePools


class _Shared(IdlePools):
    def __reduce__(self) -> Any:
        return IdlePools, ()  # of a flow that is sent somewhere


@contextlib.contextmanager
def shared_workers() -> Iterator[None]:
    """Let flows made within find the workers of those that were made before them."""
    parking = _Shared()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("towerpack.dataflow.parallel._prefetch.IdlePools", lambda: parking)
        patch.setattr("towerpack.dataflow.parallel._idle_pools._MOST_IDLE", 8)
        yield
    parking.close()
