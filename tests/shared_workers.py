"""Workers that all flows of a test module share: they take longer to start than a test does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from towerpack.dataflow.parallel._parking import Parking


@contextlib.contextmanager
def shared_workers() -> Iterator[None]:
    """Let flows made within find the workers of those that were made before them."""
    parking = Parking()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Parking, "__new__", lambda _: parking)
        patch.setattr(Parking, "__init__", lambda _: None)
        patch.setattr(Parking, "close", lambda _: None)
        patch.setattr("towerpack.dataflow.parallel._parking._MOST", 8)
        yield
    parking.close()
