"""What producers and consumers do alike: hear what is said, and say what may get lost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from towerpack._core.errors import FormatError
from towerpack.dataflow.remote._post import GoneError, Post, Route
from towerpack.dataflow.remote._protocol import (
    Kind,
    Message,
    VersionError,
    header,
    parse,
    with_facts,
)


class Side(ABC):
    """One end of a conversation. What comes from the other end is not believed.

    Args:
        post: Where the other end is.
    """

    def __init__(self, post: Post) -> None:
        self._post = post

    def _hear(self) -> bool:
        """Heed one message, if one has arrived."""
        got = self._post.receive()
        if got is None:
            return False
        route, frames = got
        try:
            self._heed(route, parse(frames))
        except VersionError as error:
            self._refuse(route, str(error))
            self._drop("of another version of the protocol", error.what)
        except FormatError as error:
            self._drop("that made no sense", error.what)
        return True

    @abstractmethod
    def _heed(self, route: Route, message: Message) -> None:
        """Do what a message asks for; a `FormatError` if it makes no sense."""

    @abstractmethod
    def _drop(self, what: str, detail: str) -> None:
        """Note a message that nothing was done about."""

    def _say(self, route: Route, frames: Sequence[Any]) -> bool:
        """Send if that is possible at present; everything is said again if need be.

        Returns:
            Whether it is on its way.
        """
        try:
            return self._post.send(route, frames)
        except GoneError:
            return False

    def _refuse(self, route: Route, why: str) -> None:
        self._say(route, with_facts(header(Kind.REFUSE), {"why": why}))
