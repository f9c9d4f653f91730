"""Keys in files: who may read them, and what is wrong with them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import zmq
import zmq.auth

from towerpack import ConfigError
from towerpack.dataflow.remote import generate_keys
from towerpack.dataflow.remote._keys import give_keys


def give(keys: Path, *, bind: bool) -> None:
    """Give a socket keys, and close it."""
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        door = give_keys(socket, keys, bind=bind)
        if door is not None:
            door.stop()


def test_keys_are_made(tmp_path: Path) -> None:
    folder = generate_keys(tmp_path / "new" / "keys")
    for file in folder.glob("*.key_secret"):
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    secret, allowed = folder / "client.key_secret", folder / "allowed" / "client.key"
    assert zmq.auth.load_certificate(secret)[0] == zmq.auth.load_certificate(allowed)[0]
    assert zmq.auth.load_certificate(folder / "server.key")[1] is None
    for keys, bind in ((folder, True), (folder, False), (secret, False)):
        give(keys, bind=bind)


def test_clients_are_added_and_nothing_is_overwritten(tmp_path: Path) -> None:
    generate_keys(tmp_path)
    before = {file: file.read_bytes() for file in tmp_path.rglob("*.key*")}
    with pytest.raises(ConfigError, match=r"client\.key_secret exists"):
        generate_keys(tmp_path)
    generate_keys(tmp_path, ["one", "two"])
    generate_keys(tmp_path, "gpu")
    assert {file: file.read_bytes() for file in before} == before
    names = sorted(file.stem for file in (tmp_path / "allowed").iterdir())
    assert names == ["client", "gpu", "one", "two"]


@pytest.mark.parametrize("name", ["server", "", "../x", "a/b", ".x", "x" * 65])
def test_names_that_are_none(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="not a name"):
        generate_keys(tmp_path / "keys", [name])
    assert not (tmp_path / "keys").exists()


def test_each_side_needs_its_own_files(tmp_path: Path) -> None:
    folder = generate_keys(tmp_path / "keys", ["gpu", "cpu"])
    with pytest.raises(ConfigError, match="does not say which key") as caught:
        give(folder, bind=False)
    assert "cpu.key_secret, gpu.key_secret" in str(caught.value)
    os.chmod(folder / "gpu.key_secret", 0o640)
    with pytest.raises(ConfigError, match=r"chmod 600 .*gpu\.key_secret"):
        give(folder / "gpu.key_secret", bind=False)
    (folder / "server.key").unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        give(folder / "cpu.key_secret", bind=False)
    for file in (folder / "allowed").iterdir():
        file.unlink()
    with pytest.raises(ConfigError, match="nobody could connect"):
        give(folder, bind=True)
    (folder / "server.key_secret").unlink()
    with pytest.raises(ConfigError, match="cannot be read"):
        give(folder, bind=True)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\xfe" * 50,
        b'public-key = "short"',
        b'public-key = "' + b"~" * 40 + b'"\nsecret-key = "' + b"~" * 40 + b'"',
        b'public-key = "' + b"a" * 40 + b'"',
        b'public-key = "' + b"a" * 40 + b'"\nsecret-key = "' + b"b" * 40 + b'"',
    ],
)
def test_damaged_files(tmp_path: Path, content: bytes) -> None:
    generate_keys(tmp_path)
    (tmp_path / "client.key_secret").write_bytes(content)
    with pytest.raises(ConfigError, match=r"cannot be read|no secret key"):
        give(tmp_path, bind=False)
