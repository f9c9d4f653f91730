"""Connections that cannot be made: both sides say why, and mending one end is enough."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from processes import free_port
from towerpack.dataflow.remote._keys import generate_keys
from towerpack.dataflow.remote._post import Post

Open = Callable[..., Post]

NOT_ALLOWED = ("not in allowed/, which is read", "this side's key is not in allowed/")
OTHER_SERVER = ("server.key of the side that connects", "another key than server.key says")
# The side that connects may hear of it, or see only that the other one ends the connection.
ONE_WITHOUT = ("one side has keys", "has none")


@pytest.fixture
def address() -> str:
    return f"tcp://127.0.0.1:{free_port()}"


@pytest.fixture
def open_post(address: str) -> Iterator[Open]:
    posts: list[Post] = []

    def open_(keys: Path | None, *, bind: bool = False) -> Post:
        posts.append(Post([address], bind=bind, keys=keys, hwm=4, max_nbytes=1000))
        return posts[-1]

    yield open_
    for post in posts:
        post.close(linger_s=0)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return generate_keys(tmp_path / "keys")


def until(done: Callable[[], object], *posts: Post) -> None:
    deadline = time.monotonic() + 30
    while not done():
        assert time.monotonic() < deadline
        for post in posts:
            post.wait(0.005)


def shut_out(keys: Path) -> None:
    (keys / "allowed" / "client.key").rename(keys / "client.key")
    generate_keys(keys, "other")


def let_in(keys: Path) -> None:
    (keys / "client.key").rename(keys / "allowed" / "client.key")


def own(keys: Path) -> Path:
    return keys / "client.key_secret"


@pytest.mark.parametrize(
    ("case", "said"),
    [
        ("not allowed", NOT_ALLOWED),
        ("other server", OTHER_SERVER),
        ("server only", ONE_WITHOUT),
        ("client only", ONE_WITHOUT),
    ],
)
def test_both_sides_say_why(
    case: str,
    said: tuple[str, str],
    keys: Path,
    tmp_path: Path,
    open_post: Open,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if case == "not allowed":
        shut_out(keys)
    caplog.set_level(logging.WARNING, "towerpack")
    other = generate_keys(tmp_path / "other")
    listening = open_post(None if case == "client only" else keys, bind=True)
    theirs = {"server only": None, "other server": own(other)}
    connecting = open_post(theirs.get(case, own(keys)))
    for text in said:
        until(lambda text=text: text in caplog.text, listening, connecting)
    end = time.monotonic() + 1.5  # it goes on, but is not said again and again
    until(lambda: time.monotonic() > end, listening, connecting)
    assert len(caplog.messages) <= 3
    assert not connecting.connected


@pytest.mark.parametrize("before", ["not allowed", "no keys"])
def test_it_is_enough_to_mend_the_keys_at_the_other_end(
    before: str, keys: Path, open_post: Open, caplog: pytest.LogCaptureFixture
) -> None:
    if before == "not allowed":
        shut_out(keys)
    listening = open_post(keys if before == "not allowed" else None, bind=True)
    connecting = open_post(own(keys))
    until(lambda: caplog.messages, listening, connecting)
    listening.close()
    if before == "not allowed":
        let_in(keys)
    listening = open_post(keys, bind=True)
    until(lambda: connecting.connected, listening, connecting)
    assert connecting.send(connecting.routes()[0], [b"hello"])
    got = []
    until(lambda: got or got.extend(filter(None, [listening.receive()])), listening, connecting)
    assert bytes(got[0][1][0]) == b"hello"


def test_ends_of_the_other_side_are_no_refusals(
    keys: Path, open_post: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "towerpack")
    connecting = open_post(own(keys))
    for _ in range(4):
        listening = open_post(keys, bind=True)
        until(lambda listening=listening: connecting.connected, listening, connecting)
        connecting.connected = False
        listening.close()
    assert caplog.messages == []
