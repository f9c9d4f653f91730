"""Workers that all flows of a test module share: they take longer to start than a test does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from towerpack.dataflow.parallel._pool import IdlePools


@contextlib.contextmanager
def shared_workers() -> Iterator[None]:
    """Let flows made within find the workers of those that were made before them."""
    parking = IdlePools()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("towerpack.dataflow.parallel._prefetch.IdlePools", lambda: parking)
        patch.setattr("towerpack.dataflow.parallel._pool._MOST_IDLE", 8)
        yield
    parking.close()
